"""Search REST's datastore (arXiv 2311.08252) for what followed the same tokens in other texts.

It is a suffix array over tokens, mapped into memory. Opening it is free, processes share it, and a
search takes some dozens of comparisons. `duodec datastore build` writes its file.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from duodec.core.sampling.sampler import Tokens
from duodec.drafting.datastore_file import (
    MAX_HEADER_BYTES,
    REMEDY,
    Header,
    decode,
    encode,
    file_parts,
    read_header,
)
from duodec.errors import DatastoreUnreadable


class Datastore:
    """Search documents for the longest suffix of a text. It is immutable."""

    def __init__(self, header: Header, data: bytes | mmap.mmap, tokens_at: int) -> None:
        """Use the bytes ``data`` of a file, in which the tokens begin at ``tokens_at``."""
        self.header = header
        self._data = data
        self._tokens_at = tokens_at
        numbers = memoryview(data)[header.numbers(tokens_at)].cast("I")
        self._order = numbers[: header.num_positions]
        self._starts = numbers[header.num_positions :]
        self._positions = np.frombuffer(numbers, np.uint32, header.num_positions)

    @classmethod
    def open(cls, path: Path) -> Datastore:
        """Open the datastore in a file. From then on the file may be replaced, but not written to.

        Raises DatastoreUnreadable for a file that is missing, broken or of another version.
        """
        try:
            with path.open("rb") as file:
                header, tokens_at = read_header(path, file.read(MAX_HEADER_BYTES))
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise DatastoreUnreadable(
                f"cannot read the datastore {path} ({error.strerror}); {REMEDY}"
            ) from error
        if len(data) != header.numbers(tokens_at).stop:
            raise DatastoreUnreadable(f"the datastore {path} is truncated; {REMEDY}")
        if hasattr(mmap, "MADV_WILLNEED"):  # read it now, not page by page in the first rounds
            data.madvise(mmap.MADV_WILLNEED)
        store = cls(header, data, tokens_at)
        starts = np.frombuffer(store._starts, np.uint32)
        if (starts[1:] < starts[:-1]).any() or starts[-1] > header.num_positions:
            raise DatastoreUnreadable(f"the datastore {path} is damaged; {REMEDY}")
        return store

    @classmethod
    def of(cls, documents: Iterable[Sequence[int]], num_vocab: int) -> Datastore:
        """Return a datastore in memory, sorted by a simple algorithm, for tests and small texts."""
        texts = [[*document, num_vocab] for document in documents]
        header = Header(sum(map(len, texts)) - len(texts), len(texts), num_vocab)
        width = header.token_width
        tokens = encode([token for text in texts for token in text], width)
        order = sorted(range(header.num_positions), key=lambda i: tokens[i * width :])
        head, *rest = file_parts(header, tokens, np.array(order, dtype=np.uint32))
        return cls(header, b"".join([head, *rest]), len(head))

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens in all documents."""
        return self.header.num_tokens

    @property
    def num_vocab(self) -> int:
        return self.header.num_vocab

    @property
    def vocabulary(self) -> str:
        """Return the fingerprint of the tokens' vocabulary; "" when made in memory."""
        return self.header.vocabulary

    def continuations(
        self,
        text: Tokens,
        *,
        max_span: int = 16,
        min_span: int = 2,
        length: int = 10,
        limit: int = 5000,
    ) -> NDArray[np.int32]:
        """Return what followed the longest suffix of ``text`` that occurs in the documents.

        The suffix has max_span tokens at most and min_span at least; ``text`` holds tokens of the
        vocabulary only. Returns windows of shape (num_found, length) in lexicographic order, with
        -1 from the end of a document on; in that order the end of a document comes after every
        token. If there are more than ``limit`` occurrences, ``limit`` of them are returned, evenly
        spread over this order. The shape is (0, length) if there are none.
        """
        assert min_span >= 1
        width = self.header.token_width
        words = encode(text[-max_span:], width)
        span, found = 0, range(0)
        shortest, longest = min_span, len(words) // width
        while shortest <= longest:  # where a suffix occurs, all shorter ones do
            middle = (shortest + longest) // 2
            if places := self._find(words[-middle * width :]):
                span, found, shortest = middle, places, middle + 1
            else:
                longest = middle - 1
        if not found:
            return np.empty((0, length), dtype=np.int32)
        count = min(len(found), limit)
        chosen = self._positions[found.start + np.arange(count) * len(found) // count]
        return self._windows(chosen.astype(np.int64) + span, length)

    def _find(self, words: bytes) -> range:
        """Return the range of sorted texts that begin with these tokens."""
        data, tokens_at, width = self._data, self._tokens_at, self.header.token_width
        size = len(words)

        def text(position: int) -> bytes:
            # The last text may reach past the tokens, but its separator decides first.
            begin = tokens_at + position * width
            return data[begin : begin + size]

        token = int.from_bytes(words[:width], "big")
        low, high = self._starts[token], self._starts[token + 1]
        first = bisect_left(self._order, words, low, high, key=text)
        if first == high or text(self._order[first]) != words:
            return range(0)
        return range(first, bisect_right(self._order, words, first, high, key=text))

    def _windows(self, positions: NDArray[np.int64], length: int) -> NDArray[np.int32]:
        """Return the tokens at these positions, of shape (len(positions), length), with -1 from a
        separator on."""
        width, num_positions = self.header.token_width, self.header.num_positions
        num_held = min(length, num_positions)  # the bytes read past the tokens are in the file
        rows = np.ndarray(
            num_positions, f"V{num_held * width}", self._data, self._tokens_at, (width,)
        )
        # In a damaged file a position can be anything.
        gathered = rows[np.minimum(positions, num_positions - 1)].tobytes()
        windows = np.full((len(positions), length), -1, dtype=np.int32)
        windows[:, :num_held] = decode(gathered, width).reshape(-1, num_held)
        ends = np.flatnonzero(windows == self.num_vocab)
        if ends.size:
            ending = np.unique(ends // length)
            tails = windows[ending]
            tails[np.logical_or.accumulate(tails == self.num_vocab, axis=1)] = -1
            windows[ending] = tails
        return windows

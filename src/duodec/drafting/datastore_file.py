"""Read and write a datastore's file: a header, then three arrays that are mapped into memory.

The first array holds the tokens of all documents, each document followed by one separator (the id
``num_vocab``). The second holds the positions of all these, sorted by the text that begins there.
The third says for each token where the texts that begin with it start in that order. Tokens are
big-endian and of one width, so that slices of bytes compare as tokens do. The other numbers are
uint32 in the machine's byte order.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from duodec.core.sampling.sampler import Tokens
from duodec.errors import DatastoreUnreadable

MAGIC = b"duodec datastore"
REMEDY = "build it with duodec datastore build FILES..."
_VERSION = 1
_WORDS_AT = len(MAGIC) + 8  # the version and the length of the words, both uint32, come first
MAX_HEADER_BYTES = 4096
_ALIGNMENT = 64
_CHUNK = 1 << 20  # tokens counted at once


@dataclass(frozen=True)
class Header:
    """Describe a datastore."""

    num_tokens: int  # tokens of the documents, without the separators
    num_documents: int
    num_vocab: int
    vocabulary: str = ""  # fingerprint of the token pieces
    num_files: int = 0
    num_bytes: int = 0  # size of the source files
    built: str = ""  # time of the build, in ISO 8601

    @property
    def token_width(self) -> int:
        """Return the bytes of a stored token."""
        return 2 if self.num_vocab < 1 << 16 else 3

    @property
    def num_positions(self) -> int:
        """Return the number of tokens and separators."""
        return self.num_tokens + self.num_documents

    def numbers(self, tokens_at: int) -> slice:
        """Return the bytes of the positions and the starts, which end the file."""
        end = tokens_at + self.num_positions * self.token_width
        begin = end + -end % _ALIGNMENT
        return slice(begin, begin + 4 * (self.num_positions + self.num_vocab + 1))


def encode(tokens: Tokens | Sequence[int], width: int) -> bytes:
    """Return tokens as stored: ``width`` bytes each, 2 or 3."""
    if width == 2:
        return np.asarray(tokens, dtype=">u2").tobytes()
    digits = np.asarray(tokens, dtype=">u4").view(np.uint8).reshape(-1, 4)
    return digits[:, 1:].tobytes()


def decode(tokens: bytes | bytearray, width: int) -> Tokens:
    """Undo `encode`."""
    if width == 2:
        return np.frombuffer(tokens, dtype=">u2").astype(np.int32)
    high, middle, low = np.frombuffer(tokens, dtype=np.uint8).reshape(-1, 3).astype(np.int32).T
    return (high << 16) | (middle << 8) | low


def file_parts(
    header: Header, tokens: bytes | bytearray, positions: NDArray[np.uint32]
) -> Iterator[bytes | bytearray | memoryview]:
    """Yield a datastore's file in the order of its bytes; the first part ends where the tokens
    begin.

    ``tokens`` are encoded and have their separators; ``positions`` (num_positions,) are sorted.
    """
    words = json.dumps({**asdict(header), "token_width": header.token_width}).encode()
    words += b" " * (-(_WORDS_AT + len(words)) % _ALIGNMENT)
    yield MAGIC + np.array([_VERSION, len(words)], dtype=np.uint32).tobytes() + words
    yield tokens
    yield bytes(-len(tokens) % _ALIGNMENT)
    yield positions.view(np.uint8).data
    counts = np.zeros(header.num_vocab + 1, dtype=np.int64)
    size = _CHUNK * header.token_width
    for begin in range(0, len(tokens), size):
        chunk = decode(tokens[begin : begin + size], header.token_width)
        counts += np.bincount(chunk, minlength=len(counts))
    yield (np.cumsum(counts) - counts).astype(np.uint32).tobytes()


def read_header(path: Path, data: bytes) -> tuple[Header, int]:
    """Return the header in a file's first bytes, and where its tokens begin.

    Raises DatastoreUnreadable.
    """
    if not data.startswith(MAGIC):
        raise DatastoreUnreadable(f"{path} is not a datastore; {REMEDY}")
    version, size = (
        int.from_bytes(data[at : at + 4], sys.byteorder) for at in (_WORDS_AT - 8, _WORDS_AT - 4)
    )
    if version != _VERSION:  # or it was written on a machine with another byte order
        raise DatastoreUnreadable(
            f"{path} is a datastore of version {version}, not {_VERSION}; {REMEDY}"
        )
    try:
        fields = json.loads(data[_WORDS_AT : _WORDS_AT + size])
        width = fields.pop("token_width")
        header = Header(**fields)
        is_good = width == header.token_width and min(header.num_positions, header.num_vocab) > 0
    except (ValueError, TypeError, AttributeError, KeyError):
        is_good = False
    if not is_good:
        raise DatastoreUnreadable(f"the header of the datastore {path} is broken; {REMEDY}")
    return header, _WORDS_AT + size

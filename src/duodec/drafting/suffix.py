"""Draft from earlier texts: what came next where the text's last tokens occurred before.

`Suffixes` gives the results of a suffix tree with counts (2411.04975), from an inverted index: each
token with its places. A draft can only come from the nodes of that tree that are given by the
places of the text's last token, and by how far each place agrees with the text. Texts and index are
in C++ (`native/suffixes.cpp`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from duodec.core.draft import Draft
from duodec.core.sampling.sampler import Tokens
from duodec.drafting import constants
from duodec.drafting.owners import ByOwner
from duodec.native.library import Handle, address


@dataclass(frozen=True)
class Speculation:
    """Hold a draft and how many of its tokens are expected to be right."""

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    shares: Sequence[float] = ()  # share of the places that pass through each node
    score: float = 0.0
    length: int = 0  # length of the suffix, in tokens

    @property
    def draft(self) -> Draft:
        return Draft(tuple(self.tokens), tuple(self.parents))


_NOTHING = Speculation()


class Suffixes:
    """Search token sequences for the longest suffix of a text."""

    def __init__(self, max_depth: int, max_tokens: int = constants.MAX_STORED) -> None:
        """A match, and its continuation, have at most ``max_depth`` tokens; each sequence takes so
        many tokens more. When a sequence ends with more than ``max_tokens`` in all, the older half
        is forgotten."""
        self._max_depth = max_depth
        self.store = Handle("suffixes", max_depth, max_tokens)

    def __len__(self) -> int:
        """Return the number of tokens that were added."""
        store = self.store
        return int(store.library.duodec_suffixes_size(store.address))

    @property
    def num_cells(self) -> int:
        """Return the cells of its memory: tokens, and what separates sequences."""
        store = self.store
        return int(store.library.duodec_suffixes_cells(store.address))

    def extend(self, tokens: Iterable[int]) -> None:
        """Append to the current sequence."""
        store, added = self.store, array("i", tokens)
        store.library.duodec_suffixes_extend(store.address, address(added), len(added))

    def end(self) -> None:
        """End the current sequence; the next token begins another."""
        self.store.library.duodec_suffixes_end(self.store.address)

    @classmethod
    def by_owner(cls, max_depth: int) -> ByOwner[Suffixes]:
        """Return the stores of each owner. Together they have as much memory as one has alone."""
        return ByOwner(lambda: cls(max_depth), lambda store: store.num_cells, constants.MAX_STORED)

    def speculate(
        self, text: Tokens, factor: float, min_share: float, depth: int | None = None
    ) -> Speculation:
        """Return the best draft over all suffixes of the text, at most ``depth`` tokens deep. A
        suffix of n tokens may draft ``factor`` * n. A node is drafted if at least ``min_share`` of
        the suffix's places pass through it. A draft's score is the sum of these shares."""
        if not len(text):
            return _NOTHING
        most = self._max_depth if depth is None else max(0, min(depth, self._max_depth))
        tail = array("i", text[-self._max_depth :].tolist())
        tokens, parents = array("i", bytes(4 * most)), array("i", bytes(4 * most))
        shares = array("d", bytes(8 * (most + 2)))
        num: int = self.store.library.duodec_suffixes_speculate(
            self.store.address, address(tail), len(tail), factor, min_share, most,
            constants.MAX_PLACES, address(tokens), address(parents), address(shares),
        )  # fmt: skip
        score, length = shares[num], int(shares[num + 1])
        return Speculation(tokens[:num], parents[:num], shares[:num], score, length)

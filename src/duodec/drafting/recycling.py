"""Draft from an adjacency matrix: after each token, what was likely when it was last scored."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from ctypes import c_int64

from duodec.core.draft import ROOT, Draft
from duodec.core.targets import NUM_CANDIDATES as NUM_CANDIDATES
from duodec.core.targets import Candidates
from duodec.drafting import constants
from duodec.drafting.owners import ByOwner
from duodec.native.library import MAX_ORDER as MAX_ORDER
from duodec.native.library import Handle, address

Adjacency = dict[int, tuple[int, ...]]
"""The likeliest successors of a token, best first."""


def adjacencies() -> ByOwner[Adjacency]:
    """Return the adjacencies of each owner of texts."""
    return ByOwner(dict, len, constants.MAX_STORED)


# This is the tree of 2408.08696 (release 2.2.2). It says how many children each node has, breadth
# first, the root included. A node's i-th child is its token's i-th candidate. There are 80 nodes, 6
# deep.
_TEMPLATE = (
    (8,),
    (8, 4, 3, 2, 1, 1, 1, 1),
    (8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0),
    (5, 2, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0),
    (3, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0),
    (2, 0, 0, 1, 0, 0, 0, 0),
)


def recycled(adjacency: Mapping[int, tuple[int, ...]], last: int) -> Draft:
    """Return the tree under ``last``, the text's last token; unknown successors are left out."""
    tokens: list[int] = []
    parents: list[int] = []
    # A level holds for each node of the template its token, or None if unknown.
    level: list[tuple[int, int] | None] = [(ROOT, last)]
    for counts in _TEMPLATE:
        below: list[tuple[int, int] | None] = []
        for node, count in zip(level, counts, strict=True):
            successors = () if node is None else adjacency.get(node[1], ())[:count]
            for token in successors:
                below.append((len(tokens), token))
                tokens.append(token)
                parents.append(node[0] if node else ROOT)
            below += [None] * (count - len(successors))
        level = below
    return Draft(tuple(tokens), tuple(parents))


class RecycledRows:
    """Keep the target's candidates after each context of one to `MAX_ORDER` tokens, from every row
    that it scored. This is token recycling (2408.08696), with longer contexts where they are known.
    They are in C++ (`native/rows.h`)."""

    def __init__(self, max_contexts: int = constants.MAX_CONTEXTS) -> None:
        """Keep all contexts of one token and the latest ``max_contexts`` of each longer length."""
        self.store = Handle("rows", max_contexts)

    def __len__(self) -> int:
        """Return the number of known contexts."""
        return int(self.store.library.duodec_rows_size(self.store.address))

    @classmethod
    def by_owner(cls) -> ByOwner[RecycledRows]:
        """Return the rows of each owner of texts."""
        return ByOwner(cls, len, constants.MAX_STORED)

    def add(self, context: tuple[int, ...], candidates: Candidates) -> None:
        """Add the row that follows ``context``, whose last `MAX_ORDER` tokens are used."""
        before, tokens = array("i", context), array("i", candidates.tokens)
        confidences = array("d", candidates.confidences)
        self.store.library.duodec_rows_add(
            self.store.address, address(before), len(before), address(tokens),
            address(confidences) if confidences else None, len(tokens),
        )  # fmt: skip

    def longest(self, context: tuple[int, ...]) -> tuple[int, Candidates] | None:
        """Return the latest row after the longest known suffix of a context, and that suffix's
        length."""
        before, num = array("i", context), c_int64()
        tokens, confidences = (
            array("i", bytes(4 * NUM_CANDIDATES)),
            array("d", bytes(8 * NUM_CANDIDATES)),
        )
        order: int = self.store.library.duodec_rows_longest(
            self.store.address, address(before), len(before), address(tokens),
            address(confidences), num,
        )  # fmt: skip
        if not order:
            return None
        count = abs(num.value)  # a negative number has no confidences
        return order, Candidates(tuple(tokens[:count]), tuple(confidences[: max(0, num.value)]))

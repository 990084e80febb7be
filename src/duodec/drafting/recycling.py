"""Draft from an adjacency matrix: after each token, what was likely when it was last scored."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from duodec.core.draft import ROOT, Draft
from duodec.core.protocols import NUM_CANDIDATES as NUM_CANDIDATES
from duodec.core.protocols import Candidates
from duodec.native.library import MAX_ORDER as MAX_ORDER
from duodec.native.library import library
from duodec.native.rows import NativeRows

Adjacency = dict[int, tuple[int, ...]]
"""A token's likeliest successors, best first."""

# The tree of 2408.08696 (release 2.2.2): how many children each node has, breadth first, its
# root included. A node's i-th child is its token's i-th candidate. 80 nodes, 6 deep.
_TEMPLATE = (
    (8,),
    (8, 4, 3, 2, 1, 1, 1, 1),
    (8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0),
    (5, 2, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0),
    (3, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0),
    (2, 0, 0, 1, 0, 0, 0, 0),
)


def recycled(adjacency: Mapping[int, tuple[int, ...]], last: int) -> Draft:
    """The tree under ``last``, the text's last token; unknown successors are left out."""
    tokens: list[int] = []
    parents: list[int] = []
    # of a level: for each node of the template its token, or None if unknown
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


_MAX_CONTEXTS = 1 << 13  # of two tokens and more, each; the latest


class RecycledRows:
    """The target's candidates after each context of one to `MAX_ORDER` tokens, from every row that
    it scored: token recycling (2408.08696) with longer contexts where they are known."""

    def __init__(self, max_contexts: int = _MAX_CONTEXTS) -> None:
        """Keeps all contexts of one token and the latest ``max_contexts`` of each longer length."""
        self._max_contexts = max_contexts
        self.store: _Store | NativeRows | None = None  # once there is a row

    def __len__(self) -> int:
        """The number of known contexts."""
        return 0 if self.store is None else len(self.store)

    def add(self, context: tuple[int, ...], candidates: Candidates) -> None:
        """Add the row that follows ``context``, of which the last `MAX_ORDER` tokens are used."""
        if self.store is None:
            known = library()
            make = _Store if known is None else partial(NativeRows, known)
            self.store = make(self._max_contexts)
        self.store.add(context, candidates)

    def longest(self, context: tuple[int, ...]) -> tuple[int, Candidates] | None:
        """The latest row after the longest known suffix of a context, and that suffix's length."""
        return None if self.store is None else self.store.longest(context)


class _Store:
    """What `RecycledRows` keeps, in Python."""

    def __init__(self, max_contexts: int) -> None:
        self._max_contexts = max_contexts
        self._by_order: tuple[dict[tuple[int, ...], Candidates], ...] = tuple(
            {} for _ in range(MAX_ORDER)
        )

    def __len__(self) -> int:
        return sum(map(len, self._by_order))

    def add(self, context: tuple[int, ...], candidates: Candidates) -> None:
        candidates = candidates.first(NUM_CANDIDATES)
        for order, known in enumerate(self._by_order, 1):
            if order > len(context):
                return
            key = context[-order:]
            if order > 1:
                known.pop(key, None)  # it becomes the latest
                if len(known) >= self._max_contexts:
                    del known[next(iter(known))]
            known[key] = candidates

    def longest(self, context: tuple[int, ...]) -> tuple[int, Candidates] | None:
        shortest = self._by_order[0].get(context[-1:])
        if shortest is None:  # then no longer one is known either
            return None
        for order in range(min(MAX_ORDER, len(context)), 1, -1):
            found = self._by_order[order - 1].get(context[-order:])
            if found is not None:
                return order, found
        return 1, shortest

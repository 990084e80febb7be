"""The tree that never stops growing: best first, several leaves a forward, kept from text to text.

What was drafted for a text is a memo of it: when the next request's text goes on along the tree,
all that lies under its end is still there, and growth goes on from it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT, Draft
from duodec.core.protocols import DraftModel, DraftRequest, RowQuery
from duodec.core.sampling import Context, Sampler, Tokens

_LEAST_VALUE = 1e-3  # a node less likely than that is not worth a forward


@dataclass(frozen=True)
class Tree:
    """A tree of candidates under the text, grown until nothing in it is worth a forward."""

    num_leaves: int = 4  # expanded in one forward
    num_candidates: int = 8  # of each
    least_confidence: float = 0.01
    max_expanded: int = 96  # each may be a leaf, and leaves cost sequence ids
    depth: int = 32

    @property
    def num_tokens(self) -> int:
        return self.max_expanded * self.num_candidates

    def grow(self, model: DraftModel, request: DraftRequest) -> Iterator[CandidateTree]:
        """What is left of the last tree, then the tree after each forward."""
        growth = _growth_of(model, request, self)
        yield growth.tree
        while leaves := growth.best_leaves():
            growth.expand(leaves, growth.successors(model, request, leaves))
            yield growth.tree


class _Growth:
    """A tree in the making under one text."""

    def __init__(self, text: Tokens, sampler: Sampler, tree: CandidateTree, plan: Tree) -> None:
        """Growth goes on from what ``tree`` holds already."""
        self.text, self.sampler, self.tree, self._plan = text, sampler, tree, plan
        self._expanded: list[int] = []  # parents precede children; the root is left out
        self._values: dict[int, float] = {ROOT: 1.0}
        self._depths: dict[int, int] = {ROOT: 0}
        self._edge: list[tuple[float, int]] = []  # (-value, node) of what may be expanded
        if not tree.is_expanded(ROOT) and plan.depth > 0:
            self._edge.append((-1.0, ROOT))
        for node in range(len(tree)):
            self._enter(node)
            if tree.is_expanded(node):
                self._expanded.append(node)
        self._edge = [(value, node) for value, node in self._edge if not tree.is_expanded(node)]
        heapq.heapify(self._edge)

    def _enter(self, node: int) -> None:
        """A node that is new here may be expanded."""
        parent = self.tree.parents[node]
        value = self._values[parent] * self.tree.confidences[node]
        self._values[node] = value
        self._depths[node] = self._depths[parent] + 1
        if value >= _LEAST_VALUE and self._depths[node] < self._plan.depth:
            heapq.heappush(self._edge, (-value, node))

    def best_leaves(self) -> list[int]:
        """The likeliest nodes of the edge."""
        room = min(self._plan.num_leaves, self._plan.max_expanded - len(self._expanded))
        return [heapq.heappop(self._edge)[1] for _ in range(min(room, len(self._edge)))]

    def successors(
        self, model: DraftModel, request: DraftRequest, leaves: list[int]
    ) -> list[tuple[list[int], list[float]]]:
        """One batched forward: each leaf's likely successors with their confidences."""
        nodes = [*self._expanded, *(leaf for leaf in leaves if leaf != ROOT)]
        place = {ROOT: ROOT, **{node: i for i, node in enumerate(nodes)}}
        draft = Draft(
            tuple(self.tree.tokens[node] for node in nodes),
            tuple(place[self.tree.parents[node]] for node in nodes),
        )
        wanted = tuple(place[leaf] + 1 for leaf in leaves)
        rows = model.rows(RowQuery(request.slot, request.text, draft, wanted))
        found = []
        for leaf, row in zip(leaves, rows, strict=True):
            context = Context(request.text, tuple(self.tree.path_tokens(leaf)))
            tokens, likely = request.sampler.candidates(row, context, self._plan.num_candidates)
            num_kept = max(1, int(np.count_nonzero(likely >= self._plan.least_confidence)))
            found.append((tokens[:num_kept].tolist(), likely[:num_kept].tolist()))
        return found

    def expand(self, leaves: list[int], successors: list[tuple[list[int], list[float]]]) -> None:
        for leaf, (tokens, confidences) in zip(leaves, successors, strict=True):
            self.tree.expand(leaf, tokens, confidences)
            if leaf != ROOT:
                self._expanded.append(leaf)
            for child in self.tree.children(leaf):
                self._enter(child)


_growths: WeakKeyDictionary[DraftModel, dict[int, _Growth]] = WeakKeyDictionary()
"""By model and slot, the last tree: a memo of its text."""


def _growth_of(model: DraftModel, request: DraftRequest, plan: Tree) -> _Growth:
    """Where growth stands under the request's text."""
    slots = _growths.setdefault(model, {})
    last = slots.get(request.slot)
    tree = CandidateTree()
    if last is not None and last.sampler == request.sampler:
        length = len(last.text)
        if len(request.text) >= length and np.array_equal(request.text[:length], last.text):
            tree = last.tree.follow(request.text[length:].tolist())
    slots[request.slot] = _Growth(request.text, request.sampler, tree, plan)
    return slots[request.slot]

"""Grow a tree without pause: best first, several leaves a pass, kept from one text to the next.

A text's draft is a memo of it: when the next request's text continues along the tree, the subtree
at its end is kept, and growth continues from there.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from weakref import WeakKeyDictionary

import numpy as np

from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT, Draft
from duodec.core.protocols import DraftModel, DraftRequest, RowQuery
from duodec.core.sampling import Context, Sampler, Tokens

_LEAVES = (1, 2, 4, 8)
_REMEMBERED = 32  # steps
_TICK_S = 1e-9  # the least a step takes; a simulated one may be free
_NEXT = 1.4  # the estimated cost of twice the leaves, before it is measured
_LEAST_VALUE = 1e-3  # a node less likely than that is not worth a forward pass


@dataclass(frozen=True)
class Tree:
    """A tree of candidates under the text, grown until no node is worth a forward pass."""

    num_leaves: int = 0  # expanded in one forward pass; 0: as many as pay
    num_candidates: int = 16  # of each
    least_confidence: float = 0.003
    max_expanded: int = 120  # each may be a leaf, and leaves cost sequence ids
    depth: int = 32

    @property
    def num_tokens(self) -> int:
        return self.max_expanded * self.num_candidates

    def grow(self, model: DraftModel, request: DraftRequest) -> Iterator[CandidateTree]:
        """What is left of the last tree, then the tree after each forward pass."""
        growth = _growth_of(model, request, self)
        yield growth.tree
        clock = model.clock if model.traits.has_clock else perf_counter  # a simulation's is virtual
        while leaves := growth.best_leaves():
            start_s = clock()
            growth.expand(leaves, growth.successors(model, request, leaves))
            growth.steps.observe(len(leaves), clock() - start_s)
            yield growth.tree


class _Steps:
    """Running medians of a forward pass's seconds by its number of leaves."""

    def __init__(self) -> None:
        self._seconds = {k: deque[float](maxlen=_REMEMBERED) for k in _LEAVES}

    def observe(self, num_leaves: int, seconds: float) -> None:
        if num_leaves in self._seconds:
            self._seconds[num_leaves].append(seconds)

    def best(self, values: Sequence[float]) -> int:
        """How many of the likeliest leaves (``values``, best first) bring the most value a second.
        An untried number is estimated to cost little more than a measured one."""
        best, best_rate, expected_s = 1, 0.0, 1.0
        for k in _LEAVES:
            if k > max(1, len(values)):
                break
            known = self._seconds[k]
            expected_s = median(known) if known else expected_s * _NEXT
            rate = sum(values[:k]) / max(_TICK_S, expected_s)
            if rate > best_rate:
                best, best_rate = k, rate
        return best


class _Growth:
    """A tree growing under one text."""

    def __init__(
        self,
        text: Tokens,
        sampler: Sampler,
        tree: CandidateTree,
        plan: Tree,
        steps: _Steps,
        is_chain: bool = False,
    ) -> None:
        """Continues from what ``tree`` already holds. Of a chain only the likeliest successor is
        expanded, for a model whose state has no branches."""
        self._is_chain = is_chain
        self.text, self.sampler, self.tree, self._plan = text, sampler, tree, plan
        self.steps = steps
        self._expanded: list[int] = []  # parents precede children; the root is left out
        self._values: dict[int, float] = {ROOT: 1.0}
        self._depths: dict[int, int] = {ROOT: 0}
        self._edge: list[tuple[float, int]] = []  # (-value, node) of nodes that may be expanded
        if not tree.is_expanded(ROOT) and plan.depth > 0:
            self._edge.append((-1.0, ROOT))
        for node in range(len(tree)):
            self._enter(node)
            if tree.is_expanded(node):
                self._expanded.append(node)
        self._edge = [(value, node) for value, node in self._edge if not tree.is_expanded(node)]
        heapq.heapify(self._edge)

    def _enter(self, node: int) -> None:
        """Let a new node be expanded."""
        parent = self.tree.parents[node]
        value = self._values[parent] * self.tree.confidences[node]
        self._values[node] = value
        self._depths[node] = self._depths[parent] + 1
        if self._is_chain and node != self.tree.children(parent)[0]:
            return
        if value >= _LEAST_VALUE and self._depths[node] < self._plan.depth:
            heapq.heappush(self._edge, (-value, node))

    def best_leaves(self) -> list[int]:
        """The likeliest nodes that may be expanded."""
        room = min(self._plan.max_expanded - len(self._expanded), len(self._edge))
        num_leaves = self._plan.num_leaves
        if not num_leaves:
            num_leaves = self.steps.best([-v for v, _ in heapq.nsmallest(_LEAVES[-1], self._edge)])
        return [heapq.heappop(self._edge)[1] for _ in range(min(room, num_leaves))]

    def successors(
        self, model: DraftModel, request: DraftRequest, leaves: list[int]
    ) -> list[tuple[list[int], list[float]]]:
        """One batched forward pass: each leaf's likely successors with their confidences."""
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


@dataclass
class _Memory:
    """State kept with a model: its costs, and by slot the last tree, a memo of its text."""

    steps: _Steps = field(default_factory=_Steps)
    growths: dict[int, _Growth] = field(default_factory=dict)


_memories: WeakKeyDictionary[DraftModel, _Memory] = WeakKeyDictionary()


def _growth_of(model: DraftModel, request: DraftRequest, plan: Tree) -> _Growth:
    """The growth under the request's text so far."""
    memory = _memories.setdefault(model, _Memory())
    last = memory.growths.get(request.slot)
    tree = CandidateTree()
    if last is not None and last.sampler == request.sampler:
        length = len(last.text)
        if len(request.text) >= length and np.array_equal(request.text[:length], last.text):
            tree = last.tree.follow(request.text[length:].tolist())
    is_chain = not model.traits.has_branches
    growth = _Growth(request.text, request.sampler, tree, plan, memory.steps, is_chain)
    memory.growths[request.slot] = growth
    return growth

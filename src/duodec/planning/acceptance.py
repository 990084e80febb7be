"""How likely a candidate is to be the target's token, learned from every verdict."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT

FloatArray = NDArray[np.float64]

_NUM_BINS = 12  # of confidence
_NUM_RANKS = 4  # first, second, third, later
_PRIOR_WEIGHT = 6.0  # labels that the prior counts as
_PRIOR_COVERAGE = 0.6
# where bins of confidence begin, but the first: finer near 0
_EDGES = [(i / _NUM_BINS) ** 2 for i in range(1, _NUM_BINS)]
_FEW = 32  # candidates that are looked up one by one faster than as arrays
_MEMORY = 400.0  # labels of a bin after which old ones fade


def _cells(confidences: FloatArray, ranks: Sequence[int]) -> NDArray[np.int64]:
    """By bin of confidence and by rank."""
    bins = np.searchsorted(_EDGES, confidences, side="right")
    cells: NDArray[np.int64] = bins * _NUM_RANKS + np.minimum(
        np.asarray(ranks, dtype=np.int64), _NUM_RANKS - 1
    )
    return cells


def _cell(confidence: float, rank: int) -> int:
    return bisect_right(_EDGES, confidence) * _NUM_RANKS + min(rank, _NUM_RANKS - 1)


@lru_cache(maxsize=1 << 14)
def _siblings(confidences: tuple[float, ...]) -> tuple[tuple[int, float], ...]:
    """The cell of each, and how much its prior weighs."""
    return tuple((_cell(c, rank), _PRIOR_WEIGHT * c) for rank, c in enumerate(confidences))


class Acceptance:
    """Acceptance by confidence and rank, for one source of candidates.

    A candidate is labelled when its parent turns out to lie on the text, whether it was scored
    or not; under a refused node nothing is known. The prior is the confidence itself.
    """

    def __init__(self) -> None:
        self._right = [0.0] * _NUM_BINS * _NUM_RANKS  # labels that were, by bin and rank
        self._num = [0.0] * _NUM_BINS * _NUM_RANKS
        self._coverage = (0.0, 0.0)  # the same of whole sets of candidates

    def estimates(self, confidences: Sequence[float], ranks: Sequence[int]) -> FloatArray:
        """The likelihood that each is the target's token, given that its parent is."""
        prior = np.array(confidences, dtype=np.float64)
        cells = _cells(prior, ranks)
        right, num = np.array(self._right)[cells], np.array(self._num)[cells]
        rates: FloatArray = (right + _PRIOR_WEIGHT * prior) / (num + _PRIOR_WEIGHT)
        return rates

    def estimate(self, confidence: float, rank: int) -> float:
        """The same of one: faster than arrays are for a few."""
        cell = _cell(confidence, rank)
        return (self._right[cell] + _PRIOR_WEIGHT * confidence) / (self._num[cell] + _PRIOR_WEIGHT)

    def by_rank(self, confidences: tuple[float, ...]) -> list[float]:
        """The same of siblings, best first."""
        right, num = self._right, self._num
        return [
            (right[cell] + weighted) / (num[cell] + _PRIOR_WEIGHT)
            for cell, weighted in _siblings(confidences)
        ]

    def at_rank(self, confidences: Sequence[float], rank: int) -> list[float]:
        """The same of several of one rank."""
        right, num = self._right, self._num
        cells = [bisect_right(_EDGES, c) * _NUM_RANKS + rank for c in confidences]
        return [
            (right[cell] + _PRIOR_WEIGHT * c) / (num[cell] + _PRIOR_WEIGHT)
            for cell, c in zip(cells, confidences, strict=True)
        ]

    def observe(
        self, confidences: Sequence[float], ranks: Sequence[int], is_right: Sequence[bool]
    ) -> None:
        """Labels of siblings."""
        # a dozen numbers: loops are faster than arrays here
        for confidence, rank, right in zip(confidences, ranks, is_right, strict=True):
            cell = _cell(confidence, rank)
            if self._num[cell] >= _MEMORY:
                self._right[cell] *= 0.5
                self._num[cell] *= 0.5
            self._right[cell] += right
            self._num[cell] += 1

    @property
    def coverage(self) -> float:
        """The likelihood that the target's token is among an expanded node's candidates."""
        right, num = self._coverage
        return (right + _PRIOR_WEIGHT * _PRIOR_COVERAGE) / (num + _PRIOR_WEIGHT)

    def learn(self, tree: CandidateTree, tokens: Sequence[int], node: int = ROOT) -> None:
        """Label what the tree held possible along the tokens that came, from ``node`` on."""
        for token in tokens:
            if not tree.is_expanded(node):
                return
            children = tree.children(node)
            is_right = [tree.tokens[child] == token for child in children]
            if children:
                self.observe(
                    [tree.confidences[child] for child in children],
                    [tree.ranks[child] for child in children],
                    is_right,
                )
            is_covered = any(is_right)
            right, num = self._coverage
            fade = 0.5 if num >= _MEMORY else 1.0
            self._coverage = (right * fade + is_covered, num * fade + 1)
            if not is_covered:
                return
            node = children[is_right.index(True)]

    def rates(self, confidences: Sequence[float], ranks: Sequence[int]) -> list[float]:
        """`estimates` as a list, looked up one by one where they are few."""
        if len(confidences) <= _FEW:
            return list(map(self.estimate, confidences, ranks))
        found: list[float] = self.estimates(confidences, ranks).tolist()
        return found

    def values(self, tree: CandidateTree) -> list[float]:
        """By node, the likelihood that it and all above it come true."""
        values = self.rates(tree.confidences, tree.ranks)
        for node, parent in enumerate(tree.parents):
            if parent != ROOT:
                values[node] *= values[parent]
        return values


def unexpanded(tree: CandidateTree, values: Sequence[float], num: int) -> float:
    """The summed value of the ``num`` likeliest nodes that have no successors yet."""
    if not tree.is_expanded(ROOT):
        return 1.0
    edge = [value for node, value in enumerate(values) if not tree.is_expanded(node)]
    return sum(heapq.nlargest(num, edge))

"""Estimate how likely a candidate is to be the target's token, from every verdict."""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from duodec.core.candidates import CandidateTree, TreeCursor
from duodec.core.draft import ROOT
from duodec.drafting import constants

NUM_RANKS = 4  # first, second, third, later
# where all bins of confidence but the first begin: finer near 0
EDGES = [(i / constants.NUM_BINS) ** 2 for i in range(1, constants.NUM_BINS)]


@dataclass(frozen=True)
class Prior:
    """Stands for ``weight`` labels of a node's candidates: how often the target's token is the
    first one, the second, the third, and a later one."""

    right: tuple[float, float, float, float]
    weight: float = constants.PRIOR_WEIGHT


EXPECTED = Prior(constants.EXPECTED)
HOPED = Prior(constants.HOPED, constants.HOPED_WEIGHT)
"""Of a draft model that drafts only if it is expected to pay, so that labels cost something."""


def _cell(confidence: float, rank: int) -> int:
    return bisect_right(EDGES, confidence) * NUM_RANKS + min(rank, NUM_RANKS - 1)


class Acceptance:
    """Acceptance by confidence and rank, for one source of candidates.

    A candidate is labelled when its parent turns out to be part of the text, whether it was scored
    or not; under a refused node nothing is known. The prior is the confidence itself.
    """

    def __init__(self) -> None:
        # the compiled library keeps their addresses: they are never replaced and never grow
        num_cells = constants.NUM_BINS * NUM_RANKS
        self.num_right = array("d", [0.0]) * num_cells  # labels of 1, by bin and rank
        self.num_seen = array("d", [0.0]) * num_cells
        # the same for whole sets of candidates: which of them was right, of how many sets
        self._right_by_rank = [0.0] * NUM_RANKS
        self._num_sets = 0.0
        self._covered: dict[Prior, list[float]] = {}  # until there are more labels

    @classmethod
    def doubting(cls, share: float) -> Acceptance:
        """One that begins with labels: the best candidates are expected to be right ``share`` times
        as often as they say, half at least."""
        known = cls()
        for bin_, (low, high) in enumerate(pairwise((0.0, *EDGES, 1.0))):
            known.num_seen[bin_ * NUM_RANKS] = constants.PRIOR_WEIGHT
            known.num_right[bin_ * NUM_RANKS] = (
                (2 * share - 1) * constants.PRIOR_WEIGHT * (low + high) / 2
            )
        return known

    def estimate(self, confidence: float, rank: int) -> float:
        """The likelihood that a candidate is the target's token, given that its parent is."""
        cell = _cell(confidence, rank)
        right = self.num_right[cell] + constants.PRIOR_WEIGHT * confidence
        return right / (self.num_seen[cell] + constants.PRIOR_WEIGHT)

    def observe(
        self,
        confidences: Sequence[float],
        ranks: Sequence[int],
        is_right: Sequence[bool],
        weight: float = 1.0,
    ) -> None:
        """Add labels of siblings, each of that weight."""
        # a dozen numbers: loops are faster than arrays here
        for confidence, rank, right in zip(confidences, ranks, is_right, strict=True):
            cell = _cell(confidence, rank)
            if self.num_seen[cell] >= constants.MEMORY:
                self.num_right[cell] *= 0.5
                self.num_seen[cell] *= 0.5
            self.num_right[cell] += weight * right
            self.num_seen[cell] += weight

    def covered(self, prior: Prior = EXPECTED) -> list[float]:
        """The likelihood that the target's token is the first of an expanded node's candidates, one
        of the first two, ..., any of them."""
        if prior not in self._covered:
            weight = self._num_sets + prior.weight
            pairs = zip(self._right_by_rank, prior.right, strict=True)
            shares = ((right + prior.weight * one) / weight for right, one in pairs)
            self._covered[prior] = list(accumulate(shares))
        return self._covered[prior]

    def label(self, confidences: Sequence[float], is_right: Sequence[bool]) -> None:
        """Add labels of all candidates of a draft model at a node, best first."""
        self.observe(confidences, range(len(confidences)), is_right, constants.MODEL_LABEL)
        if self._num_sets >= constants.MEMORY:
            self._right_by_rank = [right * 0.5 for right in self._right_by_rank]
            self._num_sets *= 0.5
        if any(is_right):
            self._right_by_rank[min(list(is_right).index(True), NUM_RANKS - 1)] += 1
        self._num_sets += 1
        self._covered.clear()

    def learn(self, tree: CandidateTree, tokens: Sequence[int], node: int = ROOT) -> None:
        """Label the tree's candidates along the tokens that were generated, from ``node`` on."""
        for token in tokens:
            if not tree.is_expanded(node):
                return
            children = tree.children(node)
            is_right = [tree.tokens[child] == token for child in children]
            self.label([tree.confidences[child] for child in children], is_right)
            if not any(is_right):
                return
            node = children[is_right.index(True)]

    def unexpanded(self, cursor: TreeCursor, num: int) -> float:
        """The summed value of the ``num`` likeliest nodes under a place that have no successors
        yet; a node's value is the likelihood that it and all above it come true."""
        if not cursor.is_expanded:
            return 1.0
        tree, total = cursor.tree, 0.0
        edge = [(-1.0, cursor.node)]
        while edge and num:
            negative, node = heapq.heappop(edge)
            if not tree.is_expanded(node):
                total, num = total - negative, num - 1
                continue
            for child in tree.children(node):
                rate = self.estimate(tree.confidences[child], tree.ranks[child])
                heapq.heappush(edge, (negative * rate, child))
        return total

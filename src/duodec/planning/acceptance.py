"""Estimate how likely a candidate is to be the target's token, from every verdict."""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

from duodec.core.candidates import CandidateTree, TreeCursor
from duodec.core.draft import ROOT
from duodec.drafting import constants

NUM_RANKS = 4  # the ranks are first, second, third, and later
# Every bin of confidence but the first begins at one of these. Bins are finer near 0.
EDGES = [(i / constants.NUM_BINS) ** 2 for i in range(1, constants.NUM_BINS)]

Expected = tuple[float, ...]
"""How often the target's token is the first candidate of a node, the second, ..., a later one."""
EXPECTED: Expected = constants.EXPECTED_BY_RANK[:NUM_RANKS]


def _cell(confidence: float, rank: int) -> int:
    return bisect_right(EDGES, confidence) * NUM_RANKS + min(rank, NUM_RANKS - 1)


class Acceptance:
    """Estimate acceptance by confidence and rank, for one source of candidates.

    A candidate is labelled when its parent turns out to be part of the text, whether it was scored
    or not. Under a rejected node nothing is known. The prior is the confidence itself.
    """

    def __init__(self) -> None:
        # The compiled library keeps the addresses of these arrays, so they are never replaced and
        # never grow.
        num_cells = constants.NUM_BINS * NUM_RANKS
        # These count right candidates, and all candidates, by bin and rank.
        self.num_right = array("d", [0.0]) * num_cells
        self.num_seen = array("d", [0.0]) * num_cells
        # These count whole sets of candidates: the rank that was right, and the number of sets.
        self._right_by_rank = [0.0] * NUM_RANKS
        self._num_sets = 0.0
        self._covered: dict[Expected, list[float]] = {}  # cached until more labels arrive

    @classmethod
    def doubting(cls, share: float) -> Acceptance:
        """Start with labels that lower the estimates: the best candidates are expected to be right
        ``share`` times as often as their confidence says. ``share`` is at least 0.5."""
        known = cls()
        for bin_, (low, high) in enumerate(pairwise((0.0, *EDGES, 1.0))):
            known.num_seen[bin_ * NUM_RANKS] = constants.PRIOR_WEIGHT
            known.num_right[bin_ * NUM_RANKS] = (
                (2 * share - 1) * constants.PRIOR_WEIGHT * (low + high) / 2
            )
        return known

    def estimate(self, confidence: float, rank: int) -> float:
        """Return the likelihood that a candidate is the target's token, given that its parent
        is."""
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
        """Label siblings; each label counts ``weight``."""
        # There are about a dozen numbers, for which loops are faster than arrays.
        for confidence, rank, right in zip(confidences, ranks, is_right, strict=True):
            cell = _cell(confidence, rank)
            if self.num_seen[cell] >= constants.MAX_LABELS:
                self.num_right[cell] *= 0.5
                self.num_seen[cell] *= 0.5
            self.num_right[cell] += weight * right
            self.num_seen[cell] += weight

    def covered(self, expected: Expected = EXPECTED) -> list[float]:
        """Return the likelihood that the target's token is the first candidate of an expanded node,
        one of the first two, ..., any of them. ``expected`` says how likely each of them is before
        anything is learned."""
        if expected not in self._covered:
            weight = constants.PRIOR_WEIGHT_OF_RANKS
            total = self._num_sets + weight
            pairs = zip(self._right_by_rank, expected, strict=True)
            shares = ((right + weight * one) / total for right, one in pairs)
            self._covered[expected] = list(accumulate(shares))
        return self._covered[expected]

    def label(self, confidences: Sequence[float], is_right: Sequence[bool]) -> None:
        """Label all candidates of a draft model at a node, best first."""
        self.observe(
            confidences, range(len(confidences)), is_right, constants.LABEL_WEIGHT_OF_MODEL
        )
        if self._num_sets >= constants.MAX_LABELS:
            self._right_by_rank = [right * 0.5 for right in self._right_by_rank]
            self._num_sets *= 0.5
        if any(is_right):
            self._right_by_rank[min(list(is_right).index(True), NUM_RANKS - 1)] += 1
        self._num_sets += 1
        self._covered.clear()

    def learn(self, tree: CandidateTree, tokens: Sequence[int], node: int = ROOT) -> None:
        """Label the tree's candidates along the generated tokens, from ``node`` on."""
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
        """Return the summed value of the ``num`` likeliest nodes below the cursor that have no
        successors yet. A node's value is the likelihood that the node and all of its ancestors are
        right."""
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

"""How likely a candidate is to be the target's token, learned from every verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT

_NUM_BINS = 12  # of confidence
_NUM_RANKS = 4  # first, second, third, later
_PRIOR_WEIGHT = 6.0  # labels that the prior counts as
_MEMORY = 400.0  # labels of a bin after which old ones fade


def _bin(confidence: float) -> int:
    """Finer near 1, where most of the acceptance is."""
    return min(_NUM_BINS - 1, int(_NUM_BINS * confidence**0.5))


@dataclass
class _Cell:
    """Labels of one kind of candidate: how many were right, of how many."""

    num_right: float = 0.0
    num: float = 0.0

    def rate(self, prior: float) -> float:
        """The part that was right, with ``prior`` counted as a few labels."""
        return (self.num_right + _PRIOR_WEIGHT * prior) / (self.num + _PRIOR_WEIGHT)

    def observe(self, is_right: bool) -> None:
        if self.num >= _MEMORY:
            self.num_right *= 0.5
            self.num *= 0.5
        self.num_right += is_right
        self.num += 1


class Acceptance:
    """Acceptance by confidence and rank, for one source of candidates.

    A candidate is labelled when its parent turns out to lie on the text, whether it was scored
    or not; under a refused node nothing is known. The prior is the confidence itself.
    """

    def __init__(self) -> None:
        self._cells = [[_Cell() for _ in range(_NUM_RANKS)] for _ in range(_NUM_BINS)]
        self._coverage = _Cell()

    def estimate(self, confidence: float, rank: int) -> float:
        """The likelihood that the target's token is this one."""
        cell = self._cells[_bin(confidence)][min(rank, _NUM_RANKS - 1)]
        return cell.rate(confidence)

    def observe(self, confidence: float, rank: int, is_right: bool) -> None:
        self._cells[_bin(confidence)][min(rank, _NUM_RANKS - 1)].observe(is_right)

    @property
    def coverage(self) -> float:
        """The likelihood that the target's token is among an expanded node's candidates."""
        return self._coverage.rate(0.6)

    def learn(self, tree: CandidateTree, tokens: Sequence[int]) -> None:
        """Label what the tree held possible along the tokens that came."""
        node = ROOT
        for token in tokens:
            if not tree.is_expanded(node):
                return
            found = None
            for rank, child in enumerate(tree.children(node)):
                is_right = tree.tokens[child] == token
                self.observe(tree.confidences[child], rank, is_right)
                if is_right:
                    found = child
            self._coverage.observe(found is not None)
            if found is None:
                return
            node = found

    def values(self, tree: CandidateTree) -> list[float]:
        """By node, the likelihood that it and all above it come true."""
        ranks = [0] * len(tree)
        for parent in (ROOT, *range(len(tree))):
            for rank, child in enumerate(tree.children(parent)):
                ranks[child] = min(rank, _NUM_RANKS - 1)
        values: list[float] = []
        for node, (parent, confidence) in enumerate(
            zip(tree.parents, tree.confidences, strict=True)
        ):
            own = self._cells[_bin(confidence)][ranks[node]].rate(confidence)
            values.append(own * values[parent] if parent != ROOT else own)
        return values

    def calibration(self) -> list[tuple[float, float, float]]:
        """For each bin of confidence that has labels: its middle, the part that was right, and
        how many labels it has."""
        found = []
        for i, cells in enumerate(self._cells):
            num = sum(cell.num for cell in cells)
            if num:
                right = sum(cell.num_right for cell in cells)
                found.append((((i + 0.5) / _NUM_BINS) ** 2, right / num, num))
        return found


def unexpanded(tree: CandidateTree, values: Sequence[float], num: int) -> float:
    """The summed value of the ``num`` likeliest nodes that have no successors yet."""
    if not tree.is_expanded(ROOT):
        return 1.0
    edge = [value for node, value in enumerate(values) if not tree.is_expanded(node)]
    if len(edge) <= num:
        return sum(edge)
    return float(np.partition(np.array(edge), -num)[-num:].sum())

"""Real targets whose draws or durations are given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from duodec.backends.paced import num_rows
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Distribution, Draw
from duodec.core.targets import Candidates, Query, Scores, Target
from duodec.errors import ComputeFailed
from duodec_lab.bench.beds.latency import LatencyCurve, PrefillCounter


@dataclass
class ClockedTarget(Target):
    """A real target on a clock of its own, on which a forward pass takes what ``curve`` says.

    Use `clock` for the session: it runs as the real one does between forward passes. Draws and
    candidates are part of the forward pass, as they are on a device.
    """

    target: Target
    curve: LatencyCurve
    _skew_s: float = 0.0
    _prefill: PrefillCounter = field(default_factory=PrefillCounter)

    def clock(self) -> float:
        """Seconds, as if the target had the latency of the curve."""
        return perf_counter() + self._skew_s

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        start = perf_counter()
        seconds = self.curve.seconds(num_rows(queries), self._prefill.num_new(queries))
        scores = [
            _DrawnScores.of(answer, query)
            for answer, query in zip(self.target.score(queries), queries, strict=True)
        ]
        self._skew_s += seconds - (perf_counter() - start)
        return list(scores)


@dataclass(frozen=True)
class _DrawnScores(Scores):
    """Scores whose draws and candidates are made."""

    scores: Scores
    draws: list[Draw | ComputeFailed]  # why there is none, for whoever asks
    tops: list[Candidates]

    @classmethod
    def of(cls, scores: Scores, query: Query) -> _DrawnScores:
        rows = range(scores.num_rows)
        tops = [scores.candidates(row) for row in rows] if query.num_candidates else []
        return cls(scores, [_drawn(scores, row) for row in rows], tops)

    @property
    def num_rows(self) -> int:
        return self.scores.num_rows

    def draw(self, row: int) -> Draw:
        draw = self.draws[row]
        if isinstance(draw, ComputeFailed):
            raise draw
        return draw

    def candidates(self, row: int) -> Candidates:
        return self.tops[row]

    def distribution(self, row: int) -> Distribution:
        return self.scores.distribution(row)

    def row_logits(self, row: int) -> Row:
        return self.scores.row_logits(row)


def _drawn(scores: Scores, row: int) -> Draw | ComputeFailed:
    try:
        return scores.draw(row)
    except ComputeFailed as error:
        return error

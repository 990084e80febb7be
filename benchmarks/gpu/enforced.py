"""Make a real target say a recorded text, at its own speed: for texts that no model here says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from duodec.backends.paced import TargetAround
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Distribution, Draw, Tokens
from duodec.core.targets import Candidates, Launched, Query, Scores
from duodec.errors import DistributionUnavailable
from duodec_lab.bench.beds.replay import ReplayScores


@dataclass
class EnforcedTarget(TargetAround):
    """A real target that draws a recorded text, wherever a row lies on it, and finds likely there
    what was recorded. Its own draws and candidates are made all the same, for their time."""

    recording: Tokens
    recorded: Mapping[int, Candidates] = field(default_factory=dict)
    """What was held likely, by the position of the token that was then drawn."""

    def launch(self, queries: Sequence[Query]) -> Launched:
        replayed = [ReplayScores(self.recording, query, self.recorded) for query in queries]
        return _Enforced(self.target.launch(queries), replayed)


@dataclass(frozen=True)
class _Enforced:
    """A forward pass under a recorded text."""

    launched: Launched
    replayed: Sequence[ReplayScores]

    @property
    def due_s(self) -> float:
        return self.launched.due_s

    def result(self) -> list[Scores]:
        pairs = zip(self.launched.result(), self.replayed, strict=True)
        return [_EnforcedScores(scores, replayed) for scores, replayed in pairs]


@dataclass(frozen=True)
class _EnforcedScores(Scores):
    """A real target's scores under a recorded text."""

    scores: Scores
    replayed: ReplayScores

    @property
    def num_rows(self) -> int:
        return self.scores.num_rows

    def draw(self, row: int) -> Draw:
        drawn = self.scores.draw(row)
        try:
            return self.replayed.draw(row)
        except DistributionUnavailable:  # off the recorded text
            return drawn

    def candidates(self, row: int) -> Candidates:
        found = self.scores.candidates(row)
        recorded = self.replayed.candidates(row)
        return recorded if recorded.tokens else found

    def keep(self, row: int) -> Callable[[], Candidates]:
        kept, recorded = self.scores.keep(row), self.replayed.candidates(row)
        return lambda: recorded if recorded.tokens else kept()

    def distribution(self, row: int) -> Distribution:
        return self.scores.distribution(row)

    def row_logits(self, row: int) -> Row:
        return self.scores.row_logits(row)

"""Stand-ins for hardware that is not here. Reports name them wherever they are used.

- `ReplayTarget` answers with a recorded text after a given latency: real drafts, real
  processes, real clocks; only the target's arithmetic is stood in for.
- `ClockedTarget` computes for real and reports a given latency in place of the time it took.
- `PacedTarget` computes for real and takes at least so long.
- `EnforcedTarget` computes for real and draws a given text: for texts that no model says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from time import perf_counter, sleep

from duodec.backends.curves import CostCurve
from duodec.backends.shapes import TREE, Shape
from duodec.core.draft import ROOT, Draft
from duodec.core.prefix import common_prefix
from duodec.core.protocols import (
    Candidates,
    Launched,
    Query,
    Scores,
    Target,
)
from duodec.core.rows import Row
from duodec.core.sampling import Distribution, Draw, Tokens
from duodec.core.traits import TargetCache, TargetTraits
from duodec.errors import ComputeFailed, DistributionUnavailable

_SPIN_S = 0.0002  # the last moments of a wait are spun: sleeping is not that exact


def wait_until(deadline: float, clock: Callable[[], float] = perf_counter) -> None:
    """Wait for a moment of ``clock``, to some microseconds."""
    rest = deadline - clock() - _SPIN_S
    if rest > 0:
        sleep(rest)
    while clock() < deadline:
        pass


@dataclass(frozen=True)
class LatencyCurve:
    """Seconds of a forward pass: by the rows that a backend of this shape computes, and
    ``prefill_s`` a token of the prompt."""

    forward: CostCurve
    prefill_s: float = 0.0
    shape: Shape = TREE

    @property
    def forward_s(self) -> float:
        """Of a forward pass of plain decoding."""
        return self.shape.seconds(self.forward, 1)

    def seconds(self, num_rows: int, num_new_tokens: int) -> float:
        """One forward pass of so many rows, after so many text tokens not read before."""
        return self.shape.seconds(self.forward, num_rows) + self.prefill_s * max(
            0, num_new_tokens - 1
        )


def num_rows(queries: Sequence[Query]) -> int:
    """Rows of a forward pass: one after each text, and one after each draft token."""
    return sum(1 + len(query.draft) for query in queries)


class _Reader:
    """How much of each slot's text a target has not read before."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tokens, Draft]] = {}

    def num_new(self, queries: Sequence[Query]) -> int:
        """Tokens that these queries add to what was read; the last token of a text is new."""
        total = 0
        for query in queries:
            known, draft = self._known.get(query.slot, (query.text[:0], Draft()))
            num_known = common_prefix(known, query.text)
            if num_known == len(known):  # what was scored as a draft needs no reading as text
                node = ROOT
                for token in query.text[num_known:].tolist():
                    child = draft.child(node, token)
                    if child is None:
                        break
                    node, num_known = child, num_known + 1
            total += len(query.text) - min(num_known, len(query.text) - 1)
            self._known[query.slot] = (query.text, query.draft)
        return total


@dataclass
class ReplayTarget(Target):
    """Replays one recorded text (prompt and completion) at a given latency.

    It enforces the text, so it proves nothing about exactness. A row off the recorded
    text, and any distribution, raises DistributionUnavailable.
    """

    recording: Tokens
    curve: LatencyCurve
    candidates: Mapping[int, Candidates] = field(default_factory=dict)
    """What the target held likely, by the position of the token that it then drew."""
    _reader: _Reader = field(default_factory=_Reader)

    traits = TargetTraits(launches=True, has_ready_candidates=True)

    def launch(self, queries: Sequence[Query]) -> Launched:
        start = perf_counter()
        seconds = self.curve.seconds(num_rows(queries), self._reader.num_new(queries))
        scores: list[Scores] = [
            ReplayScores(self.recording, query, self.candidates) for query in queries
        ]
        return _Due(scores, start + seconds)

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        return self.launch(queries).result()


@dataclass(frozen=True)
class _Due:
    """Scores that are given out at a moment."""

    scores: list[Scores]
    due_s: float

    def result(self) -> list[Scores]:
        wait_until(self.due_s)
        return self.scores


class ReplayScores:
    """The recorded token after every node that lies on the recorded text. All of it is known when
    it is made: on a device, draws are part of the forward pass."""

    def __init__(
        self, recording: Tokens, query: Query, known: Mapping[int, Candidates] | None = None
    ) -> None:
        """``known``: candidates by position."""
        text, draft, length = query.text, query.draft, len(recording)
        is_on = len(text) < length and common_prefix(text, recording) == len(text)
        # by row, the position of the token that follows it; None off the recorded text
        self._positions: list[int | None] = [len(text) if is_on else None]
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            above = self._positions[parent + 1]
            goes_on = above is not None and above + 1 < length and recording[above] == token
            self._positions.append(above + 1 if above is not None and goes_on else None)
        self._draws = {
            position: Draw(int(recording[position]), inf)
            for position in self._positions
            if position is not None
        }
        self._known = known or {}
        self._num_candidates = query.num_candidates

    @property
    def num_rows(self) -> int:
        return len(self._positions)

    def draw(self, row: int) -> Draw:
        position = self._positions[row]
        if position is None:
            raise DistributionUnavailable(
                f"row {row} lies off the recorded text, which a replay knows nothing of; "
                "run this method on a real target"
            )
        return self._draws[position]

    def candidates(self, row: int) -> Candidates:
        position = self._positions[row]
        found = None if position is None else self._known.get(position)
        return (found or Candidates()).first(self._num_candidates)

    def distribution(self, row: int) -> Distribution:
        raise DistributionUnavailable(
            "a replayed text has no distributions; run this method on a real or a clocked target"
        )

    def row_logits(self, row: int) -> Row:
        raise DistributionUnavailable("a replayed text has no logprobs; leave logprobs out")


@dataclass
class _Around(Target):
    """A target around another, which it leaves as it is but for what it overrides."""

    target: Target

    @property
    def traits(self) -> TargetTraits:
        return self.target.traits

    @property
    def on_chunk(self) -> Callable[[], None]:
        return self.target.on_chunk

    @on_chunk.setter
    def on_chunk(self, hook: Callable[[], None]) -> None:
        self.target.on_chunk = hook

    def cache_for(self, slot: int, *, reads_off_path: bool, is_alone: bool) -> TargetCache:
        return self.target.cache_for(slot, reads_off_path=reads_off_path, is_alone=is_alone)

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        return self.launch(queries).result()


@dataclass
class PacedTarget(_Around):
    """A real target whose forward passes take at least what ``curve`` says of their rows."""

    curve: CostCurve

    @cached_property
    def traits(self) -> TargetTraits:
        return self._paced(self.target.traits)

    def cache_for(self, slot: int, *, reads_off_path: bool, is_alone: bool) -> TargetCache:
        cache = super().cache_for(slot, reads_off_path=reads_off_path, is_alone=is_alone)
        return replace(cache, traits=self._paced(cache.traits))

    def _paced(self, traits: TargetTraits) -> TargetTraits:
        return replace(traits, launches=True, pace_s=self.curve.forward_s)

    def launch(self, queries: Sequence[Query]) -> Launched:
        start, seconds = perf_counter(), self.curve.seconds(num_rows(queries))
        scores = self.target.score(queries)
        return _Due(scores, max(perf_counter(), start + seconds))


@dataclass
class ClockedTarget(Target):
    """A real target on a clock of its own, on which a forward pass takes what ``curve`` says.

    Use `clock` for the session: it runs as the real one does between forward passes. Draws and
    candidates are part of the forward pass, as they are on a device.
    """

    target: Target
    curve: LatencyCurve
    _skew_s: float = 0.0
    _reader: _Reader = field(default_factory=_Reader)

    def clock(self) -> float:
        """Seconds, as if the target had the latency of the curve."""
        return perf_counter() + self._skew_s

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        start = perf_counter()
        seconds = self.curve.seconds(num_rows(queries), self._reader.num_new(queries))
        scores = [
            _DrawnScores.of(answer, query)
            for answer, query in zip(self.target.score(queries), queries, strict=True)
        ]
        self._skew_s += seconds - (perf_counter() - start)
        return list(scores)


@dataclass(frozen=True)
class _DrawnScores:
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


@dataclass
class EnforcedTarget(_Around):
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
class _EnforcedScores:
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

    def distribution(self, row: int) -> Distribution:
        return self.scores.distribution(row)

    def row_logits(self, row: int) -> Row:
        return self.scores.row_logits(row)

"""Decode a token of a separate text, shortly before a forward pass of the target ends.

While a target computes elsewhere, the host's core sleeps or runs other code. The code between two
forward passes then runs from cold caches and takes several times as long. A warm-up runs the same
code over one forward pass: a scheduler, a request of plain decoding, `verify`, its output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Protocol

from duodec.core.rows import Row
from duodec.core.sampling.sampler import Distribution, Draw
from duodec.core.targets import Candidates, Launched, Query, Scores, Target
from duodec.core.text import TextStream
from duodec.core.traits import TargetTraits
from duodec.errors import DistributionUnavailable
from duodec.methods.ar import Autoregressive
from duodec.methods.request import Request
from duodec.scheduler.scheduled_request import ScheduledRequest

_NUM_TOKENS = 512  # tokens of a text, before another one is begun
_TOKEN = 0


class Steps(Protocol):
    """Name what a warm-up needs of a scheduler."""

    def submit(self, entries: Sequence[ScheduledRequest]) -> None: ...
    def step(self) -> bool: ...


class WarmUp:
    """Decode a token on each call. ``scheduler`` makes a scheduler for a target."""

    def __init__(self, scheduler: Callable[[Target], Steps]) -> None:
        self._scheduler = scheduler(_Drawn())
        self._entry: ScheduledRequest | None = None

    def __call__(self) -> None:
        if self._entry is None or self._entry.is_over:
            request = Request((_TOKEN,), _NUM_TOKENS, stream=TextStream(lambda token: b"a"))
            self._entry = ScheduledRequest(request, Autoregressive(), lambda output: None)
            self._scheduler.submit([self._entry])
        self._scheduler.step()


class _Drawn(Target):
    """Compute nothing: each row draws the same token."""

    traits = TargetTraits(launches=True, keeps_candidates=True)

    def launch(self, queries: Sequence[Query]) -> Launched:
        return _Ready(tuple(_OneToken() for _ in queries))

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        return self.launch(queries).result()


@dataclass(frozen=True)
class _Ready:
    """Stand for a forward pass that is over."""

    scores: tuple[Scores, ...]
    due_s: float = inf

    def result(self) -> list[Scores]:
        return list(self.scores)


class _OneToken(Scores):
    """Hold the scores of one row."""

    num_rows = 1

    def draw(self, row: int) -> Draw:
        return Draw(_TOKEN, inf)

    def candidates(self, row: int) -> Candidates:
        return Candidates()

    def distribution(self, row: int) -> Distribution:
        raise DistributionUnavailable("a warm-up draws from no distribution")

    def row_logits(self, row: int) -> Row:
        raise DistributionUnavailable("a warm-up computes no logits")

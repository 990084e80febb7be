"""Slow a real target to the time that a curve gives: the `--pace` of a demonstration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter, sleep

from duodec.backends.curves import CostCurve
from duodec.core.targets import Launched, Query, Scores, Target
from duodec.core.traits import TargetCache, TargetTraits

_SPIN_S = 0.0002  # the last moments of a wait are spun, since sleeping is not that exact


def wait_until(deadline: float) -> None:
    """Wait for a moment of `perf_counter`, to some microseconds."""
    rest = deadline - perf_counter() - _SPIN_S
    if rest > 0:
        sleep(rest)
    while perf_counter() < deadline:
        pass


def num_rows(queries: Sequence[Query]) -> int:
    """Return the rows of a forward pass: one after each text, and one after each draft token."""
    return sum(1 + len(query.draft) for query in queries)


@dataclass(frozen=True)
class Due:
    """Give out scores at a moment."""

    scores: list[Scores]
    due_s: float

    def result(self) -> list[Scores]:
        wait_until(self.due_s)
        return self.scores


@dataclass
class TargetAround(Target):
    """Wrap a target, which stays as it is except for what this overrides."""

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

    def forget(self, slot: int) -> None:
        self.target.forget(slot)

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        return self.launch(queries).result()


@dataclass
class PacedTarget(TargetAround):
    """Slow a real target: its forward passes take at least what ``curve`` gives for their rows."""

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
        return Due(scores, max(perf_counter(), start + seconds))

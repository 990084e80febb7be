"""An engine for several slots: the target that computes them, and the cores it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from duodec.backends.llamacpp.streams import LlamaStreams
from duodec.backends.llamacpp.target import LlamaTarget
from duodec.backends.testbeds import PacedTarget
from duodec.config import EngineConfig
from duodec.core.protocols import Query, Scores, Target
from duodec.engine import Engine
from duodec.server.service import Service

_PASS_ROWS = 64  # of a target elsewhere: rows that cost as much as reading its weights once more


class Threaded(Target, Protocol):
    """A target whose threads can be set."""

    def use_threads_throughout(self, num_threads: int) -> None: ...


class SeparateTargets:
    """A target that is one target a slot, one forward after the other; ``another`` opens a slot's
    at its first query.

    In one cache, the branches of several texts fill each other's holes, and then attention sums in
    another order: bits would depend on who else is served. Apart, they cannot.
    """

    def __init__(self, first: Threaded, another: Callable[[], Threaded]) -> None:
        self._targets: dict[int, Threaded] = {0: first}
        self._another = another
        self._num_threads: int | None = None  # None: as they are made

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        return [scores for q in queries for scores in self._of(q.slot).score([q])]

    def use_threads_throughout(self, num_threads: int) -> None:
        self._num_threads = num_threads
        for target in self._targets.values():
            target.use_threads_throughout(num_threads)

    def _of(self, slot: int) -> Target:
        if slot not in self._targets:
            self._targets[slot] = self._another()
            if self._num_threads is not None:
                self._targets[slot].use_threads_throughout(self._num_threads)
        return self._targets[slot]


def start(service: Service, engine: Engine, config: EngineConfig) -> None:
    """Serve the engine with as many slots as were asked for; with one where its target keeps the
    text of one only."""
    target: Target = engine.target
    paced = target if isinstance(target, PacedTarget) else None
    if paced is not None:
        target = paced.target
    if not isinstance(target, LlamaTarget):
        num_slots = min(service.settings.num_slots, getattr(target, "num_slots", 1))
        service.start(engine, engine.target, num_slots=num_slots)
        return
    separate = SeparateTargets(target, _opening(target, engine, config))
    streams = _streams(service, engine, target, config)
    prepare = _preparing(engine, target, separate, streams)
    shared: Target = streams
    trees: Target = separate
    if paced is not None:
        shared, trees = (PacedTarget(own, paced.seconds) for own in (streams, separate))
    # alone, and where a forward's rows cost little, branches pay
    lone = trees if engine.can_overlap else None
    service.start(engine, shared, trees, lone, prepare=prepare)


def _opening(target: LlamaTarget, engine: Engine, config: EngineConfig) -> Callable[[], Threaded]:
    """How to open a context of its own over the same weights."""

    def another() -> LlamaTarget:
        other = LlamaTarget(
            target.context.model,
            num_context=engine.num_context,
            num_threads=num_threads,
            is_width_exact=engine.shares_cores and not config.fast,
        )
        engine.resources.callback(other.close)
        return other

    num_threads = target.context.num_threads
    return another


def _streams(
    service: Service, engine: Engine, target: LlamaTarget, config: EngineConfig
) -> LlamaStreams:
    """One context for the texts of all slots, over the same weights."""
    streams = LlamaStreams(
        target.context.model,
        num_slots=service.settings.num_slots,
        num_context=engine.num_context,
        num_threads=target.context.num_threads,
        is_width_exact=engine.shares_cores and not config.fast,
        pass_rows=1 if engine.shares_cores else _PASS_ROWS,
    )
    engine.resources.callback(streams.close)
    return streams


def _preparing(engine: Engine, first: LlamaTarget, *others: Threaded) -> Callable[[bool], None]:
    """The engine's way to share the cores, for all of its targets."""

    def prepare(is_beside: bool) -> None:
        engine.prepare(is_beside)
        for other in others:
            other.use_threads_throughout(first.context.num_threads)

    return prepare

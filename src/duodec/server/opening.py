"""An engine for several slots: the target that computes them, and the cores it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from duodec.backends.llamacpp.target import LlamaTarget
from duodec.backends.testbeds import PacedTarget
from duodec.config import EngineConfig
from duodec.core.protocols import Query, Scores, Target
from duodec.engine import Engine
from duodec.server.service import Service


@dataclass(frozen=True)
class SeparateTargets:
    """A target that is one target a slot, one forward after the other.

    In one cache, several texts fill each other's holes, and then attention sums in another order:
    bits would depend on who else is served. Apart, they cannot.
    """

    targets: Sequence[Target]

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        return [scores for q in queries for scores in self.targets[q.slot].score([q])]


def start(service: Service, engine: Engine, config: EngineConfig) -> None:
    """Serve the engine with as many slots as were asked for; with one where its target keeps the
    text of one only."""
    target: Target = engine.target
    rewrap: Callable[[Target], Target] = _same
    if isinstance(target, PacedTarget):
        rewrap = _paced(target.seconds)
        target = target.target
    if not isinstance(target, LlamaTarget):
        num_slots = min(service.settings.num_slots, getattr(target, "num_slots", 1))
        service.start(engine, engine.target, num_slots=num_slots)
        return
    others = [_another(target, engine, config) for _ in range(service.settings.num_slots - 1)]
    for other in others:
        engine.resources.callback(other.close)
    service.start(
        engine,
        rewrap(SeparateTargets([target, *others])),
        prepare=_preparing(engine, target, others),
    )


def _another(target: LlamaTarget, engine: Engine, config: EngineConfig) -> LlamaTarget:
    """A context of its own over the same weights."""
    return LlamaTarget(
        target.context.model,
        num_context=engine.num_context,
        num_threads=target.context.num_threads,
        is_width_exact=engine.shares_cores and not config.fast,
    )


def _preparing(
    engine: Engine, first: LlamaTarget, others: Sequence[LlamaTarget]
) -> Callable[[bool], None]:
    """The engine's way to share the cores, for all of its targets."""

    def prepare(is_beside: bool) -> None:
        engine.prepare(is_beside)
        for other in others:
            other.use_threads(first.context.num_threads)

    return prepare


def _same(target: Target) -> Target:
    return target


def _paced(seconds: float) -> Callable[[Target], Target]:
    return lambda target: PacedTarget(target, seconds)

"""Open the targets that compute several requests at once where one context cannot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from duodec.backends.llamacpp.streams import LlamaStreams
from duodec.backends.llamacpp.target import LlamaTarget
from duodec.backends.testbeds import PacedTarget
from duodec.core.protocols import Query, Scores, Target
from duodec.llm import LLM
from duodec.models.config import EngineConfig
from duodec.scheduler.slots import Targets

_PASS_ROWS = 64  # of a target elsewhere: rows that cost as much as another pass over its weights


class Threaded(Target, Protocol):
    """A target whose threads can be set."""

    def use_threads_throughout(self, num_threads: int) -> None: ...


class SeparateTargets(Target):
    """A target made of one target per slot, which run in turn; ``another`` opens a slot's target at
    its first query.

    In one cache, the branches of several texts fill each other's holes, and attention then sums in
    another order: bits would depend on the other requests. In separate contexts they cannot.
    """

    def __init__(self, first: Threaded, another: Callable[[], Threaded]) -> None:
        self._targets: dict[int, Threaded] = {0: first}
        self._another = another
        self._num_threads: int | None = None  # None: as they were opened

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


def share(llm: LLM, config: EngineConfig) -> None:
    """Let the model run as many requests at once as ``config`` asks for."""
    target: Target = llm.target
    paced = target if isinstance(target, PacedTarget) else None
    if paced is not None:
        target = paced.target
    if not isinstance(target, LlamaTarget):
        llm.num_slots = min(config.num_slots, getattr(target, "num_slots", 1))
        return
    llm.num_slots = config.num_slots
    if config.num_slots == 1:
        return
    separate = SeparateTargets(target, _opening(target, llm, config))
    streams = _streams(llm, target, config)
    llm.prepare = _preparing(llm.prepare, target, separate, streams)
    shared: Target = streams
    trees: Target = separate
    if paced is not None:
        shared, trees = (PacedTarget(own, paced.curve) for own in (streams, separate))
    # for one request branches pay
    llm.targets = Targets(shared, alone=trees, trees=trees)


def _opening(target: LlamaTarget, llm: LLM, config: EngineConfig) -> Callable[[], Threaded]:
    """A function that opens another context over the same weights."""

    def another() -> LlamaTarget:
        other = LlamaTarget(
            target.context.model,
            num_context=llm.num_context,
            num_threads=num_threads,
            is_width_exact=llm.shares_cores and not config.fast,
        )
        llm.resources.callback(other.close)
        return other

    num_threads = target.context.num_threads
    return another


def _streams(llm: LLM, target: LlamaTarget, config: EngineConfig) -> LlamaStreams:
    """Open one context for the texts of all slots, over the same weights."""
    streams = LlamaStreams(
        target.context.model,
        num_slots=config.num_slots,
        num_context=llm.num_context,
        num_threads=target.context.num_threads,
        is_width_exact=llm.shares_cores and not config.fast,
        pass_rows=1 if llm.shares_cores else _PASS_ROWS,
    )
    llm.resources.callback(streams.close)
    return streams


def _preparing(
    prepare: Callable[[bool], None], first: LlamaTarget, *others: Threaded
) -> Callable[[bool], None]:
    """Share the cores in the same way for all of the targets."""

    def prepare_all(is_drafting: bool) -> None:
        prepare(is_drafting)
        for other in others:
            other.use_threads_throughout(first.context.num_threads)

    return prepare_all

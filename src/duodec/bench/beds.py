"""Run methods on the real pair, on a replay, or on a clocked target.

A replay stands in for the arithmetic of a target on other hardware: real drafts come from the real
drafter process on its own cores, and one core is left to the target's side. Methods that read more
than the text's path run on a clocked target: real forward passes that take, on its clock, as long
as the replay's. Reports name both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

import numpy as np

from duodec.backends.loaded import RunningTarget, TargetModel
from duodec.backends.testbeds import ClockedTarget, EnforcedTarget, LatencyCurve, ReplayTarget
from duodec.bench.meters import bandwidth
from duodec.bench.recording import Turn
from duodec.core.events import Finished
from duodec.core.protocols import Datastore, Drafter, DraftRequest, Query, Target, Tokenizer
from duodec.core.sampling import Sampler, SamplingParams
from duodec.drafting.plans import Chain
from duodec.llm import LLM, load
from duodec.loading.config import EngineConfig
from duodec.loading.drafter import SentVocabulary, open_drafter
from duodec.loading.resolve import resolve_pair
from duodec.machine.cores import CorePlan, available_cores
from duodec.methods.method import Method
from duodec.planning.costs import Costs

_SLOT = 0
_ONE_TOKEN = np.zeros(1, dtype=np.int32)
_FORGET_S = 5.0


class Bed(Protocol):
    """Completes turns with a method. ``forward_s`` is the shortest forward pass that the target's
    latency, or its memory's bandwidth, allows."""

    @property
    def name(self) -> str: ...
    @property
    def forward_s(self) -> float: ...

    def answer(self, method: Method, turn: Turn, costs: Costs) -> Finished:
        """Complete one turn. Raises DuodecError."""

    def forget(self) -> None:
        """Make the next completion cold: neither side has cached its prompt."""


@dataclass
class RealBed:
    """The models themselves."""

    engine: LLM
    sampling: SamplingParams
    forward_s: float
    name: str = "real"

    def answer(self, method: Method, turn: Turn, costs: Costs) -> Finished:
        engine = replace(self.engine, costs=costs)
        return answered(engine, self.sampling, method, turn, turn.max_tokens)

    def forget(self) -> None:
        _forget(self.engine.target, self.engine.drafter)


@dataclass
class ReplayBed:
    """The recorded text, at the latency of a curve."""

    parts: Parts
    curve: LatencyCurve
    name: str = "replay"

    def __post_init__(self) -> None:
        self.forget()

    @property
    def forward_s(self) -> float:
        return self.curve.forward_s

    def answer(self, method: Method, turn: Turn, costs: Costs) -> Finished:
        self._target.recording = turn.tokens
        self._target.candidates = turn.candidates_by_position
        engine = self.parts.engine(self._target, costs)
        with on_cores(self.parts.target_cores):
            return answered(engine, self.parts.sampling, method, turn, len(turn.answer))

    def forget(self) -> None:
        self._target = ReplayTarget(_ONE_TOKEN, self.curve)
        _forget(None, self.parts.drafter)


@dataclass
class ClockedBed:
    """Real forward passes, with durations from a curve. With ``is_enforced`` the draws are the
    recording's, not the target's."""

    parts: Parts
    target: RunningTarget
    curve: LatencyCurve
    is_enforced: bool = False

    def __post_init__(self) -> None:
        self.name = "enforced" if self.is_enforced else "clocked"
        self.forget()

    @property
    def forward_s(self) -> float:
        return self.curve.forward_s

    def answer(self, method: Method, turn: Turn, costs: Costs) -> Finished:
        if self.is_enforced:
            self._clocked.target = EnforcedTarget(self.target, turn.tokens)
        cores = self.parts.target_cores if method.takes_draft_model else available_cores()
        engine = self.parts.engine(self._clocked, costs, self._clocked.clock)
        with on_cores(cores):
            self.target.use_threads(len(cores))
            return answered(engine, self.parts.sampling, method, turn, len(turn.answer))

    def forget(self) -> None:
        self._clocked = ClockedTarget(self.target, self.curve)
        _forget(self.target, self.parts.drafter)


@dataclass(frozen=True)
class Parts:
    """What replays and clocked targets share."""

    vocabulary: Tokenizer
    num_context: int
    drafter: Drafter | None
    datastore: Datastore | None
    sampling: SamplingParams
    target_cores: tuple[int, ...]

    def engine(self, target: Target, costs: Costs, clock: Callable[[], float] | None = None) -> LLM:
        engine = LLM(
            target,
            self.vocabulary,
            self.num_context,
            drafter=self.drafter,
            datastore=self.datastore,
            costs=costs,
        )
        return replace(engine, clock=clock) if clock else engine


@dataclass(frozen=True)
class Stage:
    """A loaded pair: an engine for its plain text, and beds once that is recorded."""

    recorder: LLM
    bed_for: Callable[[Method], Bed]
    facts: Mapping[str, str] = field(default_factory=dict)
    """Measurements from the start, for the record's settings."""


@contextmanager
def real_stage(config: EngineConfig, sampling: SamplingParams) -> Iterator[Stage]:
    """Load the pair on this machine. Raises what is wrong with its models."""
    with load(config) as engine:
        num_bytes = cast(TargetModel, engine.tokenizer).num_bytes
        # a GPU's memory is not measured here: there is no ceiling
        forward_s = num_bytes / bandwidth(len(available_cores())) if engine.shares_cores else 0.0
        bed = RealBed(engine, sampling, forward_s)
        yield Stage(engine, lambda method: bed)


@contextmanager
def replay_stage(
    config: EngineConfig,
    sampling: SamplingParams,
    curve: LatencyCurve,
    methods: Sequence[Method],
    *,
    is_enforced: bool,
) -> Iterator[Stage]:
    """Load the pair with its target replayed, or clocked if a method needs that."""
    with ExitStack() as stack:
        cores = available_cores()
        plan = CorePlan.make(cores, target_is_on_cpu=False, num_draft_threads=config.draft_threads)
        pair = resolve_pair(config)
        engine = stack.enter_context(load(pair.without_draft()))
        target, model = cast(RunningTarget, engine.target), engine.tokenizer
        drafter = None
        if pair.draft is not None and any(method.takes_draft_model for method in methods):
            drafter = open_drafter(pair, cast(SentVocabulary, model), engine.num_context, plan)
            stack.callback(drafter.close)
            drafter.wait_ready()
        rest = tuple(core for core in cores if core not in plan.draft_cores) or cores
        parts = Parts(model, engine.num_context, drafter, engine.datastore, sampling, rest)
        replayed = ReplayBed(parts, curve)
        clocked = ClockedBed(parts, target, curve, is_enforced)
        yield Stage(engine, lambda method: clocked if method.reads_off_path else replayed)


def answered(
    engine: LLM, sampling: SamplingParams, method: Method, turn: Turn, max_tokens: int
) -> Finished:
    params = replace(sampling, max_tokens=max_tokens)
    *_, last = engine.stream(turn.prompt_tokens, params, method=method)
    assert isinstance(last, Finished)
    return last


def _forget(target: Target | None, drafter: Drafter | None) -> None:
    """Replace both sides' caches by one token."""
    if target is not None:
        target.score([Query(_SLOT, _ONE_TOKEN)])
    if drafter is not None:
        drafter.submit(DraftRequest(_SLOT, _ONE_TOKEN, Chain(0), Sampler()))
        drafter.poll(_SLOT, _FORGET_S)


@contextmanager
def on_cores(cores: tuple[int, ...]) -> Iterator[None]:
    """Keep this thread to these cores, if the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)

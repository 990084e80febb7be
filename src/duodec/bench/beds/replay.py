"""Run methods on a replay, or on a clocked target.

A replay stands in for the arithmetic of a target on other hardware: real drafts come from the real
drafter process on its own cores, and one core is left to the target's side. Methods that read more
than the text's path run on a clocked target: real forward passes that take, on its clock, as long
as the replay's. Reports name both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import cast

from duodec.backends.loaded import RunningTarget
from duodec.backends.testbeds import ClockedTarget, EnforcedTarget, LatencyCurve, ReplayTarget
from duodec.bench.beds.base import ONE_TOKEN, Parts, Stage, answered, forget, on_cores
from duodec.bench.recording import Turn
from duodec.core.events import Finished
from duodec.core.sampling import SamplingParams
from duodec.llm import load
from duodec.loading.config import EngineConfig
from duodec.loading.drafter import SentVocabulary, open_drafter
from duodec.loading.resolve import resolve_pair
from duodec.machine.cores import CorePlan, available_cores
from duodec.methods.method import Method
from duodec.planning.costs import Costs


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
        self._target = ReplayTarget(ONE_TOKEN, self.curve)
        forget(None, self.parts.drafter)


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
        forget(self.target, self.parts.drafter)


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

"""What to expect on hardware that is not here: methods on a clock that nobody waits for.

The text is the recorded plain text of a target, the draft model runs for real, and the target's
latency is given: see `duodec.backends.forecast`. A fraction of the time of a replay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from duodec.backends.forecast import VirtualClock, VirtualDrafter, VirtualTarget
from duodec.backends.llamacpp.target import LlamaRecipe
from duodec.backends.testbeds import LatencyCurve
from duodec.bench.beds import Parts, Stage, answered
from duodec.bench.plan import BenchPlan, Entrant
from duodec.bench.recording import Turn
from duodec.bench.results import Generation, Results
from duodec.bench.run import OnProgress, Runner
from duodec.bench.scoring import score_text
from duodec.bench.tasks import Prompt
from duodec.config import CorePlan, available_cores
from duodec.core.draft import Draft
from duodec.core.protocols import DraftModel, RowQuery
from duodec.decoding.method import Method
from duodec.errors import BadOption
from duodec.events import Finished
from duodec.loading import EngineConfig, load
from duodec.models import resolve
from duodec.planning.costs import Costs


@dataclass
class VirtualBed:
    """Answers on a clock of its own."""

    parts: Parts
    model: DraftModel | None
    curve: LatencyCurve
    draft_speed: float = 1.0
    name: str = "forecast"

    @property
    def forward_s(self) -> float:
        return self.curve.forward_s

    def answer(self, method: Method, turn: Turn, costs: Costs) -> Finished:
        clock = VirtualClock()
        drafter = VirtualDrafter(self.model, clock, self.draft_speed) if self.model else None
        parts = replace(self.parts, drafter=drafter)
        engine = parts.engine(VirtualTarget(turn.tokens, self.curve, clock), costs, clock)
        clock.skip()
        return answered(engine, self.parts.sampling, method, turn, len(turn.answer))

    def forget(self) -> None:
        """The draft model reads one token in place of what it knows; target and drafter are new
        for each answer anyway."""
        if self.model is not None:
            self.model.rows(RowQuery(0, np.zeros(1, dtype=np.int32), Draft(), ()))


@dataclass
class Memory:
    """A journal that is kept in mind only."""

    generations: list[Generation] = field(default_factory=list)

    def keep(self, generation: Generation) -> None:
        self.generations.append(generation)

    def check_room(self) -> None: ...


@dataclass
class Forecaster(Runner):
    """Measures on virtual beds."""

    draft_speed: float = 1.0

    def _stage(self, entrants: Sequence[Entrant]) -> AbstractContextManager[Stage]:
        assert self.plan.replay_ms is not None, "a forecast is for a latency"
        curve = LatencyCurve(self.plan.replay_ms / 1e3, prefill_s=self.plan.prefill_ms / 1e3)
        needs_model = any(entrant.new().takes_draft_model for entrant in entrants)
        return virtual_stage(
            self.config, self.plan, curve, self.draft_speed, needs_model=needs_model
        )


def forecast(
    plan: BenchPlan, prompts: Sequence[Prompt], on_progress: OnProgress, draft_speed: float = 1.0
) -> Results:
    """The expected figures of a plan's methods, where the draft model is ``draft_speed`` times as
    fast as here. Raises DuodecError."""
    if not draft_speed > 0:
        raise BadOption(f"draft-speed is {draft_speed}; use a number above 0, or inf")
    off_path = [e.label for e in plan.entrants if e.new().reads_off_path]
    if off_path:
        raise BadOption(
            f"{', '.join(off_path)} cannot be forecast: what they draft depends on all that the "
            "target says; measure them with duodec bench --replay-ms"
        )
    memory = Memory()
    for config in plan.pairs():
        forecaster = Forecaster(
            plan, config, memory, score_text, on_progress, draft_speed=draft_speed
        )
        forecaster.run(prompts)
    settings = plan.settings("duodec plan", "", [f"{p.task}/{p.prompt_id}" for p in prompts])
    note = (
        f"A forecast for a target of {plan.replay_ms:g} ms a forward: the draft model ran here, "
        "its steps were timed, and nothing was waited for."
    )
    if draft_speed != 1:
        note += f" There, its steps take 1/{draft_speed:g} of that."
    return Results(memory.generations, {}, {**settings, "notes": [note], "is_complete": True})


@contextmanager
def virtual_stage(
    config: EngineConfig,
    plan: BenchPlan,
    curve: LatencyCurve,
    draft_speed: float,
    *,
    needs_model: bool,
) -> Iterator[Stage]:
    """Beds on clocks of their own, and an engine that records."""
    with load(replace(config, draft=None)) as engine:
        vocabulary = engine.tokenizer
        cores = CorePlan.make(
            available_cores(), target_is_on_cpu=False, num_draft_threads=config.draft_threads
        ).draft_cores
        model: DraftModel | None = None
        if needs_model and config.draft is not None:
            path = resolve(config.draft, offline=config.offline).path
            recipe = LlamaRecipe(
                path,
                engine.num_context,
                len(cores),
                vocabulary.num_vocab,
                max_window=config.draft_window,
            )
            model = recipe.load()
        parts = Parts(vocabulary, engine.num_context, None, engine.datastore, plan.sampling, cores)
        bed = VirtualBed(parts, model, curve, draft_speed)
        yield Stage(engine, lambda method: bed)

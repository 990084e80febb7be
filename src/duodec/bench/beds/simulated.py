"""Run every method on a virtual clock: see `duodec.bench.beds.virtual`.

`duodec bench --simulate-ms` writes its figures to a folder like any other run; `duodec plan` only
shows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import cast

import numpy as np

from duodec.backends.llamacpp.drafts.recipe import LlamaRecipe
from duodec.bench.beds import Parts, Stage, answered
from duodec.bench.beds.host import HostPrices
from duodec.bench.beds.host import measured as measured_host
from duodec.bench.beds.latency import LatencyCurve
from duodec.bench.beds.virtual import (
    HANDOVER_S,
    PricedModel,
    RowKey,
    SimulatedDrafter,
    SimulatedTarget,
    StepTable,
    VirtualClock,
    innermost,
)
from duodec.bench.plan import BenchPlan
from duodec.bench.recording import Turn
from duodec.core.candidates import TreeCursor
from duodec.core.draft import Draft
from duodec.core.events import Finished
from duodec.core.protocols import Candidates, DraftModel, RowQuery, Target
from duodec.llm import LLM, load
from duodec.loading.config import EngineConfig
from duodec.loading.drafter import SentVocabulary, recipe_for
from duodec.loading.resolve import resolve_pair
from duodec.machine.core_plan import CorePlan
from duodec.machine.cores import CoreSharing
from duodec.machine.topology import Topology
from duodec.methods.method import Method
from duodec.planning.acceptance import Acceptance
from duodec.planning.costs import Costs
from duodec.planning.mixing import Mixer
from duodec.planning.planner import Planner
from duodec.planning.sources import TextMemory, TextSources, TreeSource

_TABLE_TOKENS = (1, 2, 4, 8, 16, 32, 64)  # of the draft steps that are measured
_TABLE_TEXT = 100  # tokens of context
_TABLE_RUNS = 9
_READ_TOKENS = 512
_SLOT = 0


@dataclass
class SimulatedBed:
    """Completes each turn on its own clock."""

    parts: Parts
    target: Target
    model: PricedModel | None
    curve: LatencyCurve
    host: HostPrices = field(default_factory=HostPrices)
    known: dict[tuple[int, ...], dict[RowKey, Candidates]] = field(default_factory=dict)
    """Rows off the recorded texts, by the tokens of the text; of the latest turn only."""
    name: str = "simulated"
    handover_s: float = HANDOVER_S
    """For a message to the drafter's process, and for one back."""
    _models: dict[int, tuple[Costs, PricedModel]] = field(default_factory=dict, init=False)
    """By costs: what the draft model measures of itself is one method's own, as its costs are."""

    @property
    def forward_s(self) -> float:
        return self.curve.forward_s

    def answer(self, method: Method, turn: Turn, costs: Costs) -> Finished:
        clock = VirtualClock()
        model = self._model(costs)
        drafter = SimulatedDrafter(model, clock, self.handover_s) if model else None
        if model and self.parts.cores.takes_turns() and not costs.knows_step:
            step_s = model.table.seconds(1)  # as loading times it
            costs.observe_step(step_s)
            costs.observe_root(step_s)
            costs.observe_read(_READ_TOKENS, model.table.seconds(_READ_TOKENS))
        if not costs.is_measured:  # as loading measures it
            curve = self.curve
            costs.teach_rows({n: curve.forward.seconds(n) for n in curve.shape.widths.each})
        key = turn.prompt_tokens + turn.answer
        if key not in self.known:
            self.known = {key: {}}
        target = SimulatedTarget(
            self.target,
            turn.tokens,
            self.curve,
            clock,
            turn.candidates_by_position,
            self.known[key],
            self.host,
        )
        engine = replace(self.parts, drafter=drafter).engine(target, costs, clock)
        return answered(engine, self.parts.sampling, method, turn, len(turn.answer))

    def _model(self, costs: Costs) -> PricedModel | None:
        if self.model is None:
            return None
        if id(costs) not in self._models:
            self._models[id(costs)] = (costs, self.model.anew())
        return self._models[id(costs)][1]

    def in_turns(self, model: PricedModel) -> SimulatedBed:
        """The same target with its draft model on its own device: no message goes between them."""
        parts = replace(self.parts, cores=CoreSharing(takes_turns=lambda: True))
        return replace(self, parts=parts, model=model, handover_s=0.0)

    def forget(self) -> None:
        """Replace the draft model's cache by one token; target and drafter are new for each
        completion."""
        if self.model is not None:
            self.model.rows(RowQuery(_SLOT, np.zeros(1, dtype=np.int32), Draft(), ()))


@contextmanager
def simulated_stage(config: EngineConfig, plan: BenchPlan, *, needs_model: bool) -> Iterator[Stage]:
    """A bed on virtual time, and an engine that records. The stage reports its cost table."""
    pair = resolve_pair(config)
    with load(pair.without_draft()) as engine:
        vocabulary = engine.tokenizer
        cores = CorePlan.make(
            Topology.read(), target_is_on_cpu=False, num_draft_threads=config.draft_threads
        ).draft_cores
        parts = Parts(vocabulary, engine.num_context, None, engine.datastore, plan.sampling, cores)
        model, table = None, None
        if needs_model and pair.draft is not None:
            loaded = draft_model(pair.draft.path, config, parts)
            # as it is recorded: whoever gives it back gets the same figures
            table = StepTable.parse(plan.draft_ms or str(measured(innermost(loaded))))
            model = PricedModel(loaded, table.faster(plan.draft_speed))
        host = HostPrices.parse(plan.host_us or str(_host(engine)))
        latency = plan.latency(host)
        bed = SimulatedBed(parts, engine.target, model, latency, host)
        if model is not None and config.draft_device == "gpu":
            bed = bed.in_turns(model)
        facts = {"host_us": str(host), "simulate_as": latency.shape.words}
        if table:
            facts["draft_ms"] = str(table)
        yield Stage(engine, lambda method: bed, facts)


def _host(engine: LLM) -> HostPrices:
    """The prices of the host's work on this machine."""
    planner = Planner(Costs(), Acceptance())
    texts, nothing = TextSources(TextMemory(), np.zeros(1, np.int32)), np.zeros(1, np.int32)

    def select(place: TreeCursor) -> object:
        sources = [TreeSource(place.tree, planner.acceptance), *texts.sources(nothing)]
        return planner.select(sources, Mixer(), planner.num_tokens, 24)

    return measured_host(engine.target, engine.tokenizer.num_vocab, select)


def draft_model(path: Path, config: EngineConfig, parts: Parts) -> DraftModel:
    """The draft model of a bed, in this process."""
    recipe = LlamaRecipe(
        path,
        parts.num_context,
        len(parts.target_cores),
        parts.vocabulary.num_vocab,
        max_window=config.draft_window,
        num_head=config.draft_head,
        has_small_weights=config.draft_weights == "auto",
        num_parallel=config.draft_parallel,
    )
    return recipe_for(cast(SentVocabulary, parts.vocabulary), recipe).load()


def measured(model: DraftModel) -> StepTable:
    """Measure a draft model's forward passes: medians after a short text."""
    rng = np.random.default_rng(0)
    text = rng.integers(0, 1000, _TABLE_TEXT).astype(np.int32)
    points = []
    for num in _TABLE_TOKENS:
        seconds = []
        for run in range(_TABLE_RUNS):
            model.rows(RowQuery(_SLOT, text, Draft(), (0,)))
            tree = Draft(tuple(range(run * num, (run + 1) * num)), (-1,) * num)
            start_s = perf_counter()
            model.rows(RowQuery(_SLOT, text, tree, tuple(range(1, num + 1))))
            seconds.append(perf_counter() - start_s)
        points.append((num, median(seconds)))
    return StepTable(tuple(points))

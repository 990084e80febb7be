"""Run every method on a virtual clock: see `duodec_lab.bench.beds.virtual`.

`duodec bench --simulate-ms` writes its figures to a folder like any other run; `duodec plan` only
shows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np

from duodec.backends.llamacpp.drafts.recipe import LlamaRecipe
from duodec.core.draft import Draft
from duodec.core.drafters import DraftModel, RowQuery
from duodec.core.events import Finished
from duodec.core.targets import Candidates, Target
from duodec.llm import load
from duodec.loading.config import EngineConfig
from duodec.loading.drafter import SentVocabulary, recipe_for
from duodec.loading.resolve import resolve_pair
from duodec.loading.vetting import vetted
from duodec.machine.core_plan import CorePlan
from duodec.machine.cores import CoreSharing
from duodec.machine.topology import Topology
from duodec.methods.method import Method
from duodec.planning.costs import Costs
from duodec_lab.bench.beds import Parts, Stage, answered, prices
from duodec_lab.bench.beds.host import HostPrices
from duodec_lab.bench.beds.latency import LatencyCurve
from duodec_lab.bench.beds.virtual import (
    PricedModel,
    RowKey,
    SimulatedDrafter,
    SimulatedTarget,
    StepTable,
    VirtualClock,
)
from duodec_lab.bench.plan import BenchPlan
from duodec_lab.bench.recording import Turn

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
    _models: dict[int, tuple[Costs, PricedModel]] = field(default_factory=dict, init=False)
    """By costs: what the draft model measures of itself is one method's own, as its costs are."""

    @property
    def forward_s(self) -> float:
        return self.curve.forward_s

    def answer(self, method: Method, turn: Turn, costs: Costs) -> Finished:
        clock = VirtualClock()
        model = self._model(costs)
        drafter = SimulatedDrafter(model, clock, self.host.handover) if model else None
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
            self._models[id(costs)] = (costs, self.model.fresh())
        return self._models[id(costs)][1]

    def in_turns(self, model: PricedModel) -> SimulatedBed:
        """The same target with its draft model on its own device: no message goes between them."""
        parts = replace(self.parts, cores=CoreSharing(takes_turns=lambda: True))
        return replace(self, parts=parts, model=model, host=replace(self.host, handover=0.0))

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
        cores = CorePlan.make(
            Topology.read(), target_is_on_cpu=False, num_draft_threads=config.draft_threads
        )
        parts = Parts(
            engine.loaded.tokenizer,
            engine.loaded.num_context,
            None,
            engine.loaded.datastore,
            plan.sampling,
            cores.draft_cores,
        )
        loaded = None
        if needs_model and pair.draft is not None:
            loaded = draft_model(vetted(pair.draft).path, config, parts)
        host_us, draft_ms = plan.host_us, plan.draft_ms
        if host_us is None or (loaded is not None and draft_ms is None):
            with prices.drafter_of(pair, engine, cores, loaded) as drafter:
                here = replace(parts, drafter=drafter, target_cores=cores.launch_cores)
                # as they are recorded: whoever gives them back gets the same figures
                host_us = host_us or str(prices.of_host(engine, here))
                if drafter is not None and loaded is not None:
                    draft_ms = draft_ms or str(prices.of_steps(drafter, loaded))
        host = HostPrices.parse(host_us)
        facts = {"host_us": str(host)}
        model = None
        if loaded is not None:
            table = StepTable.parse(str(draft_ms))
            facts["draft_ms"] = str(table)
            model = PricedModel(loaded, table.faster(plan.draft_speed))
        latency = plan.latency(host)
        bed = SimulatedBed(parts, engine.loaded.target, model, latency, host)
        if model is not None and config.draft_device == "gpu":
            bed = bed.in_turns(model)
        facts["simulate_as"] = latency.shape.words
        yield Stage(engine, lambda method: bed, facts)


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

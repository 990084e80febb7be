"""Decode with `auto` on virtual clocks, where its constants have something to do.

- Recorded texts of a pair, on curves of cards and of a CPU. Rows of the draft model are kept; one
  that no run has needed before is computed. The target's rows off the texts say nothing here.
- Tables on steep curves, whose first tokens tell what learning a curve costs.
- Long texts whose drafts pay in one part and fail in the next: trials fail, rest, and are repeated.
- Several requests at once.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.decoding import grid
from benchmarks.decoding.kept import KeptRows
from benchmarks.decoding.simulated import prompts_of
from duodec.backends.curves import CostCurve
from duodec.core.drafters import DraftModel, RowQuery
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Context, Sampler, SamplingParams
from duodec.core.targets import Candidates, Query, Scores, Target
from duodec.llm import load
from duodec.loading.config import EngineConfig
from duodec.loading.resolve import resolve_pair
from duodec.methods.registry import method as method_named
from duodec.methods.request import Request
from duodec.planning.costs import Costs
from duodec.scheduler.scheduled_request import ScheduledRequest
from duodec.scheduler.scheduler import Scheduler
from duodec.testing import TableModel, TableTarget
from duodec_lab.bench.beds import Parts
from duodec_lab.bench.beds.host import HostPrices
from duodec_lab.bench.beds.latency import LatencyCurve
from duodec_lab.bench.beds.shapes import Shape
from duodec_lab.bench.beds.simulated import draft_model
from duodec_lab.bench.beds.virtual import (
    PricedModel,
    RowKey,
    SimulatedDrafter,
    SimulatedTarget,
    StepTable,
    VirtualClock,
)
from duodec_lab.bench.plan import BenchPlan
from duodec_lab.bench.recording import Turn, record
from duodec_lab.bench.tasks import TASKS

_COPY_S, _READ = 24e-6, 512
_HOST = HostPrices.parse("copy:24,draw:40,candidates:40,selection:40")
_GRID = {  # shapes of T(n), and draft models
    "slope 0.3": ("good", "none"),
    "slope 0.75": ("none",),
    "cpu": ("good", "none"),
    "cliff after 8": ("good",),
    "cliff after 32": ("good",),
}
_LENGTHS = (20, 60)
_PART = 80  # tokens of a long text between two changes


def all_cells(paths: Sequence[Path], tables: Sequence[str]) -> dict[str, float]:
    """How many times as fast as plain decoding `auto` is, by cell; ``paths`` hold worlds.
    ``tables`` are names of `TABLES`."""
    found: dict[str, float] = {}
    for path in paths:
        found |= pair_cells(path)
    for name in tables:
        found |= TABLES[name]()
    return found


# --- pairs


@dataclass
class World:
    """What is known of a pair. A step of its draft model takes ``draft_ms`` on a core, and
    ``step_ms`` on the target's card. ``curves`` are CURVE@SHAPE, with +gpu where the draft model
    runs on the target's card, and +turns where on the target's cores."""

    name: str
    target: str
    draft: str
    draft_ms: str
    step_ms: float
    curves: Sequence[str]
    num_vocab: int = 0
    turns: Sequence[Turn] = ()
    drafted: dict[bytes, Any] = field(default_factory=dict)
    """The draft model's rows, as `kept.KeptRows` has them."""

    @property
    def config(self) -> EngineConfig:
        plan = BenchPlan(targets=(self.target,), drafts=(self.draft,), methods=("auto",))
        return replace(plan.pairs()[0], threads=1, draft_head=0)

    def recorded(self, data: Path | None, limit: int, skip: int, max_tokens: int) -> World:
        """The world with the target's plain texts."""
        prompts, _ = prompts_of(data, TASKS, limit, 0, skip)
        with load(resolve_pair(self.config).without_draft()) as engine:
            turns: list[Turn] = []
            for conversation in record(engine, prompts, SamplingParams(), max_tokens):
                assert not conversation.error, conversation
                turns += conversation.turns
            return replace(self, turns=turns, num_vocab=engine.loaded.tokenizer.num_vocab)

    @contextmanager
    def draft_model(self) -> Iterator[DraftModel]:
        """The real one."""
        pair = resolve_pair(self.config)
        assert pair.draft is not None
        with load(pair.without_draft()) as engine:
            own = engine.loaded
            parts = Parts(own.tokenizer, own.num_context, None, None, SamplingParams(), (0,))
            yield draft_model(pair.draft.path, self.config, parts)


class _LateModel(DraftModel):
    """Loaded when its first row is asked for."""

    def __init__(self, world: World, stack: ExitStack) -> None:
        self._world, self._stack = world, stack
        self._model: DraftModel | None = None

    def rows(self, query: RowQuery) -> list[Row]:
        if self._model is None:
            self._model = self._stack.enter_context(self._world.draft_model())
            self._model.compute_alone(True)  # a row must not depend on what was asked for before
        return self._model.rows(query)


class _Silent(Target):
    """Nothing is ever asked of it: rows off the texts are `_Unknown`."""

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        raise AssertionError("a row off the texts was computed")


class _Unknown(dict[RowKey, Candidates]):
    def get(self, key: RowKey, default: Any = None) -> Candidates:
        return Candidates()


def pair_cells(path: Path) -> dict[str, float]:
    """The speeds of a pair on its curves. Rows that are computed join its file."""
    world: World = pickle.loads(path.read_bytes())  # written by `ablation` and here alone
    found = {}
    with ExitStack() as stack:
        late = _LateModel(world, stack)
        for name in world.curves:
            num_rows = len(world.drafted)
            draft = KeptRows(late, world.drafted, world.num_vocab)
            found[f"{world.name}, {name}"] = _on_curve(world, name, draft)
            if len(world.drafted) > num_rows:
                path.write_bytes(pickle.dumps(world))
    return found


def _on_curve(world: World, name: str, draft: DraftModel) -> float:
    place, _, kind = name.partition("+")
    text, _, shape = place.partition("@")
    forward, costs = CostCurve.parse(text), Costs()
    curve = LatencyCurve(forward, 1e-4, Shape.parse(shape, forward, _COPY_S))
    table, host = StepTable.parse(world.draft_ms), _HOST
    if kind == "gpu":
        table = StepTable(((1, world.step_ms / 1e3), (2, world.step_ms / 1e3)))
    if kind:  # as loading measures it
        host = replace(host, handover=0.0)
        costs.observe_step(table.seconds(1))
        costs.observe_root(table.seconds(1))
        costs.observe_read(_READ, table.seconds(_READ))
    costs.teach_rows({n: forward.seconds(n) for n in curve.shape.widths.each})
    method, model = method_named("auto"), PricedModel(draft, table)
    num_tokens, seconds = 0, 0.0
    for turn in world.turns:
        clock = VirtualClock()
        bed = SimulatedTarget(
            _Silent(), turn.tokens, curve, clock, turn.candidates_by_position, _Unknown(), host
        )
        request = Request(
            turn.prompt_tokens,
            len(turn.tokens),
            SimulatedDrafter(model, clock, host.handover),
            Sampler(num_prompt_tokens=len(turn.prompt_tokens)),
            costs=costs,
            clock=clock,
            shares_cores=kind == "turns",
            takes_turns=bool(kind),
        )
        scheduler = Scheduler(bed, costs, clock=clock)
        scheduler.submit([ScheduledRequest(request, method, lambda output: None)])
        while scheduler.step():
            pass
        assert tuple(request.text.tolist()) == turn.prompt_tokens + turn.answer, "another text"
        rounds = request.rounds
        num_tokens += sum(len(one.tokens) for one in rounds[1:])
        seconds += rounds[-1].end_s - rounds[0].end_s
    plain_s = curve.forward_s + host.draw
    if not curve.shape.draws_on_device:
        plain_s += host.copy * curve.shape.num_computed(1)
    return num_tokens * plain_s / seconds


# --- tables


def grid_cells() -> dict[str, float]:
    """The speeds in the first tokens on steep curves."""
    found = {}
    for case in grid.CASES:
        if case.milliseconds == 25.0 and case.draft in _GRID.get(case.shape, ()):
            done = grid.rounds(case.curve, grid.DRAFTS[case.draft], num_tokens=_LENGTHS[-1] + 2)
            speeds = grid.speedups(done, case.curve.forward_s, _LENGTHS)
            for length, value in zip(_LENGTHS, speeds, strict=True):
                found[f"{case.shape}, {case.draft} draft, {length} tokens"] = value
    return found


class _Varied(TableModel):
    """Another table in each part of a text, and a draft model that is good in every second one."""

    def logits(self, context: Context) -> Row:
        part = context.position // _PART
        noise = self.noise if part % 2 else min(0.9, 5 * self.noise)
        return TableModel(self.num_vocab, self.order, part, noise).logits(context)


def long_cells() -> dict[str, float]:
    """The speeds in texts that change."""
    found = {}
    for shape, in_turns in (("slope 0.3", False), ("steps", False), ("cpu, flat kernels", True)):
        curve = grid.scaled(grid.SHAPES[shape], 0.025)
        done = grid.rounds(
            curve, 0.15, target=_Varied(num_vocab=64, order=2), num_tokens=4 * _PART,
            shares_cores=in_turns, takes_turns=in_turns,
        )  # fmt: skip
        name = f"long, {shape}{', in turns' * in_turns}"
        (found[name],) = grid.speedups(done, curve.forward_s, (4 * _PART - 2,))
    return found


class _TimedTable(TableTarget):
    """A table whose forward passes take the time of a curve."""

    curve: CostCurve
    clock: VirtualClock

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        self.clock.advance(self.curve.seconds(sum(1 + len(query.draft) for query in queries)))
        return super().score(queries)


def batch_cells() -> dict[str, float]:
    """The speeds of several requests at once, without a draft model."""
    found = {}
    for shape in ("slope 0.15", "slope 0.5"):
        curve = grid.scaled(grid.SHAPES[shape], 0.025)
        for num in (2, 5):
            plain, own = (_batch_s(name, curve, num) for name in ("ar", "auto"))
            found[f"batch of {num}, {shape}"] = plain / own
    return found


def _batch_s(name: str, curve: CostCurve, num_requests: int, num_tokens: int = 60) -> float:
    target = _TimedTable(TableModel(num_vocab=16, order=2, seed=5))
    target.curve, target.clock = curve, VirtualClock()
    scheduler = Scheduler(target, num_slots=num_requests, clock=target.clock)
    method, entries = method_named(name), []
    for number in range(num_requests):
        prompt = (3, 1, 4, number)
        request = Request(
            prompt, len(prompt) + num_tokens, sampler=Sampler(num_prompt_tokens=len(prompt)),
            costs=scheduler.costs, clock=target.clock,
        )  # fmt: skip
        entries.append(ScheduledRequest(request, method, lambda output: None))
    scheduler.submit(entries)
    while scheduler.step():
        pass
    return target.clock()


TABLES = {"grid": grid_cells, "long": long_cells, "batch": batch_cells}

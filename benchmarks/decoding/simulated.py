"""Compare every method with the default on a virtual clock, on several curves of T(n).

Real rows and drafts, durations from tables, so the figures are the same on any machine
(`duodec.bench.beds.virtual`). Rows off the recorded text are computed once for all curves. The
ceiling is `auto` with a draft model that takes no time.

    python -m benchmarks simulated --data FOLDER --limit 5 --max-tokens 48

A curve is written CURVE@SHAPE, as in `--simulate-ms` and `--simulate-as`; several by semicolons.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.progress import track

from benchmarks import Figures
from duodec.bench.beds.simulated import SimulatedBed, simulated_stage
from duodec.bench.beds.virtual import PricedModel, RowKey, StepTable
from duodec.bench.plan import BenchPlan
from duodec.bench.recording import Conversation, record
from duodec.bench.tasks import TASKS, read_prompts
from duodec.core.protocols import Candidates
from duodec.core.round import Stats
from duodec.loading.config import EngineConfig
from duodec.methods.method import Method
from duodec.methods.registry import method as method_named
from duodec.planning.costs import Costs

ALL = "all tasks"
CEILING = "ceiling"
_DRAFT_MS = "1:1.4,2:1.6,4:1.9,8:2.9,16:5.1,32:10,64:20.5"  # one core of the development machine
_HOST_US = "copy:8,draw:120,candidates:60,selection:40"  # its host, loaded
_METHODS = "ar,lookup,recycling,sps:2,pearl,duo,auto"
_CURVES = ";".join(
    (
        "rtx3090-8b-q4_0@llama.cpp",
        "rtx4090-8b-q4_0@llama.cpp",
        "rtx4090-8b-bf16@torch",
        "mi50-27b-q8_0@llama.cpp",
        "roofline:1008GB/s,165TFLOPS,4.0GB@llama.cpp",  # a 7B of 4.5 bits, a consumer's card
        "roofline:3350GB/s,989TFLOPS,13.5GB,16bit@torch",  # of 16 bits, a data centre's
        "25@tree",  # the limit
    )
)


@dataclass
class Sum:
    """Sums over the forward passes after the first, which prefills the prompt."""

    num_tokens: int = 0
    num_forwards: int = 0
    seconds: float = 0.0

    def add(self, stats: Stats) -> None:
        self.num_tokens += sum(len(r.tokens) for r in stats.rounds[1:])
        self.num_forwards += len(stats.rounds) - 1
        self.seconds += stats.decode_s

    @property
    def rate(self) -> float:
        return self.num_tokens / self.seconds if self.seconds else math.nan


@dataclass
class Runs:
    """One curve: its bed, each method with what it learns, and its sums by method and task."""

    bed: SimulatedBed
    free: SimulatedBed
    methods: dict[str, Method]
    costs: dict[str, Costs]
    sums: dict[tuple[str, str], Sum]

    def speedup(self, method: str, task: str) -> float:
        """Tokens a second over those of plain decoding in passes of one row, as it is without us:
        ours are padded where a row's bits need it, and `ar` too."""
        curve, plain = self.bed.curve, self.sums["ar", task]
        num_padded = curve.shape.num_computed(1) - 1
        excess_s = curve.forward_s - curve.forward.seconds(1)
        if not curve.shape.draws_on_device:
            excess_s += self.bed.host.copy * num_padded
        alone_s = plain.seconds - plain.num_forwards * excess_s
        return self.sums[method, task].rate * alone_s / plain.num_tokens

    def answer(
        self, conversation: Conversation, known: dict[tuple[int, ...], dict[RowKey, Candidates]]
    ) -> None:
        for name, method in self.methods.items():
            bed = self.free if name == CEILING else self.bed
            bed.forget()
            for turn in conversation.turns:
                key = turn.prompt_tokens + turn.answer
                bed.known = {key: known[key]}
                answer = bed.answer(method, turn, self.costs[name])
                assert answer.tokens == turn.answer, f"{name} gives another text"
                for task in (conversation.prompt.task, ALL):
                    self.sums[name, task].add(answer.stats)


def main(
    data: Annotated[Path | None, typer.Option(help="A folder in Spec-Bench's format.")] = None,
    tasks: Annotated[str, typer.Option(help="Tasks, by commas.")] = ",".join(TASKS),
    limit: Annotated[int, typer.Option(help="Prompts a task.")] = 5,
    ceiling: Annotated[bool, typer.Option(help="`auto` with a free draft, too.")] = True,
    skip: Annotated[int, typer.Option(help="Leave out so many: held-out prompts.")] = 0,
    max_tokens: Annotated[int, typer.Option(help="Of a completion.")] = 64,
    methods: Annotated[str, typer.Option(help="Methods, comma-separated.")] = _METHODS,
    curves: Annotated[str, typer.Option(help="CURVE@SHAPE, by semicolons.")] = _CURVES,
    draft_ms: Annotated[str | None, typer.Option(help="The draft's costs.")] = _DRAFT_MS,
    host_us: Annotated[str | None, typer.Option(help="The host's prices.")] = _HOST_US,
    target: Annotated[str, typer.Option()] = "smollm2",
    draft: Annotated[str, typer.Option(help="A name or a file.")] = "auto",
    datastore: Annotated[str, typer.Option(help="For rest.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="Of the target's rows.")] = None,
    exact: Annotated[bool, typer.Option(help="The target's rows, bit for bit.")] = False,
) -> Figures:
    """Each method's speed over plain decoding's in passes of one row, by task."""
    console = Console()
    names = tuple(methods.split(","))
    plan = BenchPlan(
        methods=names,
        targets=(target,),
        data=data,
        limit=limit,
        max_tokens=max_tokens,
        simulate_ms=25.0,  # each run has its own
        draft_ms=draft_ms,
        host_us=host_us,
        drafts=(draft,),
        config=EngineConfig(datastore=datastore, threads=threads, exact=exact),
    )
    by_task = [read_prompts(data, [task], None) for task in tasks.split(",")]
    prompts = [
        prompt for found in by_task for prompt in found[skip :: max(1, len(found) // limit)][:limit]
    ]
    with simulated_stage(plan.pairs()[0], plan, needs_model=True) as stage:
        base = cast(SimulatedBed, stage.bed_for(method_named("ar")))
        assert base.model is not None
        runs: dict[str, Runs] = {}
        for text in curves.split(";"):
            given, _, shape = text.partition("@")
            curve = replace(plan, simulate_ms=given, simulate_as=shape or "tree").latency
            free = PricedModel(base.model.model, StepTable(((1, 0.0),)))
            entrants = {name: method_named(name) for name in names}
            if ceiling:
                entrants[CEILING] = method_named("auto")
            runs[text] = Runs(
                replace(base, curve=curve),
                replace(base, curve=curve, model=free),
                entrants,
                {name: Costs() for name in entrants},
                defaultdict(Sum),
            )
        conversations = record(stage.recorder, prompts, plan.sampling, max_tokens)
        for conversation in track(conversations, total=len(prompts), console=console):
            known: dict[tuple[int, ...], dict[RowKey, Candidates]] = {
                turn.prompt_tokens + turn.answer: {} for turn in conversation.turns
            }
            for run in runs.values():
                run.answer(conversation, known)
        figures = {"prompts": len(prompts), **dict(stage.facts), **_figures(runs, tasks.split(","))}
    for text, run in runs.items():
        curve = run.bed.curve
        console.print(f"\n{text} ({curve.shape.words}; {curve.forward.origin})", soft_wrap=True)
        for method in run.methods:
            cells = [
                f"{task[:8]} {run.speedup(method, task):.2f}" for task in (*tasks.split(","), ALL)
            ]
            console.print(f"{method:>10}  " + "  ".join(cells), soft_wrap=True)
    return figures


def _figures(runs: dict[str, Runs], tasks: Sequence[str]) -> Figures:
    found = {
        text: {
            method: {
                task: {
                    "speedup": run.speedup(method, task),
                    "tokens_per_second": run.sums[method, task].rate,
                    "tokens_per_forward": run.sums[method, task].num_tokens
                    / max(1, run.sums[method, task].num_forwards),
                }
                for task in (*tasks, ALL)
            }
            for method in run.methods
        }
        for text, run in runs.items()
    }
    beds = {
        text: {"shape": run.bed.curve.shape.words, "curve": run.bed.curve.forward.as_json()}
        for text, run in runs.items()
    }
    return {"beds": beds, "curves": found}

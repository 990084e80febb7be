"""Compare every method with the default on a virtual clock, on several curves of T(n).

Real rows and drafts, durations from tables, so the figures are the same on any machine
(`duodec.bench.beds.virtual`). Rows off the recorded text are computed once for all curves. The
ceiling is `auto` with a draft model that takes no time.

    python -m benchmarks simulated --data FOLDER --limit 5 --max-tokens 48

A curve is written CURVE@SHAPE@BANDWIDTH, the first two as in `--simulate-ms` and `--simulate-as`;
several by semicolons. `sps:4@gpu` is what users have today: the same draft model on the target's
card, in turns with the target, in passes of as many rows as are wanted. Its step takes the time to
read its file once at that bandwidth, and `--launch-ms`. `auto+gpu` has that draft model in passes
of the curve's own shape. A target's own `--heads` (on torch) take
`--heads-share` of a pass of one row: in a model so small they would weigh more than in a large one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.progress import track

from benchmarks import Figures
from benchmarks.decoding.kept import KeptRows, Shelf, prompts_key
from duodec.backends.translation.wrapped import Wrapped
from duodec.bench.beds import Stage
from duodec.bench.beds.simulated import SimulatedBed, draft_model, simulated_stage
from duodec.bench.beds.virtual import PricedModel, RowKey, StepTable
from duodec.bench.plan import BenchPlan
from duodec.bench.recording import Conversation, record
from duodec.bench.reports.statistics import Rate, Ratio, ratio_of_rates
from duodec.bench.reports.tables import interval_of
from duodec.bench.tasks import TASKS, Prompt, read_prompts
from duodec.core.protocols import Candidates, DraftModel
from duodec.core.round import Stats
from duodec.core.sampling.sampler import SamplingParams
from duodec.core.traits import Widths
from duodec.loading.config import EngineConfig
from duodec.loading.resolve import resolve_pair
from duodec.methods.method import Method
from duodec.methods.registry import method as method_named
from duodec.planning.costs import Costs

ALL = "all tasks"
CEILING = "ceiling"
ON_GPU = "@gpu"  # as users have it
IN_OUR_SHAPE = "+gpu"
_DRAFT_MS = "1:0.78,2:1.11,4:1.5,8:2.6,16:4.9,32:9.7,64:18.8"  # one core of an EPYC, AVX-512
_HOST_US = "copy:14,draw:40,candidates:40,selection:40"  # there, of rows of 151,936 logits
_LAUNCH_MS = 0.3  # six layers at 0.03 ms (docs/evaluation.md), and a token drawn on the host
_METHODS = (
    "ar,lookup,recycling,sps:2,sps:1@gpu,sps:2@gpu,sps:3@gpu,sps:4@gpu,sps:6@gpu,pearl,duo,auto"
)
_CURVES = ";".join(
    (
        "rtx3090-8b-q4_0@llama.cpp@936GB/s",
        "rtx4090-8b-q4_0@llama.cpp@1008GB/s",
        "rtx4090-8b-bf16@torch@1008GB/s",
        "mi50-27b-q8_0@llama.cpp@1024GB/s",
        "roofline:1008GB/s,165TFLOPS,4.0GB@llama.cpp@1008GB/s",  # 7B, 4.5 bits, a consumer's card
        "roofline:3350GB/s,989TFLOPS,13.5GB,16bit@torch@3350GB/s",  # of 16 bits, a data centre's
        "25@tree@1008GB/s",  # the limit
    )
)


Known = dict[tuple[int, ...], dict[RowKey, Candidates]]
"""Rows off the recorded texts, by the tokens of these."""
Recorded = tuple[Conversation, Known]


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


@dataclass
class Runs:
    """One curve: its bed and those of other drafts, each method with what it learns, and its sums
    by method and prompt."""

    bed: SimulatedBed
    free: SimulatedBed
    on_gpu: SimulatedBed
    in_turns: SimulatedBed
    methods: dict[str, Method]
    costs: dict[str, Costs]
    sums: dict[str, dict[tuple[str, str], Sum]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(Sum))
    )

    def of(self, method: str, task: str) -> dict[tuple[str, str], Sum]:
        """The sums by prompt."""
        return {key: one for key, one in self.sums[method].items() if task in (ALL, key[0])}

    def rates(self, method: str, task: str) -> list[Rate]:
        return [(one.num_tokens, one.seconds) for one in self.of(method, task).values()]

    def speedup(self, method: str, task: str) -> Ratio:
        """Tokens a second over those of plain decoding in passes of one row, as it is without us:
        ours are padded where a row's bits need it, and `ar` too."""
        curve, plain = self.bed.curve, self.of("ar", task)
        num_padded = curve.shape.num_computed(1) - 1
        excess_s = curve.forward_s - curve.forward.seconds(1)
        if not curve.shape.draws_on_device:
            excess_s += self.bed.host.copy * num_padded
        alone = [
            (one.num_tokens, one.seconds - one.num_forwards * excess_s) for one in plain.values()
        ]
        return ratio_of_rates(self.rates(method, task), alone, list(plain))

    def default_over(self, method: str, task: str) -> Ratio:
        """Tokens a second of `auto` over another method's."""
        prompts = list(self.of(method, task))
        return ratio_of_rates(self.rates("auto", task), self.rates(method, task), prompts)

    def answer(self, conversation: Conversation, known: Known) -> None:
        prompt = conversation.prompt
        for name, method in self.methods.items():
            bed = self._bed(name)
            bed.forget()
            for turn in conversation.turns:
                key = turn.prompt_tokens + turn.answer
                bed.known = {key: known[key]}
                answer = bed.answer(method, turn, self.costs[name])
                assert answer.tokens == turn.answer, f"{name} gives another text"
                self.sums[name][prompt.task, prompt.prompt_id].add(answer.stats)

    def _bed(self, name: str) -> SimulatedBed:
        if name.endswith(ON_GPU):
            return self.on_gpu
        if name.endswith(IN_OUR_SHAPE):
            return self.in_turns
        return self.free if name == CEILING else self.bed


def main(
    data: Annotated[Path | None, typer.Option(help="A folder in Spec-Bench's format.")] = None,
    tasks: Annotated[str, typer.Option(help="Tasks, by commas.")] = ",".join(TASKS),
    limit: Annotated[int, typer.Option(help="Prompts a task.")] = 5,
    ceiling: Annotated[bool, typer.Option(help="`auto` with a free draft, too.")] = True,
    skip: Annotated[int, typer.Option(help="Leave out so many: held-out prompts.")] = 0,
    max_tokens: Annotated[int, typer.Option(help="Of a completion.")] = 64,
    methods: Annotated[str, typer.Option(help="Methods, comma-separated.")] = _METHODS,
    curves: Annotated[str, typer.Option(help="CURVE@SHAPE@BANDWIDTH, by ;.")] = _CURVES,
    draft_ms: Annotated[str | None, typer.Option(help="The draft's costs.")] = _DRAFT_MS,
    launch_ms: Annotated[float, typer.Option(help="Of a draft step on the GPU.")] = _LAUNCH_MS,
    host_us: Annotated[str | None, typer.Option(help="The host's prices.")] = _HOST_US,
    target: Annotated[str, typer.Option()] = "smollm2",
    draft: Annotated[str, typer.Option(help="A name or a file.")] = "auto",
    datastore: Annotated[str, typer.Option(help="For rest.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="Of the target's rows.")] = None,
    exact: Annotated[bool, typer.Option(help="The target's rows, bit for bit.")] = False,
    temperature: Annotated[float, typer.Option(help="0: greedy.")] = 0.0,
    heads: Annotated[str | None, typer.Option(help="A folder; the target is on torch.")] = None,
    heads_share: Annotated[float, typer.Option(help="Of a pass, that they take.")] = 0.06,
    cache: Annotated[Path | None, typer.Option(help="A folder for what is computed.")] = None,
) -> Figures:
    """Each method's speed over plain decoding's in passes of one row, by task, with intervals over
    prompts."""
    console = Console()
    names = tuple(methods.split(","))
    entrants = {name: name.removesuffix(ON_GPU).removesuffix(IN_OUR_SHAPE) for name in names}
    if ceiling:
        entrants[CEILING] = "auto"
    plan = BenchPlan(
        methods=(*entrants.values(), "auto"),  # so that there is a draft model, whoever drafts
        targets=(target,),
        data=data,
        limit=limit,
        max_tokens=max_tokens,
        simulate_ms=25.0,  # each run has its own
        draft_ms=draft_ms,
        host_us=host_us,
        drafts=(draft,),
        config=EngineConfig(
            datastore=datastore,
            threads=threads,
            exact=exact,
            heads=heads,
            target_backend="torch" if heads else "auto",
        ),
        sampling=SamplingParams(temperature=temperature),
    )
    by_task = [read_prompts(data, [task], None) for task in tasks.split(",")]
    prompts = [
        prompt for found in by_task for prompt in found[skip :: max(1, len(found) // limit)][:limit]
    ]
    with simulated_stage(plan.pairs()[0], plan, needs_model=True) as stage:
        base = cast(SimulatedBed, stage.bed_for(method_named("ar")))
        pair = resolve_pair(plan.pairs()[0])
        assert base.model is not None
        assert pair.draft is not None
        num_bytes = pair.draft.path.stat().st_size
        whole = base.model.model  # on a GPU all rows of its head are computed
        models = target, pair.draft.path.name, heads, exact, plan.sampling
        drafted = Shelf.of(cache, "draft", *models)
        texts = Shelf.of(cache, "text", *models, max_tokens, prompts_key(prompts))
        if any(name.endswith((ON_GPU, IN_OUR_SHAPE)) for name in names):
            as_published = replace(pair.config, draft_head=0, draft_weights="file")
            whole = draft_model(pair.draft.path, as_published, base.parts)
            if cache is not None and plan.sampling.is_greedy and not isinstance(whole, Wrapped):
                whole = KeptRows(whole, drafted.values, base.parts.vocabulary.num_vocab)
        runs: dict[str, Runs] = {}
        for text in curves.split(";"):
            given, shape, bandwidth = (*text.split("@"), "", "")[:3]
            own_plan = replace(plan, simulate_ms=given, simulate_as=shape or "tree")
            curve = own_plan.latency(base.host)
            step_s = num_bytes / _bytes_a_second(bandwidth) + launch_ms / 1e3
            as_wanted = replace(curve.shape, name="chain", widths=Widths(), has_branches=False)
            heads_s = heads_share * curve.forward.seconds(1)
            own = replace(base, curve=curve, host=replace(base.host, heads=heads_s))
            in_turns = own.in_turns(_priced(whole, step_s))
            runs[text] = Runs(
                bed=own,
                free=replace(own, model=_priced(base.model.model, 0.0)),
                on_gpu=replace(in_turns, curve=replace(curve, shape=as_wanted)),
                in_turns=in_turns,
                methods={label: method_named(name) for label, name in entrants.items()},
                costs={label: Costs() for label in entrants},
            )
        for prompt in track(prompts, console=console):
            conversation, known = texts.get(
                (prompt.task, prompt.prompt_id),
                partial(_recorded, stage, prompt, plan, max_tokens),
            )
            for run in runs.values():
                run.answer(conversation, known)
        texts.save()
        drafted.save()
        figures = {"prompts": len(prompts), **dict(stage.facts), **_figures(runs, tasks.split(","))}
    for text, run in runs.items():
        curve = run.bed.curve
        console.print(f"\n{text} ({curve.shape.words}; {curve.forward.origin})", soft_wrap=True)
        for method in run.methods:
            cells = [
                f"{task[:8]} {run.speedup(method, task).value:.2f}"
                for task in (*tasks.split(","), ALL)
            ]
            total = run.speedup(method, ALL)
            cells.append(interval_of(total))
            console.print(f"{method:>10}  " + "  ".join(cells), soft_wrap=True)
    return figures


def _recorded(stage: Stage, prompt: Prompt, plan: BenchPlan, max_tokens: int) -> Recorded:
    """A prompt's texts, and their rows off them, of which none is known yet."""
    (found,) = record(stage.recorder, [prompt], plan.sampling, max_tokens)
    return found, {turn.prompt_tokens + turn.answer: {} for turn in found.turns}


def _priced(model: DraftModel, step_s: float) -> PricedModel:
    """The draft model with steps of this time, whatever their width."""
    return PricedModel(model, StepTable(((1, step_s), (2, step_s))))


def _bytes_a_second(bandwidth: str) -> float:
    """Of ``1008GB/s``; without one no time is taken to read."""
    return float(bandwidth.removesuffix("GB/s")) * 1e9 if bandwidth else math.inf


def _figures(runs: dict[str, Runs], tasks: Sequence[str]) -> Figures:
    found = {
        text: {
            method: {task: _figures_of(run, method, task) for task in (*tasks, ALL)}
            for method in run.methods
        }
        for text, run in runs.items()
    }
    beds = {
        text: {
            "shape": run.bed.curve.shape.words,
            "curve": run.bed.curve.forward.as_json(),
            "draft_ms_on_gpu": str(cast(PricedModel, run.on_gpu.model).table),
        }
        for text, run in runs.items()
    }
    return {"beds": beds, "curves": found}


def _figures_of(run: Runs, method: str, task: str) -> Figures:
    sums = run.of(method, task).values()
    num_tokens = sum(one.num_tokens for one in sums)
    speedup = run.speedup(method, task)
    figures = {
        "speedup": speedup.value,
        "interval": [speedup.low, speedup.high],
        "tokens_per_second": num_tokens / sum(one.seconds for one in sums),
        "tokens_per_forward": num_tokens / max(1, sum(one.num_forwards for one in sums)),
    }
    if "auto" not in run.methods or method in ("auto", CEILING):
        return figures
    ratio = run.default_over(method, task)
    return {**figures, "auto_over": ratio.value, "auto_over_interval": [ratio.low, ratio.high]}

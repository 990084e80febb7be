"""Compare every method with the default on a virtual clock, on several curves of T(n).

Real rows and drafts, durations from tables, so the figures are the same on any machine
(`duodec_lab.bench.beds.virtual`). Rows off the recorded text are computed once for all curves.

    python -m benchmarks simulated --data FOLDER --limit 5 --max-tokens 48

A curve is written CURVE@SHAPE@BANDWIDTH@LINK, the first two as in `--simulate-ms` and
`--simulate-as`, several by semicolons. Rows of logits are copied over the link. What competes is
told in `entrants`: methods in our shape, as their users have them, and with the draft model on the
target's card, where a step takes the time to read its file once at that bandwidth, and
`--launch-ms`. Settings in braces are chosen on `--choose` other prompts of each task, for each
curve. A target's own `--heads` (on torch) take `--heads-share` of a pass of one row: in a model so
small they would weigh more than in a large one.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.console import Console
from rich.progress import track

from benchmarks import Figures
from benchmarks.decoding.entrants import (
    ALL,
    CEILING,
    FREE,
    IN_OUR_SHAPE,
    ON_GPU,
    OURS,
    Entrant,
    Known,
    Runs,
    best_settings,
    entrants_of,
)
from benchmarks.decoding.kept import KeptRows, Shelf, prompts_key
from duodec.backends.translation.wrapped import Wrapped
from duodec.core.drafters import DraftModel
from duodec.core.sampling.sampler import SamplingParams
from duodec.core.traits import Widths
from duodec.loading.config import EngineConfig
from duodec.loading.resolve import resolve_pair
from duodec.methods.registry import method as method_named
from duodec.models.contents import hash_rest
from duodec_lab.bench.beds import Stage
from duodec_lab.bench.beds.simulated import SimulatedBed, draft_model, simulated_stage
from duodec_lab.bench.beds.virtual import PricedModel, StepTable
from duodec_lab.bench.plan import BenchPlan
from duodec_lab.bench.recording import Conversation, record
from duodec_lab.bench.reports.tables import interval_of
from duodec_lab.bench.tasks import TASKS, Prompt, read_prompts

_DRAFT_MS = "1:0.93,2:1.31,4:1.8,8:3.1,16:5.8,32:11.4,64:22.1"
"""Of steps on one core of an EPYC (AVX-512): 0.78, 1.11, 1.5, 2.6 ... for the forward pass, and 0.1
and 0.05 a leaf for the growth of the tree in the drafter's process."""
_NUM_VOCAB = 151_936  # of Qwen's models: most rows are not longer
_HOST_US = "copy:24,draw:40,candidates:40,selection:40"  # there, of rows of so many logits
_LAUNCH_MS = 0.22  # six layers at 0.03 ms (docs/evaluation.md), and a token drawn on the host
_LOOKUPS = "2:2,3:2,4:2,6:2,8:2,2,3,4,6,8,10"
_TREES = "3,7,15,31,80"
_CHAINS = "1,2,3,4,6,8:0.75,16:0.75"
_METHODS = (
    f"ar,lookup:{{{_LOOKUPS}}}@free,recycling:{{{_TREES}}}@free,lookahead@free,"
    f"sps:{{{_CHAINS}}}@free,pearl@free,duo@free,sps:{{{_CHAINS}}}@gpu,auto,auto+gpu,{CEILING}"
)
_CURVES = ";".join(
    (
        # PCIe 4.0 with 16 lanes has 31.5 GB/s, 5.0 63; copies reach four fifths of it
        "rtx3090-8b-q4_0@llama.cpp@936GB/s@25GB/s",
        "rtx4090-8b-q4_0@llama.cpp@1008GB/s@25GB/s",
        "rtx4090-8b-bf16@torch@1008GB/s@25GB/s",
        "mi50-27b-q8_0@llama.cpp@1024GB/s@25GB/s",
        "roofline:1008GB/s,165TFLOPS,4.0GB@llama.cpp@1008GB/s@25GB/s",  # 7B, 4.5 bits, a consumer's
        "roofline:3350GB/s,989TFLOPS,13.5GB,16bit@torch@3350GB/s@50GB/s",  # a data centre's
        "25@tree@1008GB/s@25GB/s",  # the limit
    )
)
Recorded = tuple[Conversation, Known]


def main(
    data: Annotated[Path | None, typer.Option(help="A folder in Spec-Bench's format.")] = None,
    tasks: Annotated[str, typer.Option(help="Tasks, by commas.")] = ",".join(TASKS),
    limit: Annotated[int, typer.Option(help="Prompts a task.")] = 5,
    choose: Annotated[int, typer.Option(help="Others, to choose settings on.")] = 2,
    skip: Annotated[int, typer.Option(help="Leave out so many: held-out prompts.")] = 0,
    order: Annotated[int, typer.Option(help="A seed to shuffle prompts; 0: as they come.")] = 0,
    cold: Annotated[bool, typer.Option(help="Nothing is learned from prompt to prompt.")] = False,
    max_tokens: Annotated[int, typer.Option(help="Of a completion.")] = 64,
    methods: Annotated[str, typer.Option(help="Entrants, comma-separated.")] = _METHODS,
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
    entrants = entrants_of(methods)
    plan = BenchPlan(
        methods=(*(one for entrant in entrants for one in entrant.settings), "auto"),
        targets=(target,),  # `auto`, so that there is a draft model, whoever drafts
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
    reported, others = prompts_of(data, tasks.split(","), limit, choose, skip)
    if order:
        random.Random(order).shuffle(reported)
    needs_choice = any(len(entrant.settings) > 1 for entrant in entrants)
    if needs_choice and not others:
        raise typer.BadParameter("settings in braces are chosen on other prompts: --choose 2")
    with simulated_stage(plan.pairs()[0], plan, needs_model=True) as stage:
        base = cast(SimulatedBed, stage.bed_for(method_named("ar")))
        pair = resolve_pair(plan.pairs()[0])
        assert base.model is not None
        assert pair.draft is not None
        num_bytes = pair.draft.path.stat().st_size
        whole = base.model.model  # on a GPU all rows of its head are computed
        models = target, pair.draft.path.name, heads, exact, plan.sampling
        drafted = Shelf.of(cache, "draft", "of whole texts", *models)
        texts = Shelf.of(cache, "text", *models, max_tokens, prompts_key([*reported, *others]))
        if any(entrant.bed in (ON_GPU, IN_OUR_SHAPE) for entrant in entrants):
            as_published = replace(pair.config, draft_head=0, draft_weights="file")
            whole = draft_model(pair.draft.path, as_published, base.parts)
            if cache is not None and plan.sampling.is_greedy and not isinstance(whole, Wrapped):
                whole = KeptRows(whole, drafted.values, base.parts.vocabulary.num_vocab)
        beds: dict[str, Mapping[str, SimulatedBed]] = {}
        for text in curves.split(";"):
            given, shape, bandwidth, link = (*text.split("@"), "", "", "")[:4]
            own_plan = replace(plan, simulate_ms=given, simulate_as=shape or "tree")
            copy_s = 4 * _NUM_VOCAB / _bytes_a_second(link) if link else base.host.copy
            host = replace(base.host, copy=copy_s)
            curve = own_plan.latency(host)
            heads_s = heads_share * curve.forward.seconds(1)
            own = replace(base, curve=curve, host=replace(host, heads=heads_s))
            step_s = num_bytes / _bytes_a_second(bandwidth) + launch_ms / 1e3
            beds[text] = beds_of(own, whole, step_s)

        def answered(prompts: Sequence[Prompt], runs: Mapping[str, Runs], words: str) -> None:
            for prompt in track(prompts, words, console=console):
                conversation, known = texts.get(
                    (prompt.task, prompt.prompt_id),
                    partial(_recorded, stage, prompt, plan, max_tokens),
                )
                for run in runs.values():
                    run.answer(conversation, known)
            texts.save()
            drafted.save()

        chosen = dict.fromkeys(beds, entrants)
        if needs_choice:
            alone = [one for entrant in entrants if len(entrant.settings) > 1
                     for one in entrant.alone]  # fmt: skip
            tried = {text: Runs(own_beds, [Entrant.parse("ar"), *alone])
                     for text, own_beds in beds.items()}  # fmt: skip
            answered(others, tried, "choosing settings")
            chosen = {text: best_settings(one, entrants) for text, one in tried.items()}
        runs = {text: Runs(beds[text], chosen[text], forgets=cold) for text in beds}
        answered(reported, runs, "comparing")
        figures = {
            "prompts": len(reported),
            "prompt_ids": [f"{one.task}/{one.prompt_id}" for one in reported],
            "models": {one.name: _sha256(one) for one in (pair.file.path, pair.draft.path)},
            **dict(stage.facts),
            **_figures(runs, tasks.split(",")),
        }
    for text, run in runs.items():
        curve = run.beds[OURS].curve
        console.print(f"\n{text} ({curve.shape.words}; {curve.forward.origin})", soft_wrap=True)
        for entrant in run.entrants:
            cells = [
                f"{task[:8]} {run.speedup(entrant.label, task).value:.2f}"
                for task in (*tasks.split(","), ALL)
            ]
            cells.append(interval_of(run.speedup(entrant.label, ALL)))
            name = entrant.settings[0] + entrant.bed.replace(CEILING, " (ceiling)")
            console.print(f"{name:>20}  " + "  ".join(cells), soft_wrap=True)
    return figures


def prompts_of(
    data: Path | None, tasks: Sequence[str], limit: int, choose: int, skip: int
) -> tuple[list[Prompt], list[Prompt]]:
    """``limit`` prompts of each task, at equal distances after the first ``skip``, and ``choose``
    others of each, from between them. Raises BadParameter where there are too few."""
    reported: list[Prompt] = []
    others: list[Prompt] = []
    for task in tasks:
        found = read_prompts(data, [task], None)
        distance = max(1, len(found) // limit)
        own = found[skip::distance][:limit]
        rest = [prompt for prompt in found if prompt not in own]
        if len(rest) < choose:
            raise typer.BadParameter(
                f"{task} has {len(found)} prompts, too few to report {limit} and choose on {choose}"
            )
        reported += own
        others += rest[distance // 2 :: max(1, len(rest) // max(1, choose))][:choose]
    return reported, others


def beds_of(own: SimulatedBed, on_card: DraftModel, step_s: float) -> Mapping[str, SimulatedBed]:
    """The beds of entrants on one curve, of which ``own`` has our shape and the draft on a core;
    ``step_s``: seconds of a step on the card."""
    curve = own.curve
    chain = replace(curve.shape, name="chain", widths=Widths(), has_branches=False)
    tree = replace(curve.shape, name="tree", widths=Widths(), has_branches=True)
    in_turns = own.in_turns(_priced(on_card, step_s))
    assert own.model is not None
    return {
        OURS: own,
        CEILING: replace(own, model=_priced(own.model.model, 0.0)),
        FREE: replace(own, curve=replace(curve, shape=tree)),
        ON_GPU: replace(in_turns, curve=replace(curve, shape=chain)),
        IN_OUR_SHAPE: in_turns,
    }


def _sha256(path: Path) -> str:
    """Of a file; a folder has none."""
    if not path.is_file():
        return "a folder"
    with path.open("rb") as file:
        return hash_rest(file).hexdigest()


def _recorded(stage: Stage, prompt: Prompt, plan: BenchPlan, max_tokens: int) -> Recorded:
    """A prompt's texts, and their rows off them, of which none is known yet. Ends the program where
    the target cannot complete it."""
    (found,) = record(stage.recorder, [prompt], plan.sampling, max_tokens)
    if found.error:
        sys.exit(f"{prompt.task}/{prompt.prompt_id} was not recorded: {found.error}")
    return found, {turn.prompt_tokens + turn.answer: {} for turn in found.turns}


def _priced(model: DraftModel, step_s: float) -> PricedModel:
    """The draft model with steps of this time, whatever their width."""
    return PricedModel(model, StepTable(((1, step_s), (2, step_s))))


def _bytes_a_second(bandwidth: str) -> float:
    """Of ``1008GB/s``; without one no time is taken to read."""
    return float(bandwidth.removesuffix("GB/s")) * 1e9 if bandwidth else math.inf


def _figures(runs: Mapping[str, Runs], tasks: Sequence[str]) -> Figures:
    found = {
        text: {
            entrant.label: {task: _figures_of(run, entrant, task) for task in (*tasks, ALL)}
            for entrant in run.entrants
        }
        for text, run in runs.items()
    }
    beds = {
        text: {
            "shape": run.beds[OURS].curve.shape.words,
            "curve": run.beds[OURS].curve.forward.as_json(),
            "draft_ms_on_gpu": str(cast(PricedModel, run.beds[ON_GPU].model).table),
            "settings": {entrant.label: entrant.settings[0] for entrant in run.entrants},
            "sums": {label: _sums_of(run, label) for label in run.labels},
        }
        for text, run in runs.items()
    }
    return {"beds": beds, "curves": found}


def _sums_of(run: Runs, label: str) -> str:
    """Of each prompt: tokens, forward passes and seconds; in the order of ``prompt_ids``."""
    return "; ".join(
        f"{one.num_tokens} {one.num_forwards} {one.seconds:.6f}"
        for one in run.of(label, ALL).values()
    )


def _figures_of(run: Runs, entrant: Entrant, task: str) -> Figures:
    label = entrant.label
    sums = run.of(label, task).values()
    num_tokens = sum(one.num_tokens for one in sums)
    speedup = run.speedup(label, task)
    figures = {
        "speedup": speedup.value,
        "interval": [speedup.low, speedup.high],
        "tokens_per_second": num_tokens / sum(one.seconds for one in sums),
        "tokens_per_forward": num_tokens / max(1, sum(one.num_forwards for one in sums)),
    }
    if "auto" not in run.labels or label in ("auto", CEILING):
        return figures
    ratio = run.default_over(label, task)
    return {**figures, "auto_over": ratio.value, "auto_over_interval": [ratio.low, ratio.high]}

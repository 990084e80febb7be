"""Measure everything that needs a CUDA GPU, in one call of less than ten minutes.

    python -m benchmarks gpu --quick --output FOLDER      # exactness, T(n), gaps: 3 minutes
    python -m benchmarks gpu --target smollm2 --draft smollm2-draft --output FOLDER

Sections run one after another, the most important first, each in its own process and within its
budget (`gpu_sections.py`). gpu.json holds the results, or the error, after each of them.
Another call can run what one has no time for: --only "13b,34b". *Ballast*
(`benchmarks.gpu.ballast`) stands in for large targets: the texts are those of --target, and
each forward pass also runs a random stack of the given shape. Nothing is downloaded: models are
files, or in the cache.

The same script runs on a machine without a GPU, to be checked there: --device cpu --shapes tiny.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.gpu.ballast import BallastNetwork, random_model, shape_named
from benchmarks.gpu.gpu_forwards import (
    WARNINGS,
    bandwidth,
    exact_rows,
    generate_s,
    plain_decoding,
    same_noise,
)
from benchmarks.gpu.gpu_sections import Note, OutOfTime, Report, attempt
from benchmarks.gpu.torch_draft import TorchDraftModel
from duodec.backends.drafter.process import ProcessDrafter
from duodec.backends.torch.blueprint import Blueprint
from duodec.backends.torch.model import TorchModel
from duodec.backends.torch.network import Network
from duodec.backends.torch.target import TorchTarget
from duodec.bench.beds import RealBed, Stage, on_cores
from duodec.bench.card import environment
from duodec.bench.journal import Journal
from duodec.bench.markdown import markdown_report
from duodec.bench.measures import measure
from duodec.bench.plan import BenchPlan, Entrant
from duodec.bench.results import Results
from duodec.bench.run import Runner
from duodec.bench.scoring import score_text
from duodec.bench.tasks import read_prompts
from duodec.core.protocols import Drafter
from duodec.drafting.inline import InlineDrafter
from duodec.llm import LLM
from duodec.loading.config import EngineConfig
from duodec.loading.drafter import open_drafter
from duodec.loading.profile import LEAVES, step_s
from duodec.loading.resolve import resolve_pair
from duodec.machine.cores import CorePlan, CoreSharing, available_cores, memory_nodes
from duodec.models import resolve

_CONTEXT = 2048
_METHODS = "ar,sps:2,sps:4,lookup,suffix,pearl,duo,stream,auto"


# seconds that a section may take on a recent GPU, loading included
_SHORT_S, _EXACT_S, _FORWARDS_S, _STEPS_S, _TASKS_S, _GENERATE_S = 40, 90, 140, 60, 110, 120


def main(
    output: Annotated[Path, typer.Option(help="The folder for gpu.json and the tables.")],
    target: Annotated[str, typer.Option(help="A GGUF file or alias, or a folder.")] = "smollm2",
    draft: Annotated[str, typer.Option(help="A GGUF file or alias.")] = "smollm2-draft",
    shapes: Annotated[str, typer.Option(help="Costs to imitate, comma-separated.")] = (
        "llama-2-7b,llama-2-13b,codellama-34b"
    ),
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    dtype: Annotated[str, typer.Option(help="Of targets.")] = "bfloat16",
    data: Annotated[Path | None, typer.Option(help="A folder in Spec-Bench's format.")] = None,
    limit: Annotated[int, typer.Option(help="Prompts a task.")] = 1,
    max_tokens: Annotated[int, typer.Option(help="Of a completion.")] = 96,
    methods: Annotated[str, typer.Option(help="Comma-separated.")] = _METHODS,
    minutes: Annotated[float, typer.Option(help="Limit of the whole call.")] = 9.0,
    quick: Annotated[bool, typer.Option("--quick", help="Only the most important.")] = False,
    only: Annotated[
        str, typer.Option(help="Sections with one of these words, comma-separated.")
    ] = "",
) -> None:
    """Check exactness, then measure."""
    output.mkdir(parents=True, exist_ok=True)
    names = [name for name in shapes.split(",") if name]
    if quick:
        names, minutes, methods = names[:1], min(minutes, 2.9), "ar,stream,auto"
    words = tuple(word for word in only.split(",") if word)
    if words:
        words = ("environment", *words)
    report = Report(output, time.monotonic() + 60 * minutes, words)
    contexts = (128, 1024, 4096) if device == "cuda" else (64,)
    pair = Pair(target, draft, device, dtype)
    shape, number_type = shape_named(names[0]), getattr(torch, dtype)
    plan = BenchPlan(
        methods=tuple(methods.split(",")),
        targets=(target,),
        drafts=(draft,),
        data=data,
        limit=limit,
        max_tokens=max_tokens,
    )

    def forwards_of(note: Note) -> dict[str, int]:
        facts, parts = plain_decoding(
            shape, dtype=number_type, device=device, contexts=contexts[: 2 if quick else None]
        )
        note("bytes", facts)
        attempt(note, parts)
        return facts

    def tasks(name: str | None, pair: Pair = pair, plan: BenchPlan = plan) -> Callable[[Note], Any]:
        return lambda note: _tasks(pair, plan, name, output, note)

    def generated(note: Note) -> None:
        attempt(note, generate_s(shape, dtype=number_type, device=device))

    num_copied = 2 << (30 if device == "cuda" else 22)
    num_trees = (12 if quick else 40) if device == "cuda" else 4
    report.section("environment", lambda note: _card(device), _SHORT_S)
    report.section("bandwidth", lambda note: bandwidth(device, num_copied), _SHORT_S)
    report.section("noise is NumPy's", lambda note: same_noise(device), _SHORT_S)
    report.section("rows are plain decoding's", lambda note: _exact(pair, num_trees), _EXACT_S)
    report.section(f"plain decoding, {names[0]}", forwards_of, _FORWARDS_S)
    if quick:
        report.section(_label(names[0]), tasks(names[0]), _TASKS_S)
        return
    report.section(f"transformers' generate, {names[0]}", generated, _GENERATE_S)
    report.section("draft steps", lambda note: _steps(pair, note), _STEPS_S)
    for name in (names[0], None):
        report.section(_label(name), tasks(name), _TASKS_S)
    on_device = replace(pair, is_draft_on_device=True)
    of_sps = replace(plan, methods=("ar", "sps:2", "sps:4", "sps:6"))
    report.section(
        f"sps drafted on the device, cost of {names[0]}",
        tasks(names[0], on_device, of_sps),
        _TASKS_S,
    )
    for name in names[1:]:
        report.section(_label(name), tasks(name), _TASKS_S)
    if words and len(report.found) == 1:
        raise typer.BadParameter(f"no section's name has one of '{only}'; leave --only out for all")


def _label(name: str | None) -> str:
    return f"tasks, cost of {name}" if name else "tasks, the target alone"


def _card(device: str) -> dict[str, Any]:
    card = environment()
    card["torch"] = torch.__version__
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        card["gpu"] = {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "cuda": torch.version.cuda,
        }
    return card


@dataclass(frozen=True)
class Pair:
    """The models to measure, and their device."""

    target: str
    draft: str
    device: str
    dtype: str
    is_draft_on_device: bool = False

    def model(self, reference: str) -> TorchModel:
        """Raises what is wrong with the files."""
        path = Path(reference) if Path(reference).exists() else resolve(reference).path
        return TorchModel(
            Blueprint.of(path, dtype=self.dtype, device=self.device, num_context=_CONTEXT)
        )

    def cores(self) -> CorePlan:
        cores = available_cores()
        return CorePlan.make(
            cores, target_is_on_cpu=self.device == "cpu", nodes=memory_nodes(cores)
        )


def _exact(pair: Pair, num_trees: int) -> dict[str, Any]:
    model = pair.model(pair.target)
    network = Network(model.causal_lm, WARNINGS.append)
    target = TorchTarget(network, num_context=_CONTEXT, on_warning=WARNINGS.append)
    try:
        return exact_rows(target, model.num_vocab, num_trees)
    finally:
        target.close()
        model.close()


def _steps(pair: Pair, note: Note) -> None:
    """d(k) of the drafter in its process, by threads."""
    model = pair.model(pair.target)
    cores = available_cores()[1:] or available_cores()
    text = np.random.default_rng(0).integers(0, model.num_vocab, 200).astype(np.int32)
    threads = [n for n in (1, 2, 4, 8, 12, 15) if n <= len(cores)]
    for num_threads in threads:
        plan = replace(pair.cores(), draft_cores=cores[-num_threads:])
        config = EngineConfig(target=pair.target, draft=pair.draft)
        with open_drafter(resolve_pair(config), model, _CONTEXT, plan) as drafter:
            drafter.wait_ready()
            steps = {str(leaves): step_s(drafter, text, leaves) for leaves in LEAVES}
        note(f"{num_threads} threads", steps)
    model.close()


# --- methods on tasks


class GpuRunner(Runner):
    """A bench stage around an existing engine."""

    pair: Pair
    shape: str | None
    note: Note

    def _stage(self, entrants: Sequence[Entrant]) -> Any:
        return _stage(self.pair, self.shape, self.plan, self.note)


def _tasks(
    pair: Pair, plan: BenchPlan, shape: str | None, output: Path, note: Note
) -> dict[str, Any]:
    name = shape or "alone"
    if pair.is_draft_on_device:
        name += "-draft-on-device"
    free_before = _free_bytes(pair.device)
    prompts = read_prompts(plan.data, plan.tasks, plan.limit)
    settings = plan.settings("python -m benchmarks gpu", "", [p.prompt_id for p in prompts])
    also = f" Each forward pass also runs a random stack of the shape of {shape}." if shape else ""
    settings["notes"] = [f"The texts are those of {pair.target}.{also}"]
    journal = Journal(output / name, settings)
    runner = GpuRunner(plan, plan.pairs()[0], journal, score_text, lambda *_: None)
    runner.pair, runner.shape, runner.note = pair, shape, note
    is_complete = True
    try:
        runner.run(prompts)
    except OutOfTime:
        is_complete = False
    results = Results(journal.generations, environment(), {**settings, "is_complete": is_complete})
    results.write(output / name / "results.json")
    (output / name / "report.md").write_text(markdown_report(results))
    (measures,) = measure(results)
    found: dict[str, Any] = {"free_bytes_before": free_before, "is_complete": is_complete}
    for method in measures.methods:
        m = measures.of(method)
        gaps = [
            later.start_s - earlier.end_s - later.draft_wait_s
            for g in journal.generations
            if g.method == method
            for earlier, later in zip(g.trace, g.trace[1:], strict=False)
        ]
        found[method] = {
            "tokens_per_second": m.tokens_per_second,
            "ratio": m.ratio.value if m.ratio else None,
            "by_task": {
                task: ratio.value
                for task in measures.tasks
                if (ratio := measures.of(method, task).ratio)
            },
            "mean_accepted": m.mean_accepted,
            "ttft_s": m.ttft_s,
            "overlap": m.overlap,
            "identical": str(m.identical),
            "median_gap_s": sorted(gaps)[len(gaps) // 2] if gaps else None,
            "failed": m.num_failed,
        }
    return found


def _free_bytes(device: str) -> int | None:
    return int(torch.cuda.mem_get_info()[0]) if device == "cuda" else None


@contextmanager
def _stage(pair: Pair, shape: str | None, plan: BenchPlan, note: Note) -> Iterator[Stage]:
    with ExitStack() as stack:
        model = pair.model(pair.target)
        stack.callback(model.close)
        network: Network
        if shape:
            beside = random_model(
                shape_named(shape), dtype=getattr(torch, pair.dtype), device=pair.device
            )
            network = BallastNetwork(model.causal_lm, beside, WARNINGS.append)
        else:
            network = Network(model.causal_lm, WARNINGS.append)
        target = TorchTarget(network, num_context=_CONTEXT, on_warning=WARNINGS.append)
        stack.callback(target.close)
        before = _free_bytes(pair.device)
        drafter = stack.enter_context(_drafter(pair, model))
        after = _free_bytes(pair.device)
        if before is not None and after is not None:
            note("GPU memory taken by the drafter, bytes", before - after)
        cores = pair.cores()
        if not cores.shares_cores:  # the launching thread has its own core
            stack.enter_context(on_cores(cores.launch_cores))
        engine = LLM(
            target,
            model,
            _CONTEXT,
            drafter,
            # a draft on the same device prefills its prompt after the first token
            cores=CoreSharing(is_shared=pair.is_draft_on_device),
        )
        bed = RealBed(engine, plan.sampling, 0.0)
        yield Stage(engine, lambda method: bed)


@contextmanager
def _drafter(pair: Pair, model: TorchModel) -> Iterator[Drafter]:
    if pair.is_draft_on_device:
        draft = pair.model(pair.draft)
        on_device = TorchDraftModel(
            Network(draft.causal_lm, WARNINGS.append),
            num_context=_CONTEXT,
            num_vocab=model.num_vocab,
            on_warning=WARNINGS.append,
        )
        yield InlineDrafter(on_device)
        on_device.close()
        draft.close()
        return
    config = EngineConfig(target=pair.target, draft=pair.draft)
    process: ProcessDrafter = open_drafter(resolve_pair(config), model, _CONTEXT, pair.cores())
    with process:
        process.wait_ready()
        yield process

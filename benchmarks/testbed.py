"""The test bed: every method against a replayed target of a given latency.

The target's plain text is recorded once, by real decoding. A replay then answers with it after
the stated latency, while real drafts come from the real drafter process on its own cores: real
acceptance, real clocks; only the target's arithmetic is stood in for, and the report says so.

    python -m benchmarks.testbed --data FOLDER --latency-ms 25,50 --limit 5
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from benchmarks.card import environment
from benchmarks.prompts import TASKS, TaskPrompt, read_prompts
from benchmarks.ratios import Ratio, ratio_of_rates
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target import LlamaRecipe
from duodec.backends.process import ProcessDrafter
from duodec.backends.testbeds import LatencyCurve, ReplayTarget
from duodec.config import CorePlan, available_cores
from duodec.core.protocols import DraftRequest
from duodec.core.round import Stats
from duodec.core.sampling import Sampler, SamplingParams, Tokens
from duodec.decoding.methods import METHODS, Method
from duodec.decoding.sps import SpeculativeSampling
from duodec.drafting.plans import Chain
from duodec.engine import Engine
from duodec.events import Finished
from duodec.loading import EngineConfig, draft_for, load
from duodec.models import resolve
from duodec.planning.costs import Costs

RESULTS = Path(__file__).parent / "results"
SCRATCH = Path(__file__).parent / "scratch"
_SLOT = 0


@dataclass(frozen=True)
class Recording:
    """A prompt and the target's plain answer to it."""

    prompt: TaskPrompt
    prompt_tokens: list[int]
    answer: list[int]

    @property
    def tokens(self) -> Tokens:
        return np.array(self.prompt_tokens + self.answer, dtype=np.int32)


@dataclass(frozen=True)
class Generation:
    """One answer of one method."""

    method: str
    recording: Recording
    stats: Stats

    def as_json(self) -> dict[str, Any]:
        stats = self.stats
        return {
            "task": self.recording.prompt.task,
            "prompt_id": self.recording.prompt.prompt_id,
            "method": self.method,
            "new_tokens": stats.num_new_tokens,
            "prompt_tokens": stats.num_prompt_tokens,
            "ttft_s": stats.ttft_s,
            "decode_s": stats.decode_s,
            "rounds": len(stats.rounds),
            "mean_accepted": stats.mean_accepted,
            "draft_tokens": stats.num_draft_tokens,
            "accepted_tokens": stats.num_accepted_tokens,
            "acceptance_histogram": stats.acceptance_histogram,
            "overlap": stats.overlap,
            "median_gap_s": stats.median_gap_s,
            "median_forward_s": stats.median_forward_s,
            "drafter_restarts": stats.drafter_restarts,
        }


def methods_named(names: str) -> dict[str, Method]:
    """Methods by name; `sps:2` is sps with two draft tokens a round."""
    chosen: dict[str, Method] = {}
    for name in names.split(","):
        base, _, gamma = name.partition(":")
        if base == "sps" and gamma:
            chosen[name] = SpeculativeSampling(int(gamma))
        else:
            chosen[name] = METHODS[base]()
    return chosen


def record(
    config: EngineConfig, prompts: list[TaskPrompt], sampling: SamplingParams, max_tokens: int
) -> list[Recording]:
    """The target's plain answers, from the scratch folder where they were recorded before."""
    setting = [str(config), max_tokens, repr(sampling), [p.text for p in prompts]]
    digest = hashlib.sha256(json.dumps(setting).encode()).hexdigest()[:16]
    path = SCRATCH / f"recording-{digest}.json"
    if path.exists():
        saved = json.loads(path.read_text())
        return [Recording(p, *pair) for p, pair in zip(prompts, saved, strict=True)]
    recordings = []
    with load(EngineConfig(target=config.target, draft=None, exact=config.exact)) as engine:
        for prompt in track(prompts, "recording plain decoding"):
            tokens = engine.tokens_of([{"role": "user", "content": prompt.text}])
            *_, last = engine.generate(tokens, sampling, method="ar", max_tokens=max_tokens)
            assert isinstance(last, Finished)
            recordings.append(Recording(prompt, tokens, list(last.tokens)))
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps([[r.prompt_tokens, r.answer] for r in recordings]))
    return recordings


@contextmanager
def drafter_of(config: EngineConfig, num_context: int) -> Iterator[ProcessDrafter]:
    """The real drafter process, on all cores but the one that is left to the target side."""
    cores = available_cores()
    plan = CorePlan.make(cores, target_is_on_cpu=False, num_draft_threads=config.draft_threads)
    if hasattr(os, "sched_setaffinity") and len(cores) > 1:
        os.sched_setaffinity(0, set(cores) - set(plan.draft_cores))
    reference = draft_for(config)
    assert reference, "the test bed needs a draft"
    path = resolve(reference, offline=config.offline).path
    drafter = ProcessDrafter(
        LlamaRecipe(path, num_context, len(plan.draft_cores)),
        cores=plan.draft_cores,
        num_threads=len(plan.draft_cores),
        on_warning=lambda line: Console(stderr=True).print(line),
    )
    with drafter:
        drafter.wait_ready()
        yield drafter


class TestBed:
    """Runs methods on recordings; each method keeps its own learned costs."""

    __test__ = False

    def __init__(
        self, drafter: ProcessDrafter, vocabulary: LlamaModel, sampling: SamplingParams
    ) -> None:
        self._drafter = drafter
        self._vocabulary = vocabulary
        self._sampling = sampling
        self._costs: dict[str, Costs] = {}

    def run(self, name: str, method: Method, recording: Recording, curve: LatencyCurve) -> Stats:
        """One answer, cold: neither side has read anything of the prompt."""
        self._forget()
        tokens = recording.tokens
        engine = Engine(
            ReplayTarget(tokens, curve),
            self._vocabulary,
            num_context=len(tokens) + 1,
            drafter=self._drafter,
            costs=self._costs.setdefault(name, Costs()),
        )
        *_, last = engine.generate(
            recording.prompt_tokens,
            self._sampling,
            method=method,
            max_tokens=len(recording.answer),
            slot=_SLOT,
        )
        assert isinstance(last, Finished)
        assert list(last.tokens) == recording.answer, "a replay enforces the text"
        return last.stats

    def _forget(self) -> None:
        """Have the drafter read one token in place of what it knows."""
        one = np.zeros(1, dtype=np.int32)
        self._drafter.submit(DraftRequest(_SLOT, one, Chain(0), Sampler()))
        self._drafter.poll(_SLOT, 5.0)


def compare(generations: list[Generation], baseline: str = "ar") -> dict[str, dict[str, Ratio]]:
    """Per method and task (and "all"): the ratio of its decoding rate to the baseline's."""
    by_method: dict[str, dict[tuple[str, str], Generation]] = {}
    for g in generations:
        key = (g.recording.prompt.task, g.recording.prompt.prompt_id)
        by_method.setdefault(g.method, {})[key] = g
    table: dict[str, dict[str, Ratio]] = {}
    for method, mine in by_method.items():
        table[method] = {}
        for task in ("all", *TASKS):
            keys = [key for key in mine if task in ("all", key[0]) and mine[key].stats.decode_s > 0]
            if keys:
                table[method][task] = ratio_of_rates(
                    [_rate(mine[key]) for key in keys],
                    [_rate(by_method[baseline][key]) for key in keys],
                )
    return table


def _rate(generation: Generation) -> tuple[float, float]:
    stats = generation.stats
    return stats.num_new_tokens - len(stats.rounds[0].tokens), stats.decode_s


def markdown(generations: list[Generation], latency_ms: float) -> str:
    """The table of one latency."""
    table = compare(generations)
    lines = [
        f"### Replayed at {latency_ms:g} ms a forward (a stand-in for a GPU's arithmetic)",
        "",
        "| method | tok/s | ratio to ar (95%) | tokens a forward | drafted | accepted "
        "| TTFT ms | gap ms | overlap |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for method, ratios in table.items():
        mine = [g.stats for g in generations if g.method == method]
        tokens = sum(_rate(g)[0] for g in generations if g.method == method)
        seconds = sum(s.decode_s for s in mine)
        whole = ratios["all"]
        lines.append(
            f"| {method} | {tokens / seconds:.1f} "
            f"| {whole.value:.2f} ({whole.low:.2f} to {whole.high:.2f}) "
            f"| {sum(s.num_new_tokens for s in mine) / sum(len(s.rounds) for s in mine):.2f} "
            f"| {sum(s.num_draft_tokens for s in mine)} "
            f"| {sum(s.num_accepted_tokens for s in mine)} "
            f"| {np.median([s.ttft_s for s in mine]) * 1e3:.1f} "
            f"| {np.median([s.median_gap_s for s in mine]) * 1e3:.2f} "
            f"| {np.mean([s.overlap for s in mine]):.2f} |"
        )
    lines += ["", "| ratio to ar | " + " | ".join(TASKS) + " |", "|---" * (len(TASKS) + 1) + "|"]
    for method, ratios in table.items():
        cells = [f"{ratios[task].value:.2f}" if task in ratios else "-" for task in TASKS]
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(
    latency_ms: Annotated[str, typer.Option(help="Milliseconds a forward, by commas.")] = "25,50",
    methods: Annotated[str, typer.Option(help="Methods, by commas; sps:2 sets gamma.")] = (
        "ar,sps:2,sps:4,sps:6,lookup,pearl,duo"
    ),
    data: Annotated[Path | None, typer.Option(help="A folder in Spec-Bench's format.")] = None,
    limit: Annotated[int, typer.Option(help="Prompts a task.")] = 5,
    max_tokens: Annotated[int, typer.Option(help="Tokens an answer.")] = 96,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    prefill_ms: Annotated[float, typer.Option(help="Milliseconds a prompt token.")] = 0.1,
    target: Annotated[str, typer.Option(help="The model that is recorded.")] = "smollm2",
    draft: Annotated[str, typer.Option(help="The draft model.")] = "auto",
    name: Annotated[str, typer.Option(help="Name of the result files.")] = "testbed",
) -> None:
    """Replay recorded answers at a given latency under every method."""
    console = Console()
    config = EngineConfig(target=target, draft=draft)
    sampling = SamplingParams(temperature=temperature, top_p=0.95 if temperature else 1.0, seed=1)
    recordings = record(config, read_prompts(data, limit), sampling, max_tokens)
    recordings = [r for r in recordings if len(r.answer) > 1]
    chosen = methods_named(methods)
    longest = max(len(r.tokens) for r in recordings)
    vocabulary = LlamaModel(resolve(target).path, vocabulary_only=True, num_gpu_layers=0)
    results: dict[str, Any] = {
        "test_bed": "ReplayTarget: the target's forwards are waited for, not computed",
        "environment": environment(),
        "settings": {
            "target": target, "draft": draft_for(config), "max_tokens": max_tokens,
            "temperature": temperature, "prefill_ms_per_token": prefill_ms, "flat_to": 64,
        },
        "latencies": {},
    }  # fmt: skip
    tables = []
    with drafter_of(config, longest + 64) as drafter:
        for latency in (float(text) for text in latency_ms.split(",")):
            bed = TestBed(drafter, vocabulary, sampling)
            curve = LatencyCurve(latency / 1e3, prefill_s=prefill_ms / 1e3)
            for method_name, method in chosen.items():  # warm-up: costs are learned, not typed
                bed.run(method_name, method, recordings[0], curve)
            generations = []
            for turn, recording in enumerate(track(recordings, f"{latency:g} ms")):
                order = list(chosen)
                order = order[turn % len(order) :] + order[: turn % len(order)]
                for method_name in order:
                    stats = bed.run(method_name, chosen[method_name], recording, curve)
                    generations.append(Generation(method_name, recording, stats))
            generations.sort(key=lambda g: list(chosen).index(g.method))
            tables.append(markdown(generations, latency))
            console.print(tables[-1], soft_wrap=True, markup=False)
            results["latencies"][f"{latency:g}"] = [g.as_json() for g in generations]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(results, indent=1))
    (RESULTS / f"{name}.md").write_text("\n\n".join(tables) + "\n")


if __name__ == "__main__":
    typer.run(main)

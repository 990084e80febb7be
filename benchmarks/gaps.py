"""Measure what stands between two forward passes: replayed text, real drafts, real clocks.

Texts are recorded first, then replayed at several latencies. For each method: the median time
between the end of a forward pass and the start of the next one, waits for drafts left out, and
tokens per second.

    python -m benchmarks.gaps --data FOLDER --latencies 5,10,25,50
"""

from __future__ import annotations

import cProfile
import json
import pstats
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks import RESULTS
from duodec.backends.testbeds import LatencyCurve
from duodec.bench.beds import ReplayBed, replay_stage
from duodec.bench.card import environment
from duodec.bench.recording import record
from duodec.bench.tasks import TASKS, read_prompts
from duodec.config import EngineConfig
from duodec.core.round import Stats
from duodec.core.sampling import SamplingParams
from duodec.loading import draft_for
from duodec.methods.registry import method as method_named
from duodec.planning.costs import Costs


def main(
    data: Annotated[Path, typer.Option(help="A folder in Spec-Bench's format.")],
    target: Annotated[str, typer.Option()] = "smollm2",
    limit: Annotated[int, typer.Option(help="Prompts a task.")] = 1,
    max_tokens: Annotated[int, typer.Option(help="Of a completion.")] = 64,
    latencies: Annotated[str, typer.Option(help="Milliseconds, by commas.")] = "5,10,25,50",
    methods: Annotated[str, typer.Option()] = "ar,lookup,duo,stream,auto",
    profile: Annotated[str, typer.Option(help="Print a profile of this method instead.")] = "",
    name: Annotated[str, typer.Option(help="Of the result file.")] = "gaps",
) -> None:
    """Print and write down the medians."""
    config = EngineConfig(target=target)
    config = EngineConfig(target=target, draft=draft_for(config))
    names = [profile] if profile else methods.split(",")
    chosen = [method_named(n) for n in names]
    found: dict[str, dict[str, dict[str, float]]] = {}
    curve = LatencyCurve(0.025)
    with replay_stage(config, SamplingParams(), curve, chosen, is_enforced=False) as stage:
        num_vocab = stage.recorder.tokenizer.num_vocab
        prompts = read_prompts(data, TASKS, limit)
        turns = [
            turn
            for conversation in record(stage.recorder, prompts, SamplingParams(), max_tokens)
            for turn in conversation.turns[:1]
        ]
        for milliseconds in map(float, latencies.split(",")):
            found[f"{milliseconds:g}"] = {}
            for entrant in map(method_named, names):
                bed = stage.bed_for(entrant)
                assert isinstance(bed, ReplayBed), "a replay needs no rows off the path"
                bed.curve = LatencyCurve(milliseconds / 1e3)
                costs, profiler = Costs(), cProfile.Profile()
                several: list[Stats] = []
                for turn in turns:
                    bed.forget()
                    if profile:
                        profiler.enable()
                    several.append(bed.answer(entrant, turn, costs).stats)
                    profiler.disable()
                gaps = [s.median_gap_s for s in several]
                tokens = sum(s.num_new_tokens for s in several)
                seconds = sum(s.decode_s for s in several)
                figures = {
                    "gap_ms": 1e3 * median(gaps),
                    "tokens_per_second": tokens / seconds,
                    "tokens_per_forward": tokens / sum(len(s.rounds) for s in several),
                }
                found[f"{milliseconds:g}"][entrant.name] = figures
                print(milliseconds, entrant.name, figures, flush=True)
                if profile:
                    pstats.Stats(profiler).sort_stats("cumulative").print_stats(60)
    if not profile:
        settings = {"target": target, "draft": config.draft, "num_vocab": num_vocab,
                    "max_tokens": max_tokens, "prompts": len(turns)}  # fmt: skip
        result = {"environment": environment(), "settings": settings, "milliseconds": found}
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    typer.run(main)

"""Measure drafting after long prompts: a drafter process, replayed completions, real clocks.

Prompts of several lengths are completed first, then replayed at a latency; the prompts are cold for
both target and drafter. For each method: speed over plain decoding, tokens a forward pass, and the
forward passes from the first token to the first accepted draft. `sps`, `pearl` and `duo` draft with
the model only, so their figure shows when the draft model begins to help.

    python -m benchmarks.decoding.long_prompts --data FOLDER --sizes 1000,4000,7500
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks import RESULTS
from benchmarks.decoding.windows import documents, prompts
from duodec.backends.curves import CostCurve
from duodec.backends.testbeds import LatencyCurve
from duodec.bench.beds import replay_stage
from duodec.bench.card import environment
from duodec.bench.recording import Turn
from duodec.core.events import Finished
from duodec.core.round import Stats
from duodec.core.sampling import SamplingParams
from duodec.loading.config import EngineConfig
from duodec.loading.resolve import draft_for
from duodec.methods.registry import method as method_named
from duodec.planning.costs import Costs


def first_accepted(stats: Stats) -> int | None:
    """Forward passes after the first token until a draft was accepted; None if none was."""
    rounds = stats.rounds[1:]
    return next((i for i, r in enumerate(rounds, 1) if r.num_accepted), None)


def main(
    data: Annotated[Path, typer.Option(help="A folder in Spec-Bench's format.")],
    target: Annotated[str, typer.Option()] = "smollm2",
    sizes: Annotated[
        str, typer.Option(help="Tokens of a prompt, comma-separated.")
    ] = "1000,4000,7500",
    limit: Annotated[int, typer.Option(help="Prompts of each size.")] = 2,
    max_tokens: Annotated[int, typer.Option(help="Of a completion.")] = 64,
    replay_ms: Annotated[float, typer.Option(help="A forward pass of the target.")] = 25.0,
    prefill_ms: Annotated[float, typer.Option(help="A prompt token.")] = 0.1,
    methods: Annotated[str, typer.Option()] = "ar,lookup,sps:4,pearl,duo,stream,auto",
    name: Annotated[str, typer.Option(help="Of the result file.")] = "long-prompts",
) -> None:
    """Print and write the figures, medians over prompts."""
    config = EngineConfig(target=target)
    config = EngineConfig(target=target, draft=draft_for(config))
    curve = LatencyCurve(CostCurve.flat(replay_ms / 1e3), prefill_s=prefill_ms / 1e3)
    names = methods.split(",")
    chosen = [method_named(name) for name in names]
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    with replay_stage(config, SamplingParams(), curve, chosen, is_enforced=False) as stage:
        costs = {name: Costs() for name in names}
        entrants = {name: method_named(name) for name in names}
        for size in map(int, sizes.split(",")):
            sums: dict[str, list[Stats]] = defaultdict(list)
            for tokens in prompts(stage.recorder, documents(data), size, limit):
                *_, last = stage.recorder.stream(
                    tokens, SamplingParams(max_tokens=max_tokens), method="ar"
                )
                assert isinstance(last, Finished)
                turn = Turn(1, tuple(tokens), last.tokens, last.text, max_tokens)
                for name_, entrant in entrants.items():
                    bed = stage.bed_for(entrant)
                    bed.forget()
                    sums[name_].append(bed.answer(entrant, turn, costs[name_]).stats)
            plain = sum(s.decode_s for s in sums["ar"])
            found[str(size)] = {}
            for name_, several in sums.items():
                waits = [first for s in several if (first := first_accepted(s)) is not None]
                found[str(size)][name_] = {
                    "speedup": plain / sum(s.decode_s for s in several),
                    "tokens_per_forward": sum(s.num_new_tokens for s in several)
                    / sum(len(s.rounds) for s in several),
                    "first_accepted_after": median(waits) if waits else None,
                    "draft_tokens": sum(s.num_draft_tokens for s in several),
                }
                print(size, name_, found[str(size)][name_], flush=True)
    settings = {"target": target, "replay_ms": replay_ms, "prefill_ms": prefill_ms,
                "limit": limit, "max_tokens": max_tokens}  # fmt: skip
    record = {"environment": environment(), "settings": settings, "sizes": found}
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    typer.run(main)

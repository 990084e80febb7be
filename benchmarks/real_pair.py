"""Real targets without a stand-in: every method on a real pair, cold prompts, interleaved.

python -m benchmarks.real_pair --data FOLDER --limit 1
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from benchmarks.card import environment
from benchmarks.prompts import read_prompts
from benchmarks.ratios import ratio_of_rates
from benchmarks.testbed import RESULTS, Generation, Recording
from duodec.core.protocols import DraftRequest
from duodec.core.sampling import Sampler, SamplingParams
from duodec.drafting.plans import Chain
from duodec.engine import Engine
from duodec.events import Finished
from duodec.loading import EngineConfig, load


def main(
    data: Annotated[Path | None, typer.Option(help="A folder in Spec-Bench's format.")] = None,
    limit: Annotated[int, typer.Option(help="Prompts a task.")] = 1,
    max_tokens: Annotated[int, typer.Option(help="Tokens an answer.")] = 64,
    methods: Annotated[str, typer.Option(help="Methods, by commas.")] = "ar,sps,lookup,pearl,duo",
    temperature: Annotated[float, typer.Option()] = 0.0,
    target: Annotated[str, typer.Option()] = "smollm2",
    draft: Annotated[str, typer.Option()] = "auto",
    exact: Annotated[bool, typer.Option()] = False,
    fast: Annotated[bool, typer.Option()] = False,
    name: Annotated[str, typer.Option(help="Name of the result file.")] = "real-pair",
) -> None:
    """Measure methods on a real pair."""
    console = Console()
    sampling = SamplingParams(temperature=temperature, top_p=0.95 if temperature else 1.0, seed=1)
    names = methods.split(",")
    generations: list[Generation] = []
    num_parted = 0  # prompts on which methods disagreed
    with load(EngineConfig(target=target, draft=draft, exact=exact, fast=fast)) as engine:
        prompts = read_prompts(data, limit)
        for warm in names:
            run(engine, engine.tokens_of("A first word."), sampling, warm, 8)
        for turn, prompt in enumerate(track(prompts, "measuring")):
            tokens = engine.tokens_of([{"role": "user", "content": prompt.text}])
            texts = set()
            for method in names[turn % len(names) :] + names[: turn % len(names)]:
                cool(engine)
                last = run(engine, tokens, sampling, method, max_tokens)
                texts.add(last.tokens)
                recording = Recording(prompt, tokens, list(last.tokens))
                generations.append(Generation(method, recording, last.stats))
            num_parted += len(texts) > 1
    lines = [
        f"### {target}, temperature {temperature:g}, no stand-in",
        "",
        "| method | tok/s | ratio to ar (95%) | tokens a forward | TTFT ms | TTFT to ar "
        "| forward ms | gap ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    plain = [g for g in generations if g.method == "ar"]
    for method in names:
        mine = [g for g in generations if g.method == method]
        ratio = ratio_of_rates([rate(g) for g in mine], [rate(g) for g in plain])
        first = np.median(
            [g.stats.ttft_s / p.stats.ttft_s for g, p in zip(mine, plain, strict=True)]
        )
        tokens_, seconds = np.sum([rate(g) for g in mine], axis=0)
        lines.append(
            f"| {method} | {tokens_ / seconds:.1f} "
            f"| {ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f}) "
            f"| {np.mean([g.stats.mean_accepted for g in mine]):.2f} "
            f"| {np.median([g.stats.ttft_s for g in mine]) * 1e3:.0f} | {first:.3f} "
            f"| {np.median([g.stats.median_forward_s for g in mine]) * 1e3:.1f} "
            f"| {np.median([g.stats.median_gap_s for g in mine]) * 1e3:.2f} |"
        )
    lines += ["", f"Prompts on which texts differed: {num_parted} of {len(prompts)}."]
    console.print("\n".join(lines), soft_wrap=True, markup=False)
    RESULTS.mkdir(exist_ok=True)
    settings = {"target": target, "draft": draft, "exact": exact, "fast": fast,
                "temperature": temperature, "max_tokens": max_tokens}  # fmt: skip
    (RESULTS / f"{name}.json").write_text(
        json.dumps(
            {
                "environment": environment(),
                "settings": settings,
                "generations": [g.as_json() for g in generations],
            },
            indent=1,
        )
    )
    (RESULTS / f"{name}.md").write_text("\n".join(lines) + "\n")


def run(
    engine: Engine, tokens: list[int], sampling: SamplingParams, method: str, n: int
) -> Finished:
    """One answer."""
    *_, last = engine.generate(tokens, sampling, method=method, max_tokens=n)
    assert isinstance(last, Finished)
    return last


def cool(engine: Engine) -> None:
    """Both sides forget what they read."""
    run(engine, [0], SamplingParams(), "ar", 1)
    if engine.drafter:
        engine.drafter.submit(DraftRequest(0, np.zeros(1, np.int32), Chain(0), Sampler()))
        engine.drafter.poll(0, 5.0)


def rate(generation: Generation) -> tuple[float, float]:
    """Tokens after the first forward, and their seconds."""
    stats = generation.stats
    return stats.num_new_tokens - len(stats.rounds[0].tokens), stats.decode_s


if __name__ == "__main__":
    typer.run(main)

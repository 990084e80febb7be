"""One seed, one text: does every method say exactly what plain decoding says?

Runs real models with the drafter in its process and counts divergences from `ar`. With fast
kernels a divergence is judged: it is excused only where both rows, recomputed, lie so close
that a perturbation of the size that kernels show (the 99th percentile of the measured deviation
of a logit between one-token and batched forwards) can flip the draw.

    python -m benchmarks.identity --data FOLDER --limit 3
    python -m benchmarks.identity --data FOLDER --target qwen2.5-coder-1.5b --exact
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

from benchmarks.card import environment
from benchmarks.prompts import read_prompts
from benchmarks.testbed import RESULTS
from duodec.backends.llamacpp.target import LlamaTarget
from duodec.core.draft import Draft
from duodec.core.protocols import Query
from duodec.core.sampling import Context, Sampler, SamplingParams
from duodec.engine import Engine
from duodec.events import Finished
from duodec.loading import EngineConfig, load

TEMPERATURES = (0.0, 0.7, 1.2)


@dataclass
class Count:
    """What happened to one method at one temperature."""

    answers: int = 0
    tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    refusals: int = 0  # rounds that refused a draft token
    near_ties: int = 0
    divergences: int = 0
    excused: int = 0
    places: list[str] = field(default_factory=list)


def answer(engine: Engine, tokens: list[int], sampling: SamplingParams, method: str, n: int) -> Finished:
    *_, last = engine.generate(tokens, sampling, method=method, max_tokens=n)
    assert isinstance(last, Finished)
    return last


def deviation(target: LlamaTarget, tokens: list[int], num_answer: int) -> np.ndarray:
    """How far logits move between one-token and batched forwards of the same text: absolute
    differences over the tokens that matter (the 64 best of each row)."""
    moved = []
    for start in range(len(tokens) - num_answer, len(tokens) - 8, 8):
        text, chain = np.array(tokens[:start], np.int32), Draft.chain(tokens[start : start + 7])
        batched = rows_of(target, text, chain)
        for i in range(1, 8):
            longer = np.array(tokens[: start + i], np.int32)
            # read the token before on its own, so that the row is that of plain decoding
            rows_of(target, longer[:-1], Draft())
            alone = rows_of(target, longer, Draft())[0]
            best = np.argpartition(alone, -64)[-64:]
            moved.append(np.abs(batched[i][best] - alone[best]))
    return np.concatenate(moved)


def rows_of(target: LlamaTarget, text: np.ndarray, draft: Draft) -> list[np.ndarray]:
    (scores,) = target.score([Query(0, text, draft)])
    return [row.copy() for row in scores.rows]  # type: ignore[attr-defined]


def is_excused(target: LlamaTarget, sampler: Sampler, text: list[int], ours: int, plain: int,
               delta: float) -> bool:
    """Whether moving logits by ``delta`` can make the two draws change places, or move one
    of them across the edge of the nucleus."""
    context = Context(np.array(text, np.int32))
    row = rows_of(target, context.text, Draft())[0]
    for sign in (1, -1):
        moved = row.copy()
        moved[ours] += sign * delta
        moved[plain] -= sign * delta
        if sampler.draw(moved, context).token != sampler.draw(row, context).token:
            return True
    return False


def main(
    data: Annotated[Path | None, typer.Option(help="A folder in Spec-Bench's format.")] = None,
    limit: Annotated[int, typer.Option(help="Prompts a task.")] = 3,
    prompts: Annotated[int, typer.Option(help="Prompts in all.")] = 20,
    max_tokens: Annotated[int, typer.Option(help="Tokens an answer.")] = 128,
    methods: Annotated[str, typer.Option(help="Methods, by commas.")] = "sps,lookup,pearl,duo",
    target: Annotated[str, typer.Option()] = "smollm2",
    draft: Annotated[str, typer.Option()] = "auto",
    exact: Annotated[bool, typer.Option(help="Bit-identical kernels.")] = False,
    name: Annotated[str, typer.Option(help="Name of the result file.")] = "identity",
) -> None:
    """Compare every method's text with plain decoding's."""
    console = Console()
    counts: dict[str, Count] = {}
    chosen = read_prompts(data, limit)[:prompts]
    delta = 0.0
    with load(EngineConfig(target=target, draft=draft, exact=exact)) as engine:
        assert isinstance(engine.target, LlamaTarget)
        if not exact:
            tokens = engine.tokens_of([{"role": "user", "content": chosen[0].text}])
            plain = answer(engine, tokens, SamplingParams(), "ar", 64)
            moved = deviation(engine.target, [*tokens, *plain.tokens], len(plain.tokens))
            delta = float(np.quantile(moved, 0.99))
            console.print(f"logits move by up to {moved.max():.3g}, 99th percentile {delta:.3g}")
        for prompt in track(chosen, "comparing"):
            tokens = engine.tokens_of([{"role": "user", "content": prompt.text}])
            for temperature in TEMPERATURES:
                top_p = 0.95 if temperature else 1.0
                sampling = SamplingParams(temperature=temperature, top_p=top_p, seed=7)
                plain = answer(engine, tokens, sampling, "ar", max_tokens)
                for method in methods.split(","):
                    got = answer(engine, tokens, sampling, method, max_tokens)
                    count = counts.setdefault(f"{method} T={temperature:g}", Count())
                    count.answers += 1
                    count.tokens += len(got.tokens)
                    count.draft_tokens += got.stats.num_draft_tokens
                    count.accepted_tokens += got.stats.num_accepted_tokens
                    count.refusals += sum(
                        r.num_accepted < r.num_scored for r in got.stats.rounds
                    )
                    count.near_ties += got.stats.num_near_ties
                    if got.tokens != plain.tokens:
                        judge(engine, count, tokens, sampling, plain, got, delta)
    for label, count in counts.items():
        console.print(
            f"{label:>14}: {count.answers} answers, {count.tokens} tokens, drafted "
            f"{count.draft_tokens}, accepted {count.accepted_tokens}, rounds with a refusal "
            f"{count.refusals}, divergences {count.divergences} (excused {count.excused})"
        )
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(
        json.dumps(
            {
                "environment": environment(),
                "settings": {"target": target, "exact": exact, "max_tokens": max_tokens,
                             "prompts": len(chosen), "deviation_p99": delta},
                "counts": {label: asdict(count) for label, count in counts.items()},
            },
            indent=1,
        )
    )  # fmt: skip
    if any(count.divergences > count.excused for count in counts.values()):
        raise typer.Exit(1)


def judge(engine: Engine, count: Count, prompt: list[int], sampling: SamplingParams,
          plain: Finished, got: Finished, delta: float) -> None:
    """Write a divergence down, and whether it is excused."""
    pairs = zip(plain.tokens, got.tokens, strict=False)
    at = next(i for i, (a, b) in enumerate(pairs) if a != b)
    count.divergences += 1
    count.places.append(f"token {at}: {plain.tokens[at]} became {got.tokens[at]}")
    assert isinstance(engine.target, LlamaTarget)
    text = [*prompt, *plain.tokens[:at]]
    sampler = Sampler(sampling, 0, len(prompt))
    if delta and is_excused(engine.target, sampler, text, got.tokens[at], plain.tokens[at], delta):
        count.excused += 1



if __name__ == "__main__":
    typer.run(main)

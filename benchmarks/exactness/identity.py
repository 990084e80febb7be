"""Check that every method's text equals plain decoding's: one seed, one text.

Runs real models with the drafter in its process and counts divergences from `ar`. A divergence
is judged: it is excused only if a perturbation of the row's logits as large as the kernels' (the
99th percentile of the measured deviation of a logit between one-token and batched forward passes)
can flip the draw. If kernels have no deviation, nothing is excused. Ctrl-C ends a run with what its
whole prompts gave; ``--onto`` goes on from there.

    python -m benchmarks identity --data FOLDER --limit 3
    python -m benchmarks identity --data FOLDER --target MODEL --exact
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from benchmarks import RESULTS, Figures, Refuted
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.backends.llamacpp.target.trees import LlamaScores
from duodec.bench.tasks import TASKS, read_prompts
from duodec.core.draft import Draft
from duodec.core.events import Finished
from duodec.core.protocols import Query
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Context, Sampler, SamplingParams, Tokens
from duodec.llm import LLM, load
from duodec.loading.config import EngineConfig


@dataclass
class Count:
    """Counts of one method at one temperature."""

    answers: int = 0
    tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    refusals: int = 0  # rounds that refused a draft token
    near_ties: int = 0
    divergences: int = 0
    excused: int = 0
    places: list[str] = field(default_factory=list)

    def add(self, got: Finished) -> None:
        """Add a completion."""
        self.answers += 1
        self.tokens += len(got.tokens)
        self.draft_tokens += got.stats.num_draft_tokens
        self.accepted_tokens += got.stats.num_accepted_tokens
        self.refusals += sum(r.num_accepted < r.num_scored for r in got.stats.rounds)
        self.near_ties += got.stats.num_near_ties

    def merge(self, other: Count) -> None:
        """Add what another count has."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    def line(self) -> str:
        return (
            f"{self.answers} completions, {self.tokens} tokens, {self.draft_tokens} drafted, "
            f"{self.accepted_tokens} accepted, {self.refusals} rounds with a refusal, "
            f"{self.divergences} divergences ({self.excused} excused)"
        )


@dataclass
class Judge:
    """Compares completions, and judges where they diverge."""

    target: LlamaTarget
    delta: float = 0.0  # how far kernels move a logit

    def measure(self, tokens: list[int], num_answer: int) -> NDArray[np.float32]:
        """Measure how far logits move between one-token and batched forward passes of one text:
        absolute differences over the 64 best tokens of each row. Sets ``delta``."""
        moved = []
        for start in range(len(tokens) - num_answer, len(tokens) - 8, 8):
            text = np.array(tokens[:start], dtype=np.int32)
            batched = self._rows(text, Draft.chain(tokens[start : start + 7]))
            for i in range(1, 8):
                longer = np.array(tokens[: start + i], dtype=np.int32)
                self._rows(longer[:-1])  # so that the row is that of plain decoding
                (alone,) = self._rows(longer)
                best = np.argpartition(alone, -64)[-64:]
                moved.append(np.abs(batched[i][best] - alone[best]))
        deviations = np.concatenate(moved)
        self.delta = float(np.quantile(deviations, 0.99))
        return deviations

    def compare(
        self, count: Count, prompt: list[int], sampling: SamplingParams, plain: Finished,
        got: Finished,
    ) -> None:  # fmt: skip
        """Count a completion, and its divergence."""
        count.add(got)
        if got.tokens == plain.tokens:
            return
        pairs = zip(plain.tokens, got.tokens, strict=False)
        count.divergences += 1
        parted = (i for i, (ours, theirs) in enumerate(pairs) if ours != theirs)
        at = next(parted, None)
        if at is None:  # one text is a prefix of the other: no kernel causes that
            count.places.append(f"{len(plain.tokens)} tokens became {len(got.tokens)}")
            return
        count.places.append(f"token {at}: {plain.tokens[at]} became {got.tokens[at]}")
        sampler = Sampler(sampling, 0, len(prompt))
        text = np.array([*prompt, *plain.tokens[:at]], dtype=np.int32)
        count.excused += self._is_excused(sampler, text, (plain.tokens[at], got.tokens[at]))

    def _is_excused(self, sampler: Sampler, text: Tokens, parted: tuple[int, int]) -> bool:
        """Whether moving the two tokens' logits by delta swaps their draws, or moves one of them
        across the edge of the nucleus."""
        (row,) = self._rows(text)
        drawn = sampler.draw(row, Context(text)).token
        for sign in (1, -1):
            moved = row.copy()
            moved[parted[0]] += sign * self.delta
            moved[parted[1]] -= sign * self.delta
            if sampler.draw(moved, Context(text)).token != drawn:
                return True
        return False

    def _rows(self, text: Tokens, draft: Draft | None = None) -> list[Row]:
        (scores,) = self.target.score([Query(0, text, draft or Draft())])
        assert isinstance(scores, LlamaScores)
        return [row.copy() for row in scores.rows]


def main(
    data: Annotated[Path | None, typer.Option(help="A folder in Spec-Bench's format.")] = None,
    limit: Annotated[int, typer.Option(help="Prompts a task.")] = 3,
    prompts: Annotated[int, typer.Option(help="Prompts in all.")] = 20,
    onto: Annotated[str, typer.Option(help="A result that this run goes on from.")] = "",
    threads: Annotated[int | None, typer.Option(help="Of the target.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of a completion.")] = 128,
    methods: Annotated[
        str, typer.Option(help="Methods, comma-separated.")
    ] = "sps,lookup,pearl,duo",
    temperatures: Annotated[str, typer.Option(help="Comma-separated.")] = "0,0.7,1.2",
    target: Annotated[str, typer.Option()] = "smollm2",
    draft: Annotated[str, typer.Option()] = "auto",
    datastore: Annotated[str | None, typer.Option(help="For `rest`.")] = None,
    exact: Annotated[bool, typer.Option(help="Bit-identical kernels.")] = False,
    fast: Annotated[bool, typer.Option(help="llama.cpp's own kernels.")] = False,
) -> Figures:
    """Compare every method's text with plain decoding's."""
    console = Console()
    counts: dict[str, Count] = {}
    first = 0
    if onto:
        earlier = json.loads((RESULTS / f"{onto}.json").read_text("utf-8"))["figures"]
        counts = {label: Count(**count) for label, count in earlier["counts"].items()}
        first = earlier["prompts"]
    chosen = read_prompts(data, TASKS, limit)[:prompts]
    config = EngineConfig(
        target=target, draft=draft, datastore=datastore, exact=exact, fast=fast, threads=threads
    )
    with load(config) as engine:
        assert isinstance(engine.target, LlamaTarget)
        judge = Judge(engine.target)
        tokens = engine.tokens_of([{"role": "user", "content": chosen[0].turns[0]}])
        plain = answer(engine, tokens, SamplingParams(), "ar", 64)
        moved = judge.measure([*tokens, *plain.tokens], len(plain.tokens))
        console.print(f"logits move by up to {moved.max():.3g}, 99th percentile {judge.delta:.3g}")
        num_done = first
        try:
            for prompt in track(chosen[first:], "comparing"):
                tokens = engine.tokens_of([{"role": "user", "content": prompt.turns[0]}])
                found = compared(
                    engine, judge, tokens, map(float, temperatures.split(",")), methods.split(","),
                    max_tokens,
                )  # fmt: skip
                for label, count in found.items():
                    counts.setdefault(label, Count()).merge(count)
                num_done += 1
        except KeyboardInterrupt:
            if not num_done:
                raise
            console.print(f"interrupted after {num_done} of {len(chosen)} prompts")
    for label, count in counts.items():
        console.print(f"{label:>14}: {count.line()}", soft_wrap=True)
    counted = {label: asdict(count) for label, count in counts.items()}
    figures = {"prompts": num_done, "deviation_p99": judge.delta, "counts": counted}
    if any(count.divergences > count.excused for count in counts.values()):
        raise Refuted("a method's text is not plain decoding's", figures)
    return figures


def compared(
    engine: LLM, judge: Judge, tokens: list[int], temperatures: Iterable[float],
    methods: Sequence[str], max_tokens: int,
) -> dict[str, Count]:  # fmt: skip
    """Complete a prompt by each method at each temperature, and count."""
    counts: dict[str, Count] = {}
    for temperature in temperatures:
        top_p = 0.95 if temperature else 1.0
        sampling = SamplingParams(temperature=temperature, top_p=top_p, seed=7)
        plain = answer(engine, tokens, sampling, "ar", max_tokens)
        for method in methods:
            count = counts[f"{method} T={temperature:g}"] = Count()
            got = answer(engine, tokens, sampling, method, max_tokens)
            judge.compare(count, tokens, sampling, plain, got)
    return counts


def answer(
    engine: LLM, tokens: list[int], sampling: SamplingParams, method: str, max_tokens: int
) -> Finished:
    """Run one completion to its end."""
    *_, last = engine.stream(tokens, replace(sampling, max_tokens=max_tokens), method=method)
    assert isinstance(last, Finished)
    return last

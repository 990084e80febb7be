"""Check that every method's text equals plain decoding's: one seed, one text.

Runs real models with the drafter in its process and counts divergences from `ar`; there must be
none. A target that is done before a drafter has begun is slowed by ``--pace``. Ctrl-C ends a run
with what its whole prompts gave; ``--onto`` goes on from there.

    python -m benchmarks identity --data FOLDER --limit 3
    python -m benchmarks identity --data FOLDER --target MODEL --exact
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from benchmarks import Figures, Refuted, figures_of
from duodec.core.sampling.sampler import SamplingParams
from duodec.llm import LLM, load
from duodec.loading.config import EngineConfig
from duodec.scheduler.completions import Completion
from duodec_lab.bench.tasks import TASKS, read_prompts


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
    places: list[str] = field(default_factory=list)

    def add(self, got: Completion, plain: Completion) -> None:
        """Add a completion, and where it parts from plain decoding's."""
        self.answers += 1
        self.tokens += len(got.tokens)
        self.draft_tokens += got.stats.num_draft_tokens
        self.accepted_tokens += got.stats.num_accepted_tokens
        self.refusals += sum(r.num_accepted < r.num_scored for r in got.stats.rounds)
        self.near_ties += got.stats.num_near_ties
        if got.tokens == plain.tokens:
            return
        self.divergences += 1
        pairs = enumerate(zip(plain.tokens, got.tokens, strict=False))
        lengths = f"{len(plain.tokens)} tokens became {len(got.tokens)}"
        parted = (f"token {i}: {ours} became {own}" for i, (ours, own) in pairs if ours != own)
        self.places.append(next(parted, lengths))

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Count:
        """What an earlier run counted, which may have been more."""
        return cls(**{name: record[name] for name in cls.__dataclass_fields__})

    def merge(self, other: Count) -> None:
        """Add what another count has."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)

    def line(self) -> str:
        return (
            f"{self.answers} completions, {self.tokens} tokens, {self.draft_tokens} drafted, "
            f"{self.accepted_tokens} accepted, {self.refusals} rounds with a refusal, "
            f"{self.divergences} divergences"
        )


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
    pace: Annotated[float, typer.Option(help="Seconds of a pass, at least.")] = 0.0,
) -> Figures:
    """Compare every method's text with plain decoding's."""
    console = Console()
    counts: dict[str, Count] = {}
    first = 0
    if onto:
        earlier = figures_of(onto)
        counts = {label: Count.of(count) for label, count in earlier["counts"].items()}
        first = earlier["prompts"]
    chosen = read_prompts(data, TASKS, limit)[:prompts]
    config = EngineConfig(
        target=target, draft=draft, datastore=datastore, exact=exact, fast=fast, threads=threads,
        pace=pace,
    )  # fmt: skip
    with load(config) as engine:
        num_done = first
        try:
            for prompt in track(chosen[first:], "comparing"):
                found = compared(
                    engine, prompt.turns[0], map(float, temperatures.split(",")),
                    methods.split(","), max_tokens,
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
    figures = {"prompts": num_done, "counts": counted}
    if any(count.divergences for count in counts.values()):
        raise Refuted("a method's text is not plain decoding's", figures)
    return figures


def compared(
    engine: LLM, question: str, temperatures: Iterable[float], methods: Sequence[str],
    max_tokens: int,
) -> dict[str, Count]:  # fmt: skip
    """Answer a question by each method at each temperature, and count."""
    counts: dict[str, Count] = {}
    for temperature in temperatures:
        top_p = 0.95 if temperature else 1.0
        params = SamplingParams(temperature=temperature, top_p=top_p, seed=7, max_tokens=max_tokens)
        plain = engine.chat(question, params, method="ar")
        for method in methods:
            count = counts[f"{method} T={temperature:g}"] = Count()
            count.add(engine.chat(question, params, method=method), plain)
    return counts

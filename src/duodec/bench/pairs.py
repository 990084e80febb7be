"""Match records: a target with its draft, and a method with its baseline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from duodec.bench.results import Generation, Results
from duodec.bench.statistics import Ratio, ratio_of_rates


@dataclass(frozen=True)
class Pair:
    """A target and its draft; None if no method used one."""

    target: str
    draft: str | None

    def __str__(self) -> str:
        return f"{self.target} with {self.draft}" if self.draft else self.target


def pairs_of(results: Results) -> list[Pair]:
    """Every target with every draft it was measured with, in the order of the records."""
    found = dict.fromkeys(Pair(g.target, g.draft) for g in results.generations)
    with_draft = {pair.target for pair in found if pair.draft}
    return [pair for pair in found if pair.draft or pair.target not in with_draft]


def generations_of(results: Results, pair: Pair) -> list[Generation]:
    """The pair's records. A method measured without a draft (plain decoding, lookup) belongs to
    every draft of its target."""
    ours = [g for g in results.generations if g.target == pair.target]
    drafted = {g.method for g in ours if g.draft == pair.draft}
    return [g for g in ours if g.draft == (pair.draft if g.method in drafted else None)]


def succeeded(generations: Iterable[Generation]) -> list[Generation]:
    """The generations without an error. A failed one is a missing value: it enters no figure."""
    return [g for g in generations if not g.error]


def ratio_to(ours: Iterable[Generation], theirs: Iterable[Generation]) -> Ratio | None:
    """Our rate over theirs, on the prompts, turns and repeats that both measured. None if there are
    none."""
    answers = {(g.prompt_key, g.repeat): g.rate for g in theirs}
    our_rates, their_rates, prompts = [], [], []
    for g in ours:
        our, their = g.rate, answers.get((g.prompt_key, g.repeat))
        if our and their and our[0] > 0 and their[0] > 0:
            our_rates.append(our)
            their_rates.append(their)
            prompts.append((g.task, g.prompt_id))
    return ratio_of_rates(our_rates, their_rates, prompts) if prompts else None

"""Compute a run's measures of each method: pure functions of its records.

A failed generation is a missing value: it is counted but excluded from all figures. None means that
there was nothing to measure. Speeds leave out the first round, which prefills the prompt, unless
they are called whole: those are over all the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from statistics import fmean, median
from typing import TypeVar

import numpy as np

from duodec_lab.bench.reports.baseline import baseline_words, unpadded_share
from duodec_lab.bench.reports.statistics import Rate, Ratio, ratio_of_rates
from duodec_lab.bench.results import (
    Generation,
    Pair,
    Results,
    generations_of,
    pairs_of,
    succeeded,
)

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Share:
    """A count out of a total."""

    count: int
    total: int

    def __str__(self) -> str:
        return f"{self.count} of {self.total}"


@dataclass(frozen=True)
class Measures:
    """One method on one task, or on all of them together."""

    method: str
    task: str | None  # None: all
    num_generations: int
    num_failed: int
    tokens_per_second: float | None  # sum of tokens over sum of seconds
    ratio: Ratio | None  # to the baseline's, if both succeeded
    whole_tokens_per_second: float | None  # the same from request to last token, prefill included
    whole_ratio: Ratio | None
    mean_accepted: float | None  # tokens a forward pass, the target's own included
    acceptance: tuple[float, ...]  # [i]: share of the rounds that accepted more than i draft tokens
    sequences: tuple[int, ...]  # [i]: rounds in parallel with which i + 1 were drafted
    ttft_s: float | None  # median
    token_latency_s: float | None  # a token after the first, mean over completions
    gap_p95_s: float | None  # between arrivals, 95th percentile
    target_busy: float | None  # share of the time from the request to the last token
    draft_busy: float | None
    overlap: float | None  # share of the target's time during which the drafter works
    drafting_free_tokens_per_second: float | None  # its forward passes, with no gap between them
    ceiling_tokens_per_second: float | None  # allowed by the target's latency or bandwidth
    memory_bytes: int | None  # peak
    energy_j_per_token: float | None
    identical: Share | None  # to plain decoding, if that is promised
    num_near_ties: int | None
    score: Share | None  # correct completions

    @property
    def efficiency(self) -> float | None:
        """Share of the speed that free drafting would give."""
        return _divided(self.tokens_per_second, self.drafting_free_tokens_per_second)

    @property
    def ceiling_share(self) -> float | None:
        """Share of the speed that the target allows."""
        return _divided(self.tokens_per_second, self.ceiling_tokens_per_second)


@dataclass(frozen=True)
class PairMeasures:
    """Every method of a run on one pair of target and draft."""

    pair: Pair
    baseline: str
    test_beds: tuple[str, ...]
    num_prompts: int
    methods: tuple[str, ...]  # those with a record
    tasks: tuple[str, ...]
    cells: dict[tuple[str, str | None], Measures]
    basis: str = ""  # what 1.00 is, if it is not plain decoding on this machine
    unpadded_share: float | None = None  # the baseline over unpadded plain decoding, if padded

    def of(self, method: str, task: str | None = None) -> Measures:
        """A method on a task, or on all."""
        return self.cells[method, task]


def measure(results: Results) -> list[PairMeasures]:
    """The measures of every pair."""
    return [_measure_pair(results, pair) for pair in pairs_of(results)]


def _measure_pair(results: Results, pair: Pair) -> PairMeasures:
    ours = generations_of(results, pair)
    methods = tuple(m for m in results.methods if any(g.method == m for g in ours))
    tasks = tuple(t for t in results.tasks if any(g.task == t for g in ours))
    baseline = results.settings["baseline"]
    cells = {}
    for task in (*tasks, None):
        here = [g for g in ours if task in (None, g.task)]
        plain = [g for g in here if g.method == baseline]
        for method in methods:
            mine = [g for g in here if g.method == method]
            cells[method, task] = summarise(method, task, mine, plain)
    whole = cells.get((baseline, None))
    return PairMeasures(
        pair=pair,
        baseline=baseline,
        test_beds=tuple(dict.fromkeys(g.test_bed for g in ours)),
        num_prompts=len({(g.task, g.prompt_id) for g in ours}),
        methods=methods,
        tasks=tasks,
        cells=cells,
        basis=baseline_words(results.settings),
        unpadded_share=unpadded_share(results.settings, whole.token_latency_s if whole else None),
    )


def summarise(
    method: str, task: str | None, generations: Sequence[Generation], plain: Sequence[Generation]
) -> Measures:
    """The figures of one method's records, with their ratios to the baseline's."""
    done = succeeded(generations)
    rates = [g.rate for g in done if g.rate]
    wholes = [rate for g in done if (rate := g.whole_rate)]
    steady = [r for g in done if g.rate for r in g.trace[1:]]
    wall_s = _total((g.ttft_s or 0.0) + (g.decode_s or 0.0) for g in done if g.target_busy_s)
    gaps = [gap for g in done for gap in g.gaps_s]
    of_energy = [g for g in done if g.energy_j is not None]
    return Measures(
        method=method,
        task=task,
        num_generations=len(generations),
        num_failed=len(generations) - len(done),
        tokens_per_second=_divided(_total(t for t, _ in rates), _total(s for _, s in rates)),
        ratio=ratio_to(done, plain),
        whole_tokens_per_second=_divided(
            _total(t for t, _ in wholes), _total(s for _, s in wholes)
        ),
        whole_ratio=ratio_to(done, plain, lambda g: g.whole_rate),
        mean_accepted=_divided(_total(g.new_tokens for g in done), _total(g.rounds for g in done)),
        acceptance=acceptance(g.acceptance_histogram for g in done),
        sequences=tuple(map(sum, zip_longest(*(g.sequence_histogram for g in done), fillvalue=0))),
        ttft_s=_of(median, (g.ttft_s for g in done)),
        token_latency_s=_of(fmean, (_divided(s, t) for t, s in rates)),
        gap_p95_s=float(np.percentile(gaps, 95)) if gaps else None,
        target_busy=_divided(_total(g.target_busy_s for g in done), wall_s),
        draft_busy=_divided(_total(g.draft_busy_s for g in done), wall_s),
        overlap=_overlap(done),
        drafting_free_tokens_per_second=_divided(
            _total(r.num_tokens for r in steady), _total(r.end_s - r.start_s for r in steady)
        ),
        ceiling_tokens_per_second=_ceiling(done),
        memory_bytes=_of(max, (g.memory_bytes for g in done)),
        energy_j_per_token=_divided(
            _total(g.energy_j for g in of_energy), _total(g.new_tokens for g in of_energy)
        ),
        identical=_share(g.identical for g in done),
        num_near_ties=_of(sum, (g.near_ties for g in done)),
        score=_share(g.score for g in done),
    )


def acceptance(histograms: Iterable[Sequence[int]]) -> tuple[float, ...]:
    """[i]: share of all rounds that accepted more than i draft tokens."""
    rows = list(histograms)
    longest = max(map(len, rows), default=0)
    counts = [sum(row[n] for row in rows if n < len(row)) for n in range(longest)]
    at_least = list(accumulate(reversed(counts)))[::-1]
    return tuple(n / at_least[0] for n in at_least[1:]) if longest and at_least[0] else ()


def _overlap(generations: Sequence[Generation]) -> float | None:
    """Weighted by the completions' lengths, as the speed is."""
    known = [(g.overlap, g.target_busy_s) for g in generations if g.overlap is not None]
    shared_s = _total(overlap * busy_s for overlap, busy_s in known if busy_s)
    return _divided(shared_s, _total(busy_s for _, busy_s in known))


def _ceiling(generations: Sequence[Generation]) -> float | None:
    """All tokens over the time of their forward passes at each completion's ceiling; the first pass
    is left out as everywhere."""
    tokens, ideal_s = 0.0, 0.0
    for g in generations:
        forward_s = _divided(g.mean_accepted, g.ceiling_tokens_per_second)
        if g.rate and forward_s:
            tokens += g.rate[0]
            ideal_s += forward_s * (len(g.trace) - 1)
    return _divided(tokens, ideal_s)


def _share(verdicts: Iterable[bool | None]) -> Share | None:
    known = [verdict for verdict in verdicts if verdict is not None]
    return Share(sum(known), len(known)) if known else None


def _of(figure: Callable[[list[Number]], Number], values: Iterable[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return figure(known) if known else None


def _total(values: Iterable[float | None]) -> float | None:
    return _of(sum, values)


def _divided(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def ratio_to(
    ours: Iterable[Generation],
    theirs: Iterable[Generation],
    rate: Callable[[Generation], Rate | None] = lambda g: g.rate,
) -> Ratio | None:
    """Our rate over theirs, on the prompts, turns and repeats that both measured. None if there are
    none."""
    answers = {(g.prompt_key, g.repeat): rate(g) for g in theirs}
    our_rates, their_rates, prompts = [], [], []
    for g in ours:
        our, their = rate(g), answers.get((g.prompt_key, g.repeat))
        if our and their and our[0] > 0 and their[0] > 0:
            our_rates.append(our)
            their_rates.append(their)
            prompts.append((g.task, g.prompt_id))
    return ratio_of_rates(our_rates, their_rates, prompts) if prompts else None

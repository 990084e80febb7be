"""Put what the DuoDecoding paper claims beside what was measured, in the metrics of its claims.

Its scripts count every token over the whole time, prefill included. They keep no time to the first
token; the paper claims one against its speculative sampling, which is `sps:5` here.
"""

from __future__ import annotations

from collections.abc import Iterator

from duodec_lab.bench.plan import BASELINE, draft_place
from duodec_lab.bench.reports.measures import Measures, PairMeasures, measure
from duodec_lab.bench.reports.tables import Cell, Table, by_task, ratio_cell
from duodec_lab.bench.results import Results

CLAIMED_SPEEDUP = 2.61  # over plain decoding, at most
CLAIMED_TTFT = 0.83  # of speculative sampling's
CLAIMED_SEQUENCES = 8  # in a round, at most
_JUDGED = ("duo", "pearl", "auto")  # DuoDecoding, the same with one sequence, and ours
_ABLATION = "DuoDecoding with one sequence"


def claims(results: Results) -> list[str]:
    """What the paper claims, and what was measured, a line each."""
    lines: list[str] = []
    for measures in measure(results):
        for method in _judged(measures):
            lines += _speed(measures, method)
            lines += _first_token(results, measures, method)
            lines += _sequences(measures.of(method))
    return lines


def claim_tables(results: Results, measures: PairMeasures) -> list[Table]:
    """Of a run with the paper's settings: speeds as its scripts count them, and times to the first
    token."""
    if not results.settings.get("paper"):
        return []
    tables = [
        by_task(
            f"Speed-up over {measures.baseline}, every token over the whole time",
            measures,
            measures.methods,
            lambda m: ratio_cell(m.whole_ratio),
            ("prefill included, as the paper's scripts count; the table above is decoding only",),
        )
    ]
    if sps := _speculative_sampling(measures):
        tables.append(_first_token_table(results, measures, sps))
    return tables


def _first_token_table(results: Results, measures: PairMeasures, sps: str) -> Table:
    def cell(m: Measures) -> Cell | None:
        share = _share(m, measures.of(sps, m.task))
        return None if share is None else Cell(f"{share:.0%}")

    return by_task(
        f"Time to the first token, share of {sps}'s (medians)",
        measures,
        measures.methods,
        cell,
        (f"{_reference(results, sps)}. The scripts keep no time to the first token",),
    )


def _judged(measures: PairMeasures) -> list[str]:
    return [m for m in measures.methods if m.partition("#")[0].partition(":")[0] in _JUDGED]


def _name(method: str) -> str:
    return f"{method} ({_ABLATION})" if method.startswith("pearl") else method


def _speed(measures: PairMeasures, method: str) -> Iterator[str]:
    if measures.baseline != BASELINE:
        return
    tasks = {t: r.value for t in measures.tasks if (r := measures.of(method, t).whole_ratio)}
    cell = measures.of(method)
    if not tasks or cell.whole_ratio is None:
        return
    best = max(tasks, key=lambda task: tasks[task])
    decoding = f"; decoding only, {cell.ratio.value:.2f} on all tasks" if cell.ratio else ""
    yield (
        f"{_name(method)}: {tasks[best]:.2f} times plain decoding on {best}, its best task, and "
        f"{cell.whole_ratio.value:.2f} on all, whole time, prefill included{decoding}. "
        f"The paper's DuoDecoding: {CLAIMED_SPEEDUP} at most, whole time"
    )


def _first_token(results: Results, measures: PairMeasures, method: str) -> Iterator[str]:
    sps = _speculative_sampling(measures)
    if sps is None or (share := _share(measures.of(method), measures.of(sps))) is None:
        return
    yield (
        f"{_name(method)}: first token at {share:.0%} of {sps}'s, medians over all tasks. "
        f"{_reference(results, sps)}. The paper: {CLAIMED_TTFT:.0%}"
    )


def _sequences(cell: Measures) -> Iterator[str]:
    if total := sum(cell.sequences):
        several = 1 - cell.sequences[0] / total
        yield (
            f"{_name(cell.method)}: up to {len(cell.sequences)} sequences drafted in a round, "
            f"several in {several:.0%} of the rounds with a draft. The paper: up to "
            f"{CLAIMED_SEQUENCES}"
        )


def _speculative_sampling(measures: PairMeasures) -> str | None:
    """The method that stands for the scripts' `sd`."""
    return next((m for m in measures.methods if m.partition(":")[0] == "sps"), None)


def _reference(results: Results, sps: str) -> str:
    """Which speculative sampling it is, in words."""
    place = draft_place(results.settings.get("draft_device") or "auto")
    return f"Here {sps} drafts {place}; the paper's, sd, drafts on the GPU"


def _share(ours: Measures, theirs: Measures) -> float | None:
    if ours.ttft_s is None or not theirs.ttft_s:
        return None
    return ours.ttft_s / theirs.ttft_s

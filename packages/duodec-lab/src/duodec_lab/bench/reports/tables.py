"""Make the tables of a report and their Markdown: the papers' table, one a task, and costs.

A column without measurements is left out, and a note says so. A loss (an interval below 1) is
marked in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from duodec_lab.bench.reports.measures import Measures, PairMeasures
from duodec_lab.bench.reports.statistics import FEWEST_FOR_A_MARK, Ratio

ALL = "all tasks"
SLOWER = "slower"
LEGEND = (
    f"{SLOWER}: {FEWEST_FOR_A_MARK} prompts or more, a 95% interval below 1, and a figure that "
    "does not read 1.00"
)
UNITS = (
    "tok/s: tokens after a completion's first, over their seconds, summed over completions",
    "speed-up: tok/s over the baseline's on the same prompts; its interval resamples prompts",
    "whole: every token over all the time from the request to the last one, prefill included",
    "mean accepted length: tokens for each forward pass of the target, its own one included",
    "TTFT: from the request to its first token, median; ms a token: the mean gap after it",
    "gap p95: 95% of the gaps between two arrivals of text are shorter",
    "overlap: share of the target's computing time during which the drafter computes",
    "peak memory: resident memory of this process and the drafter's; a GPU's is not in it",
    "1 ms = 0.001 s, 1 GiB = 2^30 bytes, J: joules of the processors' own counters",
)
_MISSING = "-"
_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*[]<>|"})


@dataclass(frozen=True)
class Cell:
    """A table's cell: the figure, a detail, and a verdict in one word."""

    text: str
    detail: str = ""
    mark: str = ""  # slower, faster or failed
    heat: int = 0  # -3 (far slower) to 3 (far faster)


@dataclass(frozen=True)
class Table:
    """Row heads are in the first column; `notes` say what is left out, and why."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Column:
    """A figure of `Measures`; `absence` says why it may be missing everywhere."""

    head: str
    cell: Callable[[Measures], Cell | None]
    absence: str


def paper_table(measures: PairMeasures) -> Table:
    """Methods by tasks, in each cell the speed-up and the mean accepted length; over what unpadded
    plain decoding would be, too, where the baseline's passes are padded."""
    table = by_task(
        f"Speed-up over {measures.baseline} / mean accepted length",
        measures,
        measures.methods,
        _paper_cell,
        (f"{measures.basis}.",) if measures.basis else (),
    )
    for column in _over_unpadded(measures):
        cells = [column.cell(measures.of(name)) or Cell(_MISSING) for name in measures.methods]
        rows = tuple((*row, cell) for row, cell in zip(table.rows, cells, strict=True))
        table = replace(table, head=(*table.head, f"{ALL}, {column.head}"), rows=rows)
    return table


def by_task(
    caption: str,
    measures: PairMeasures,
    methods: Iterable[str],
    cell: Callable[[Measures], Cell | None],
    notes: tuple[str, ...] = (),
) -> Table:
    """One figure of methods, by tasks."""
    tasks = (*measures.tasks, None)
    rows = [
        (Cell(name), *(cell(measures.of(name, task)) or Cell(_MISSING) for task in tasks))
        for name in methods
    ]
    return Table(caption, ("method", *measures.tasks, ALL), tuple(rows), notes)


def task_tables(measures: PairMeasures) -> list[Table]:
    """The figures of all tasks together, then those of each."""
    columns = (
        Column("tok/s", lambda m: _number(m.tokens_per_second, 1), "no completion had two rounds"),
        Column("speed-up (95%)", lambda m: _ratio(m.ratio), f"{measures.baseline} is missing"),
        *_over_unpadded(measures),
        Column("whole tok/s", lambda m: _number(m.whole_tokens_per_second, 1), "no completion"),
        Column(
            "whole speed-up (95%)",
            lambda m: _ratio(m.whole_ratio),
            f"{measures.baseline} is missing",
        ),
        Column("mean accepted length", lambda m: _number(m.mean_accepted, 2), "no completion"),
        Column("TTFT ms", lambda m: _ms(m.ttft_s), "no completion"),
        Column("ms a token", lambda m: _ms(m.token_latency_s), "no completion had two rounds"),
        Column("gap p95 ms", lambda m: _ms(m.gap_p95_s), "no completion had two rounds"),
        Column("overlap", lambda m: _percent(m.overlap), "no drafter"),
        Column(
            "same text",
            lambda m: _counted(m.identical),
            "not promised, or not provable on this test bed",
        ),
        Column("near ties", lambda m: _number(m.num_near_ties, 0), "not counted"),
        Column("right answers", lambda m: _counted(m.score), "not scored"),
        Column("failed", _failed, ""),
    )
    return [
        _table(task or ALL, columns, [measures.of(m, task) for m in measures.methods])
        for task in (None, *measures.tasks)
    ]


def _over_unpadded(measures: PairMeasures) -> Iterator[Column]:
    """The speed-up over what plain decoding would be without padding, where passes are padded."""
    if (share := measures.unpadded_share) is None:
        return

    def cell(m: Measures) -> Cell | None:
        if m.method == measures.baseline:
            return Cell(f"{share:.2f}x")
        return Cell(f"{share * m.ratio.value:.2f}x") if m.ratio else None

    yield Column("over unpadded plain decoding", cell, f"{measures.baseline} is missing")


def cost_table(measures: PairMeasures, no_energy: str) -> Table:
    """How close each method comes to its ceilings, and what it costs; ``no_energy`` says why energy
    may be missing."""
    columns = (
        Column("tok/s", lambda m: _number(m.tokens_per_second, 1), "no completion had two rounds"),
        Column(
            "if drafting were free",
            lambda m: _with_share(m.drafting_free_tokens_per_second, m.efficiency),
            "no completion had two rounds",
        ),
        Column(
            "target's ceiling",
            lambda m: _with_share(m.ceiling_tokens_per_second, m.ceiling_share),
            "not known for this target",
        ),
        Column("target busy", lambda m: _percent(m.target_busy), "not measured"),
        Column("drafter busy", lambda m: _percent(m.draft_busy), "no drafter"),
        Column("overlap", lambda m: _percent(m.overlap), "no drafter"),
        Column("peak memory", lambda m: _memory(m.memory_bytes), "not measured"),
        Column("J a token", lambda m: _number(m.energy_j_per_token, 2), no_energy),
    )
    cells = [measures.of(m) for m in measures.methods]
    return _table("Efficiency, tok/s and shares of each ceiling", columns, cells)


def markdown(table: Table) -> str:
    """The table with its caption and notes; ends without a line break."""
    lines = [f"**{escaped(table.caption)}**"]
    if table.rows:
        lines += [
            "",
            _markdown_row(map(escaped, table.head)),
            _markdown_row("---" for _ in table.head),
            *(_markdown_row(map(_markdown_cell, row)) for row in table.rows),
        ]
    for note in table.notes:
        lines += ["", escaped(note)]
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Text escaped for Markdown, on one line."""
    return " ".join(text.split()).translate(_SPECIAL)


def ratio_cell(ratio: Ratio | None, detail: str = "") -> Cell:
    """A ratio, coloured by its size and marked if its interval excludes 1."""
    if ratio is None:
        return Cell(_MISSING)
    mark = mark_of(ratio)
    return Cell(f"{ratio.value:.2f}x", detail, mark, _heat(ratio) if mark else 0)


def mark_of(ratio: Ratio) -> str:
    """slower or faster, if prompts suffice, the interval excludes 1 and the figure does not read
    1.00; else ""."""
    if f"{ratio.value:.2f}" == "1.00":
        return ""
    return SLOWER if ratio.is_slower else "faster" if ratio.is_faster else ""


def interval_of(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return ""
    return f"({ratio.low:.2f} to {ratio.high:.2f})"


def _table(caption: str, columns: Sequence[Column], measures: Sequence[Measures]) -> Table:
    cells = {column.head: [column.cell(m) for m in measures] for column in columns}
    absent = [column for column in columns if not any(cells[column.head])]
    kept = [column for column in columns if column not in absent]
    rows = [
        (Cell(m.method), *(cells[c.head][i] or Cell(_MISSING) for c in kept))
        for i, m in enumerate(measures)
    ]
    words = ", ".join(f"{c.head} ({c.absence})" for c in absent)
    notes = (f"left out: {words}",) if words else ()
    return Table(caption, ("method", *(c.head for c in kept)), tuple(rows), notes)


def _paper_cell(measures: Measures) -> Cell:
    if measures.num_generations and measures.num_failed == measures.num_generations:
        return Cell(_MISSING, mark="failed")
    accepted = "" if measures.mean_accepted is None else f"{measures.mean_accepted:.2f}"
    return ratio_cell(measures.ratio, accepted)


def _ratio(ratio: Ratio | None) -> Cell | None:
    return ratio_cell(ratio, interval_of(ratio)) if ratio else None


def _heat(ratio: Ratio) -> int:
    """1, 2 or 3, with bounds at factors of 1.25 and 1.75; negative below 1."""
    factor = max(ratio.value, 1 / ratio.value)
    size = 1 + (factor > 1.25) + (factor > 1.75)
    return size if ratio.value > 1 else -size


def _number(value: float | None, digits: int) -> Cell | None:
    return None if value is None else Cell(f"{value:.{digits}f}")


def _ms(value_s: float | None) -> Cell | None:
    return None if value_s is None else Cell(f"{value_s * 1e3:.{1 if value_s < 0.1 else 0}f}")


def _percent(value: float | None) -> Cell | None:
    return None if value is None else Cell(f"{value:.0%}")


def _with_share(value: float | None, share: float | None) -> Cell | None:
    if value is None:
        return None
    return Cell(f"{value:.1f}", "" if share is None else f"({share:.0%})")


def _memory(num_bytes: int | None) -> Cell | None:
    return None if num_bytes is None else Cell(f"{num_bytes / 2**30:.2f} GiB")


def _counted(share: object) -> Cell | None:
    return None if share is None else Cell(str(share))


def _failed(measures: Measures) -> Cell:
    words = f"{measures.num_failed} of {measures.num_generations}"
    return Cell(words, mark="failed" if measures.num_failed else "")


def _markdown_cell(cell: Cell) -> str:
    mark = f"**{cell.mark}**" if cell.mark in (SLOWER, "failed") else ""
    separator = " / " if cell.detail and not cell.detail.startswith("(") else " "
    words = f"{escaped(cell.text)}{separator if cell.detail else ''}{escaped(cell.detail)}"
    return f"{words} {mark}".rstrip()


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

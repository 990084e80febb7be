"""Write a run for a paper: CSV of every figure, LaTeX tables, figures as SVG and PDF."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import fields
from io import StringIO
from pathlib import Path
from typing import Any

from duodec_lab.bench.figures.acceptance import acceptance_figure
from duodec_lab.bench.figures.canvas import Drawing
from duodec_lab.bench.figures.speed import speed_figures
from duodec_lab.bench.figures.timeline import timeline_figure
from duodec_lab.bench.reports.measures import Measures, PairMeasures, Share, measure
from duodec_lab.bench.reports.statistics import FEWEST_FOR_A_MARK
from duodec_lab.bench.reports.tables import ALL, Cell, Table, cost_table, paper_table, task_tables
from duodec_lab.bench.reports.timeline import timeline
from duodec_lab.bench.results import Results, generations_of

KINDS = (".svg", ".pdf")
_SERIES = {"acceptance", "sequences"}  # in no CSV
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "$": r"\$",
    "#": r"\#", "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
}  # fmt: skip
_SPECIAL = re.compile("[" + re.escape("".join(_LATEX)) + "]")


def csv_text(results: Results) -> str:
    """One row for each pair, method and task; an empty field is a figure that does not exist.

    Names end with their unit (``_s`` seconds, ``_bytes``); the others are ratios or counts.
    """
    stream = StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = [field.name for field in fields(Measures) if field.name not in _SERIES]
    writer.writerow(["target", "draft", "test_bed", *(n for name in names for n in _heads(name))])
    for pair in measure(results):
        shared = [pair.pair.target, pair.pair.draft or "", " ".join(pair.test_beds)]
        for one in pair.cells.values():
            writer.writerow([*shared, *(v for n in names for v in _values(n, getattr(one, n)))])
    return stream.getvalue()


def _heads(name: str) -> list[str]:
    if name.endswith("ratio"):
        return [name, f"{name}_low", f"{name}_high", name.replace("ratio", "num_prompts")]
    return [name, f"{name}_of"] if name in ("identical", "score") else [name]


def _values(name: str, value: Any) -> list[object]:
    if name == "task":
        return [value or "all"]
    width = len(_heads(name))
    if value is None:
        return [""] * width
    if name.endswith("ratio"):
        return [value.value, _shown(value.low), _shown(value.high), value.num_prompts]
    return [value.count, value.total] if isinstance(value, Share) else [value]


def _shown(value: float | None) -> object:
    return "" if value is None else value


def latex_text(results: Results) -> str:
    """A table of speed-ups for each pair and one of costs, for the packages booktabs and graphicx.

    The caption says what was measured on what, down to the models' hashes.
    """
    parts = ["% needs \\usepackage{booktabs,graphicx}; written by duodec report --latex"]
    for number, pair in enumerate(measure(results)):
        settings = _caption(results, pair)
        no_energy = str(results.environment.get("energy") or "not measured")
        whole = task_tables(pair)[0]
        for kind, table in (
            ("speed", paper_table(pair)),
            ("all", whole),
            ("cost", cost_table(pair, no_energy)),
        ):
            caption = "All tasks together" if table.caption == ALL else table.caption
            parts.append(_latex(table, f"{caption}. {settings}", f"tab:duodec-{kind}-{number}"))
    return "\n\n".join(parts) + "\n"


def _caption(results: Results, pair: PairMeasures) -> str:
    """What a reader needs to repeat the run."""
    card, models = results.environment, results.environment.get("models") or {}
    names = [name for name in (pair.pair.target, pair.pair.draft) if name]
    words = [
        f"{name} ({models[name]['quantisation']}, SHA-256 {models[name]['sha256'][:12]})"
        if name in models
        else name
        for name in names
    ]
    version = (card.get("packages") or {}).get("duodec", "?")
    commit = f", commit {card['commit'][:12]}" if card.get("commit") else ""
    beds = ", ".join(pair.test_beds)
    return (
        f"{' with '.join(words)}; {pair.num_prompts} prompts, test bed {beds}; "
        f"{card.get('gpu') or card.get('cpu')}, {card.get('cores')} cores; "
        f"duodec {version}{commit}. Speed is relative to {pair.baseline}"
        f"{f': {pair.basis}' if pair.basis else ''}; marks need "
        f"{FEWEST_FOR_A_MARK} prompts and a 95% interval that excludes 1."
    )


def _latex(table: Table, caption: str, label: str) -> str:
    rows = [" & ".join(map(escaped, table.head)), *(" & ".join(map(_cell, r)) for r in table.rows)]
    body = "\n".join(f"{row} \\\\" for row in rows[1:])
    return (
        "\\begin{table}\n\\centering\n\\resizebox{\\linewidth}{!}{%\n"
        f"\\begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}\n\\toprule\n{rows[0]} \\\\\n"
        f"\\midrule\n{body}\n\\bottomrule\n\\end{{tabular}}}}\n"
        f"\\caption{{{escaped(caption)}}}\n\\label{{{label}}}\n\\end{{table}}"
    )


def _cell(cell: Cell) -> str:
    words = [re.sub(r"(?<=\d)x$", r"$\\times$", escaped(cell.text))]
    if cell.detail:
        words.append(escaped(cell.detail if cell.detail.startswith("(") else f"/ {cell.detail}"))
    if cell.mark in ("slower", "failed"):
        words.append(f"\\textit{{{cell.mark}}}")
    return " ".join(words)


def escaped(text: str) -> str:
    """Text escaped for LaTeX, on one line."""
    return _SPECIAL.sub(lambda match: _LATEX[match[0]], " ".join(text.split()))


def write_figures(results: Results, folder: Path) -> list[Path]:
    """Write every figure of a run as SVG and PDF; returns the files. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for drawing in _drawings(results):
        for kind in KINDS:
            file = folder / f"{drawing.name}{kind}"
            drawing.write(file)
            files.append(file)
    return files


def _drawings(results: Results) -> Iterator[Drawing]:
    for number, pair in enumerate(measure(results)):
        yield from speed_figures(f"speed{number}", pair)
        if accepted := acceptance_figure(f"acceptance{number}", pair):
            yield accepted
        shown = timeline(generations_of(results, pair.pair), pair.methods, pair.baseline)
        if shown:
            yield timeline_figure(f"timeline{number}", shown)

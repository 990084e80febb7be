"""Write a run as one HTML page without network or scripts, or as Markdown; or several runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from duodec.machine.files import replacing
from duodec_lab.bench.figures.acceptance import acceptance_figure
from duodec_lab.bench.figures.speed import speed_figures
from duodec_lab.bench.figures.timeline import timeline_figure
from duodec_lab.bench.reports.claims import claim_tables, claims
from duodec_lab.bench.reports.comparison import compare, flat, headline
from duodec_lab.bench.reports.measures import PairMeasures, measure
from duodec_lab.bench.reports.sentences import cautions, failures, verdict
from duodec_lab.bench.reports.statistics import FEWEST_FOR_A_MARK
from duodec_lab.bench.reports.tables import (
    LEGEND,
    UNITS,
    cost_table,
    markdown,
    paper_table,
    task_tables,
)
from duodec_lab.bench.reports.timeline import timeline
from duodec_lab.bench.results import RESULTS, Results, generations_of

_TEMPLATES = Path(__file__).parent
_MOST_FAILURES = 100  # listed one by one
_SHOWN_ELSEWHERE = {"command", "notes"}


def write_report(results: Results, path: Path, *, raw: str = RESULTS) -> None:
    """Write the page of one run, whole or not at all; ``raw`` is the link to its records, from the
    page's folder. Raises OSError."""
    failed = failures(results)
    page = rendered(
        _TEMPLATES / "report.html.j2",
        results=results,
        sections=[_section(results, i, m) for i, m in enumerate(measure(results))],
        claims=claims(results) if results.settings.get("paper") else [],
        cautions=cautions(results),
        fewest=FEWEST_FOR_A_MARK,
        failures=failed[:_MOST_FAILURES],
        num_more_failures=len(failed[_MOST_FAILURES:]),
        headline=headline(results),
        machine=list(flat(results.environment)),
        asked=[fact for fact in flat(results.settings) if fact[0] not in _SHOWN_ELSEWHERE],
        raw=raw,
    )
    write_page(path, page)


def write_comparison(results: Sequence[Results], names: Sequence[str], path: Path) -> None:
    """Write the page of several runs, whole or not at all. Raises OSError."""
    tables = compare(results, names)
    template = _TEMPLATES / "comparison.html.j2"
    write_page(path, rendered(template, runs=results, names=names, tables=tables))


def _section(results: Results, number: int, measures: PairMeasures) -> dict[str, Any]:
    """The page's section on one pair."""
    ours = generations_of(results, measures.pair)
    shown = timeline(ours, measures.methods, measures.baseline)
    accepted = acceptance_figure(f"acceptance{number}", measures)
    return {
        "measures": measures,
        "verdict": verdict(measures),
        "paper": paper_table(measures),
        "claims": claim_tables(results, measures),
        "speed": [figure.for_page() for figure in speed_figures(f"speed{number}", measures)],
        "acceptance": accepted.for_page() if accepted else None,
        "timeline": shown,
        "timeline_figure": timeline_figure(f"timeline{number}", shown).for_page()
        if shown
        else None,
        "tasks": task_tables(measures),
        "costs": cost_table(measures, results.environment.get("energy") or "not measured"),
    }


def rendered(template: Path, **facts: Any) -> str:
    """A page from its template, which may extend those of this folder."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([template.parent, _TEMPLATES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(facts)


def write_page(path: Path, page: str) -> None:
    """Write a page, whole or not at all. Raises OSError."""
    with replacing(path) as part:
        part.write_text(page, encoding="utf-8", errors="replace")


def markdown_report(results: Results) -> str:
    """The whole run."""
    settings, machine = results.settings, results.environment
    parts = [f"# {settings['command']}", *(f"> {note}" for note in settings["notes"])]
    for measures in measure(results):
        no_energy = machine.get("energy") or "not measured"
        parts += [f"## {measures.pair}", verdict(measures), markdown(paper_table(measures)), LEGEND]
        parts += map(markdown, claim_tables(results, measures))
        parts += map(markdown, task_tables(measures))
        parts.append(markdown(cost_table(measures, no_energy)))
    if settings.get("paper"):
        parts += ["## The paper's claims", "\n".join(f"- {line}" for line in claims(results))]
    parts += ["## Units", "\n".join(f"- {line}" for line in UNITS)]
    if warnings := cautions(results):
        parts += ["## Warnings", "\n".join(f"- {line}" for line in warnings)]
    card = ", ".join(f"{name}: {value}" for name, value in machine.items() if value is not None)
    return "\n\n".join([*parts, "## Machine", card]) + "\n"

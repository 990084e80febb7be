"""Write a run as Markdown: the papers' table, one a task, and the costs."""

from __future__ import annotations

from duodec.bench.claims import claims
from duodec.bench.measures import measure
from duodec.bench.results import Results
from duodec.bench.sentences import cautions, verdict
from duodec.bench.tables import LEGEND, UNITS, cost_table, markdown, paper_table, task_tables


def markdown_report(results: Results) -> str:
    """The whole run."""
    settings, machine = results.settings, results.environment
    parts = [f"# {settings['command']}", *(f"> {note}" for note in settings["notes"])]
    for measures in measure(results):
        no_energy = machine.get("energy") or "not measured"
        parts += [f"## {measures.pair}", verdict(measures), markdown(paper_table(measures)), LEGEND]
        parts += map(markdown, task_tables(measures))
        parts.append(markdown(cost_table(measures, no_energy)))
    if settings.get("paper"):
        parts += ["## The paper's claims", "\n".join(f"- {line}" for line in claims(results))]
    parts += ["## Units", "\n".join(f"- {line}" for line in UNITS)]
    if warnings := cautions(results):
        parts += ["## Warnings", "\n".join(f"- {line}" for line in warnings)]
    card = ", ".join(f"{name}: {value}" for name, value in machine.items() if value is not None)
    return "\n\n".join([*parts, "## Machine", card]) + "\n"

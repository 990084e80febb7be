"""Show what an audit found: a table, sentences, a page and a JSON file."""

from __future__ import annotations

import json
from pathlib import Path

from duodec_lab.bench.reports.report import rendered, write_page
from duodec_lab.bench.reports.tables import Cell, Table
from duodec_lab.exactness.audit import PAGE, RESULTS, Report
from duodec_lab.exactness.judging import DIFFERS, FAILED, FAULTS, NEAR_TIE, NOT_SERVED, SAME, WRONG

_VERDICTS = (SAME, NEAR_TIE, WRONG, DIFFERS, FAILED, NOT_SERVED)


def summary(report: Report) -> Table:
    """Findings by check and verdict."""
    rows = []
    for check in dict.fromkeys(finding.check for finding in report.findings):
        found = [f.verdict for f in report.findings if f.check == check]
        cells = [
            Cell(str(count), mark="failed" if count and verdict in FAULTS else "")
            for verdict in _VERDICTS
            for count in [found.count(verdict)]
        ]
        rows.append((Cell(check), *cells))
    notes = (f"cut short by the budget: {', '.join(report.unfinished)}",)
    return Table(
        "Comparisons by verdict", ("check", *_VERDICTS), tuple(rows),
        notes if report.unfinished else (),
    )  # fmt: skip


def verdict(report: Report) -> str:
    """The result in one sentence."""
    num_compared = sum(finding.verdict != NOT_SERVED for finding in report.findings)
    compared = f"{num_compared} comparison{'s' if num_compared != 1 else ''}"
    faults = len(report.faults)
    ties = sum(finding.verdict == NEAR_TIE for finding in report.findings)
    if faults:
        return f"{faults} of {compared} found a fault; {ties} are near ties."
    return f"No fault in {compared}; {ties} are near ties."


def write(report: Report, folder: Path) -> None:
    """Write the page and the JSON file into a folder, which is made. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    record = json.dumps(report.as_json(), ensure_ascii=False, indent=1)
    write_page(folder / RESULTS, f"{record}\n")
    page = rendered(
        Path(__file__).with_name("verify.html.j2"),
        report=report,
        verdict=verdict(report),
        summary=summary(report),
        told=[f for f in report.findings if f.is_fault or f.verdict in (NEAR_TIE, NOT_SERVED)],
        facts=[
            *report.as_json()["limits"].items(),
            *((f"noise of {name}, nats", f"{moved:.3f}") for name, moved in report.noise.items()),
        ],
        raw=RESULTS,
    )
    write_page(folder / PAGE, page)

"""Run `duodec report`: show a run of `duodec bench`, or compare several."""

from __future__ import annotations

import json as json_format
import os
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duodec.cli.options import Json, option
from duodec.cli.output import one_line, put, say_dim
from duodec.errors import BackendUnavailable, BadOption, ResultsUnreadable
from duodec.machine.files import is_full
from duodec.machine.install import install_command
from duodec_lab.bench.results import RESULTS
from duodec_lab.commands.tables import put_rich_table

if TYPE_CHECKING:
    from duodec_lab.bench.results import Results

EPILOG = """
Examples:
duodec report results.json
duodec report results.json --output report.html
duodec report bench-1 --latex table.tex --csv table.csv --figures figures  # for a paper
duodec report before.json after.json

Exit status:
0: done. 1: the disk is full. 2: a file that cannot be read or written.
"""

_SCHEMA_VERSION = 1
_NEEDED = {"methods", "tasks", "baseline"}


def report(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="A results.json of duodec bench, or its folder; several are compared with the "
            "first.",
            metavar="FILE",
            show_default=False,
        ),
    ],
    output: Annotated[Path | None, option(
        "--output -o FILE.html", "Write one HTML page there, with all figures and tables.", "Output"
    )] = None,
    csv: Annotated[Path | None, option(
        "--csv FILE.csv", "Write every figure there: a row for each method and task.", "Output"
    )] = None,
    latex: Annotated[Path | None, option(
        "--latex FILE.tex",
        "Write the tables there, for booktabs; the captions name models, hashes, machine.", "Output"
    )] = None,
    figures: Annotated[Path | None, option(
        "--figures FOLDER", "Write the figures there, each as SVG and PDF.", "Output"
    )] = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Show what a benchmark measured, or compare runs.

    Tables here, figures with --output.
    """
    check_installed()
    if len(files) > 1 and (csv or latex or figures):
        raise BadOption("--csv, --latex and --figures are of one run; name one file")
    results = [_read(path) for path in files]
    names = [str(path) for path in files]
    written = _write_exports(results[0], csv, latex, figures)
    if output:
        _write_page(results, files, output)
    if json:
        is_one = len(results) == 1
        said = _run_as_json(results[0]) if is_one else _comparison_as_json(results, names)
        record = {"schema_version": _SCHEMA_VERSION, **said}
        put(f"{json_format.dumps(record, ensure_ascii=False)}\n")
    elif len(results) == 1:
        show_run(results[0])
    else:
        _show_comparison(results, names)
    for file in [*([output] if output else []), *written]:
        say_dim(f"written to {file}")


def _write_exports(
    results: Results, csv: Path | None, latex: Path | None, figures: Path | None
) -> list[Path]:
    """Write what is for a paper; returns the files and the folder. Raises BadOption."""
    from duodec_lab.bench.reports import exports

    try:
        if csv:
            csv.write_text(exports.csv_text(results), "utf-8")
        if latex:
            latex.write_text(exports.latex_text(results), "utf-8")
        if figures:
            exports.write_figures(results, figures)
    except OSError as error:
        if is_full(error):
            raise
        raise BadOption(
            f"{error.filename} cannot be written ({error.strerror}); name another place"
        ) from error
    return [place for place in (csv, latex, figures) if place]


def check_installed() -> None:
    """Raises BackendUnavailable if the extra for benchmarks is missing."""
    for library in ("scipy", "matplotlib"):
        if find_spec(library) is None:
            raise BackendUnavailable(
                f"a report needs {library}, which is not installed; run: {install_command(library)}"
            )


def _read(path: Path) -> Results:
    """Raises ResultsUnreadable for a file without usable figures."""
    from duodec_lab.bench.results import Results

    results = Results.read(path)
    parts = (results.settings, results.environment)
    if not all(isinstance(part, dict) for part in parts) or _NEEDED - set(results.settings):
        raise ResultsUnreadable(f"{path} is broken (settings are missing); measure again")
    if all(g.error for g in results.generations):
        first = next((f", the first with: {g.error}" for g in results.generations), "")
        raise ResultsUnreadable(
            f"{path} holds no successful completion ({len(results.generations)} failed{first}); "
            "fix the cause and measure again"
        )
    return results


def _write_page(results: Sequence[Results], files: Sequence[Path], output: Path) -> None:
    """Raises BadOption for a file that cannot be written, OSError for a full disk."""
    from duodec_lab.bench.reports.report import write_comparison, write_report

    raw = [file / RESULTS if file.is_dir() else file for file in files]
    page = output.resolve()
    if any(page == file.resolve() for file in raw):
        raise BadOption(f"--output {output} is the file to be read; name another one")
    if not page.parent.is_dir():
        raise BadOption(f"--output {output}: there is no folder {page.parent}; create it first")
    if page.exists() and not page.is_file():
        raise BadOption(f"--output {output} is not an ordinary file; name one, such as report.html")
    try:
        if len(results) == 1:
            write_report(results[0], page, raw=os.path.relpath(raw[0].resolve(), page.parent))
        else:
            write_comparison(results, [str(file) for file in files], page)
    except OSError as error:
        if is_full(error):
            raise
        raise BadOption(
            f"--output {output} cannot be written ({error.strerror}); name another place"
        ) from error


def show_run(results: Results) -> None:
    from duodec_lab.bench.reports.measures import measure
    from duodec_lab.bench.reports.sentences import cautions, verdict
    from duodec_lab.bench.reports.tables import LEGEND, SLOWER, paper_table

    for measures in measure(results):
        put(f"{one_line(str(measures.pair))}\n\n{one_line(verdict(measures))}\n\n")
        table = paper_table(measures)
        put_rich_table(table)
        if any(cell.mark == SLOWER for row in table.rows for cell in row):
            put(f"\n{LEGEND}\n")
    _put_list("Notes", results.settings.get("notes") or [])
    _put_list("Warnings", cautions(results))


def _put_list(title: str, lines: Sequence[str]) -> None:
    if lines:
        put("\n".join([f"\n{title}:\n", *(f"- {one_line(line)}" for line in lines), ""]))


def _show_comparison(results: Sequence[Results], names: Sequence[str]) -> None:
    from duodec_lab.bench.reports.comparison import compare

    for table in compare(results, names):
        put_rich_table(table)
        put("\n")


def _run_as_json(results: Results) -> dict[str, Any]:
    from duodec_lab.bench.reports.measures import measure
    from duodec_lab.bench.reports.sentences import cautions, failures, verdict

    pairs = [
        {
            **asdict(measures.pair),
            "verdict": verdict(measures),
            "baseline": measures.baseline,
            "measures": [asdict(cell) for cell in measures.cells.values()],
        }
        for measures in measure(results)
    ]
    failed = [
        {"method": g.method, "task": g.task, "prompt_id": g.prompt_id, "error": g.error}
        for g in failures(results)
    ]
    notes = results.settings.get("notes") or []
    return {"pairs": pairs, "notes": notes, "warnings": cautions(results), "failures": failed}


def _comparison_as_json(results: Sequence[Results], names: Sequence[str]) -> dict[str, Any]:
    from duodec_lab.bench.reports.comparison import changes, differences

    later = zip(names[1:], results[1:], strict=True)
    return {
        "base": names[0],
        "differences": differences(results),
        "changes": {name: [asdict(c) for c in changes(results[0], other)] for name, other in later},
    }

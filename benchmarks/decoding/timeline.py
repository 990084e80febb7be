"""Draw when target and drafter work, from the results of a run of `duodec bench`.

python -m benchmarks timeline FOLDER/results.json
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from duodec.bench.figures.timeline import timeline_figure
from duodec.bench.reports.measures import measure
from duodec.bench.reports.timeline import timeline
from duodec.bench.results import Results, generations_of

_SHOWN = ("ar", "sps:4", "duo", "stream")
_LINKS = 'xmlns:xlink="http://www.w3.org/1999/xlink" '
_FOLDER = Path(__file__).parents[2] / "docs" / "figures"


def main(file: Annotated[Path, typer.Argument(help="A results.json.")]) -> None:
    """Draw when target and drafter work, on one prompt."""
    results = Results.read(file)
    (measures,) = measure(results)
    ours = [g for g in generations_of(results, measures.pair) if g.task == "humaneval"]
    shown = timeline(ours, _SHOWN, "ar")
    assert shown, "no prompt was completed by these methods"
    _FOLDER.mkdir(exist_ok=True)
    svg = timeline_figure("timeline", shown).for_page()  # made for use inside a page
    alone = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ' + _LINKS, 1)
    (_FOLDER / "timeline.svg").write_text(alone, encoding="utf-8")

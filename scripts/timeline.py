"""Draw docs/figures/timeline.svg, when target and drafter work, from a run of `duodec bench`.

python -m scripts.timeline FOLDER/results.json
"""

from __future__ import annotations

import sys
from pathlib import Path

from duodec_lab.bench.figures.timeline import timeline_figure
from duodec_lab.bench.reports.measures import measure
from duodec_lab.bench.reports.timeline import timeline
from duodec_lab.bench.results import Results, generations_of

METHODS = ("ar", "sps:4", "duo", "stream")
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "timeline.svg"
_LINKS = 'xmlns:xlink="http://www.w3.org/1999/xlink" '


def main(file: Path) -> None:
    """Draw these methods on one prompt."""
    results = Results.read(file)
    (measures,) = measure(results)
    ours = [g for g in generations_of(results, measures.pair) if g.task == "humaneval"]
    shown = timeline(ours, METHODS, "ar")
    if shown is None:
        sys.exit(f"{file} has no prompt of humaneval that one of {', '.join(METHODS)} completed")
    svg = timeline_figure("timeline", shown).for_page()  # made for use inside a page
    alone = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ' + _LINKS, 1)
    FIGURE.write_text(alone, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))

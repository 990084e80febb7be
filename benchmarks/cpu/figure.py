"""Draw what a comparison found: tokens a second of each program, without and with drafts.

python -m benchmarks.cpu.figure RESULT docs/figures/cpu.svg
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import figures_of
from duodec_lab.bench.figures.canvas import COLOURS, Drawing

_WIDTH, _ROW, _MARGIN = 720, 40, 60  # CSS pixels
_WITHOUT = ("plain", "repacked")
_OURS = "duodec"


def drawing(figures: Mapping[str, Any]) -> Drawing:
    """A panel for each model, two bars for each program that decodes: without drafts, and with
    those that were best."""
    models = {one["model"]: _bars(one) for one in figures["models"]}
    most = max(map(len, models.values()))

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(models), squeeze=False)[0]
        for axes, (model, bars) in zip(panels, models.items(), strict=True):
            _panel(axes, model, bars)
        figure.tight_layout()

    words = "; ".join(
        f"{model}: " + ", ".join(f"{name} {plain:.0f} and {best:.0f}" for name, plain, best in bars)
        for model, bars in models.items()
    )
    size = (_WIDTH, _MARGIN + _ROW * most)
    return Drawing("cpu", "Tokens a second, without drafts and with", words, size, draw)


def _bars(model: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Of each program: its name, its rate without drafts, and with the best ones, or 0."""
    found = []
    for program in model["programs"]:
        rates = {one["way"]: one["rate"] for one in program.get("ways", ()) if "rate" in one}
        plain = [rate for way, rate in rates.items() if way in _WITHOUT]
        drafted = [rate for way, rate in rates.items() if way not in _WITHOUT]
        if plain:
            found.append((program["program"], max(plain), max(drafted, default=0.0)))
    return found


def _panel(axes: Axes, model: str, bars: list[tuple[str, float, float]]) -> None:
    axes.set_title(model, loc="left", weight="bold")
    for place, (name, plain, best) in enumerate(bars):
        strength = 0.9 if name == _OURS else 0.5
        for offset, rate, colour in ((-0.19, plain, "flat"), (0.19, best, "gain")):
            if rate:
                axes.barh(place + offset, rate, height=0.36, color=COLOURS[colour], alpha=strength)
                axes.text(rate, place + offset, f" {rate:.1f}", va="center_baseline", fontsize=9)
    axes.set_yticks(range(len(bars)), [name for name, _, _ in bars])
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.tick_params(length=0, axis="both")
    axes.tick_params(axis="y", labelcolor=COLOURS["ink"])
    axes.set_xlabel("tokens/s: grey without drafts, blue with the best")
    axes.spines[:].set_visible(False)
    axes.grid(axis="x", color=COLOURS["line"], linewidth=0.7)
    axes.set_axisbelow(True)


if __name__ == "__main__":
    drawing(figures_of(sys.argv[1])).write(Path(sys.argv[2]))

"""Render figures: as SVG within a page, or as files; text stays text, colours are the page's.

Every colour is a CSS variable of the page with the light theme's value as its fallback, so
that figures follow a dark theme and paper.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# the page's variable -> the light theme's value
COLOURS = {
    "ink": "#1c2330",
    "muted": "#5a6475",
    "line": "#d8dde5",
    "gain": "#1f5fae",
    "loss": "#b3261e",
    "flat": "#6d7585",
    "target": "#2f5f9e",
    "on-target": "#fdfefe",
    "draft": "#d97a1d",
    "card": "#fffffe",
    "s1": "#2468b8",
    "s2": "#b8500b",
    "s3": "#1e7a46",
    "s4": "#7a4cc2",
    "s5": "#b3306f",
    "s6": "#0d7680",
    "s7": "#80600a",
    "s8": "#4d5666",
}
CHARACTER = 6.6  # units of a letter at this size, generously
_LONGEST_LABEL = 18

_VARIABLES = {value: name for name, value in COLOURS.items()}
_STYLE: Any = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,  # fonts that journals accept
    "svg.hashsalt": "duodec",
    "font.size": 10.5,
    "text.color": COLOURS["ink"],
    "text.parse_math": False,
    "axes.edgecolor": COLOURS["line"],
    "axes.facecolor": "none",
    "axes.labelcolor": COLOURS["muted"],
    "axes.labelsize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": COLOURS["line"],
    "xtick.labelcolor": COLOURS["muted"],
    "ytick.color": COLOURS["line"],
    "ytick.labelcolor": COLOURS["muted"],
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Drawing:
    """What ``draw`` puts on a figure of this size (in CSS pixels).

    ``name`` distinguishes its ids from other figures'; title and description are for readers who
    cannot see it.
    """

    name: str
    title: str
    description: str
    size: tuple[int, int]
    draw: Callable[[Figure], None]

    def for_page(self) -> str:
        """SVG within a page."""
        width, height = self.size
        stream = StringIO()
        self._save(stream, "svg", dict.fromkeys(("Date", "Creator", "Format", "Type")))
        whole = stream.getvalue()
        body = whole[whole.index(">", whole.index("<svg")) + 1 :]
        body = re.sub(r"<(metadata|style)\b.*?</\1>", "", body, flags=re.DOTALL)
        body = re.sub(r" font-family: [^;\"]+;?", "", body)
        body = re.sub(r'(\bid="|url\(#|href="#)', rf"\1{self.name}-", body)
        body = re.sub(r"#[0-9a-f]{6}\b", _variable, body)
        return (
            f'<svg viewBox="0 0 {width} {height}" role="img" style="--width: {width}px" '
            f'aria-labelledby="{self.name}-title {self.name}-desc">'
            f'<title id="{self.name}-title">{escape(self.title)}'
            f'</title><desc id="{self.name}-desc">{escape(self.description)}</desc>{body}'
        )

    def write(self, path: Path) -> None:
        """A file of its own, SVG or PDF by its name's ending, for a paper. Raises OSError."""
        kind = path.suffix.removeprefix(".")
        nothing = {"svg": ("Date",), "pdf": ("CreationDate",)}[kind]
        with path.open("wb") as file:
            self._save(file, kind, {**dict.fromkeys(nothing), "Title": self.title})

    def _save(self, stream: Any, kind: str, metadata: dict[str, str | None]) -> None:
        width, height = self.size
        with mpl.rc_context(_STYLE), warnings.catch_warnings():
            # the reader's fonts draw the text, not the font that measures it here
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
            figure = Figure(figsize=(width / 72, height / 72), dpi=72, facecolor="none")
            self.draw(figure)
            figure.savefig(stream, format=kind, metadata=metadata)


def _variable(match: re.Match[str]) -> str:
    name = _VARIABLES.get(match[0])
    return f"var(--{name}, {match[0]})" if name else match[0]


def shortened(label: str) -> str:
    """A name short enough to leave space for the figure."""
    return label if len(label) <= _LONGEST_LABEL else f"{label[: _LONGEST_LABEL - 1]}\u2026"


def axes_with_margins(
    figure: Figure, *, left: float, right: float, top: float, bottom: float
) -> Axes:
    """Axes at these distances (units) from the figure's edges."""
    width, height = figure.get_size_inches() * 72
    place = (
        left / width,
        bottom / height,
        (width - left - right) / width,
        (height - top - bottom) / height,
    )
    axes = figure.add_axes(place)
    axes.tick_params(length=0)
    axes.set_axisbelow(True)
    return axes

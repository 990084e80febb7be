"""Draw speed over the baseline's as bars with intervals: gains to the right, losses to the left."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from duodec_lab.bench.figures.canvas import (
    CHARACTER,
    COLOURS,
    Drawing,
    axes_with_margins,
    shortened,
)
from duodec_lab.bench.reports.measures import PairMeasures
from duodec_lab.bench.reports.sentences import interval_words
from duodec_lab.bench.reports.statistics import Ratio
from duodec_lab.bench.reports.tables import ALL, mark_of

_WIDTH, _BAR = 262, 20
_VALUES = 52  # space for the values at the right
_TICKS = (1.0, 0.7, 0.5, 0.25, 0.1, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0)  # outwards from 1
_TICK_ROOM = 0.19  # of the axis
_SIGNS = {"slower": ("\u2212", "loss"), "faster": ("+", "gain"), "": ("=", "flat")}


def speed_figures(name: str, measures: PairMeasures) -> list[Drawing]:
    """A figure for all tasks together and one for each, on one logarithmic scale."""
    methods = [m for m in measures.methods if m != measures.baseline]
    ratios = [measures.of(m, t).ratio for m in methods for t in (None, *measures.tasks)]
    known = [value for r in ratios if r for value in (r.value, r.low, r.high) if value]
    if not known:
        return []
    limits = min(0.92, *known) / 1.02, max(1.08, *known) * 1.02
    return [
        _task_figure(f"{name}-{i}", measures, methods, task, limits)
        for i, task in enumerate((None, *measures.tasks))
    ]


def _task_figure(
    name: str,
    measures: PairMeasures,
    methods: Sequence[str],
    task: str | None,
    limits: tuple[float, float],
) -> Drawing:
    ratios = [measures.of(method, task).ratio for method in methods]

    def draw(figure: Figure) -> None:
        names = [shortened(method) for method in methods]
        left = 12 + CHARACTER * max(map(len, names))
        axes = axes_with_margins(figure, left=left, right=_VALUES, top=26, bottom=24)
        axes.set_title(
            shortened(task or ALL), loc="left", x=-left / (_WIDTH - left - _VALUES), weight="bold"
        )
        axes.set_xscale("log")
        axes.set_xlim(*limits)
        axes.set_ylim(len(methods) - 0.5, -0.5)
        for place, ratio in enumerate(ratios):
            words, colour = words_and_colour(ratio)
            if ratio:
                axes.barh(place, ratio.value - 1, left=1, height=0.62, color=colour, alpha=0.7)
            if ratio and ratio.low and ratio.high:
                ink = COLOURS["ink"]
                axes.plot([ratio.low, ratio.high], [place, place], color=ink, linewidth=1.1)
            axes.text(
                1.03, place, words, transform=axes.get_yaxis_transform(), va="center_baseline"
            )
        axes.axvline(1, color=COLOURS["muted"], linewidth=1)
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(axis="y", labelcolor=COLOURS["ink"])
        axes.xaxis.set_major_locator(FixedLocator(_ticks(*limits)))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.grid(axis="x", color=COLOURS["line"], linewidth=0.7)
        axes.spines[:].set_visible(False)

    title = f"Speed-up over {measures.baseline}, {task or ALL}"
    described = "; ".join(
        f"{method} {ratio.value:.2f} ({interval_words(ratio)})" if ratio else f"{method}: none"
        for method, ratio in zip(methods, ratios, strict=True)
    )
    return Drawing(name, title, described, (_WIDTH, 50 + _BAR * len(methods)), draw)


def _ticks(low: float, high: float) -> list[float]:
    """The ticks whose labels do not overlap."""
    room = _TICK_ROOM * log(high / low)
    kept: list[float] = []
    for tick in _TICKS:
        if low <= tick <= high and all(abs(log(tick / other)) >= room for other in kept):
            kept.append(tick)
    return kept


def words_and_colour(ratio: Ratio | None) -> tuple[str, str]:
    """A loss has a minus before its value, so that it is visible without colour; = says that the
    interval contains 1, or that the value reads so."""
    if ratio is None:
        return "none", COLOURS["flat"]
    if not ratio.is_conclusive:
        return f"{ratio.value:.2f}", COLOURS["flat"]
    sign, colour = _SIGNS[mark_of(ratio)]
    return f"{sign} {ratio.value:.2f}", COLOURS[colour]

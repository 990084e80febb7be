"""Draw when a method's target and, under it, its drafter work, on one axis of time."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from duodec_lab.bench.figures.canvas import (
    CHARACTER,
    COLOURS,
    Drawing,
    axes_with_margins,
    shortened,
)
from duodec_lab.bench.reports.timeline import Lane, Timeline

_WIDTH, _LANE, _GAP, _RIGHT = 1080, 17, 11, 84


def timeline_figure(name: str, timeline: Timeline) -> Drawing:
    """The target's forward passes with the tokens they added; under them drafting in parallel with
    a pass (filled) and drafting that the target waits for (outlined)."""
    heights = [_LANE * (2 if lane.has_drafter else 1) for lane in timeline.lanes]
    inner = sum(heights) + _GAP * len(heights)

    def draw(figure: Figure) -> None:
        names = [shortened(lane.method) for lane in timeline.lanes]
        left = 16 + CHARACTER * max(map(len, names))
        axes = axes_with_margins(figure, left=left, right=_RIGHT, top=8, bottom=44)
        axes.set_xlim(0, timeline.length_s * 1e3)
        axes.set_ylim(inner, 0)
        unit_ms = timeline.length_s * 1e3 / (_WIDTH - left - _RIGHT)
        places, top = [], _GAP / 2
        for lane, height in zip(timeline.lanes, heights, strict=True):
            _draw_lane(axes, lane, top, unit_ms)
            places.append(top + height / 2)
            top += height + _GAP
            axes.axhline(top - _GAP / 2, color=COLOURS["line"], linewidth=0.7)
        axes.set_yticks(places, names)
        axes.tick_params(axis="y", labelcolor=COLOURS["ink"])
        axes.spines["left"].set_visible(False)
        axes.set_xlabel("ms since the first token")

    described = "; ".join(
        f"{lane.method}: {lane.total_tokens} tokens in {len(lane.forwards)} passes"
        for lane in timeline.lanes
    )
    title = f"When target and drafter work, {timeline.prompt}"
    return Drawing(name, title, described, (_WIDTH, inner + 52), draw)


def _draw_lane(axes: Axes, lane: Lane, top: float, unit_ms: float) -> None:
    target, draft = COLOURS["target"], COLOURS["draft"]
    seam: dict[str, Any] = {"edgecolor": COLOURS["card"], "linewidth": 0.8}
    axes.broken_barh(_ms(lane.forwards), (top, _LANE - 2), facecolor=target, **seam)
    for (start_s, length_s), number in zip(lane.forwards, lane.num_tokens, strict=False):
        words = f"+{number}"
        if number and length_s * 1e3 > unit_ms * (6 + CHARACTER * len(words)):
            middle = (start_s + length_s / 2) * 1e3, top + _LANE / 2 - 1
            axes.text(
                *middle, words, ha="center", va="center", color=COLOURS["on-target"], size=9.5
            )
    under = top + _LANE
    axes.broken_barh(_ms(lane.overlaps), (under, _LANE - 5), facecolor=draft, **seam)
    axes.broken_barh(
        _ms(lane.waits), (under + 0.5, _LANE - 6), facecolor="none", edgecolor=draft, linewidth=1.3
    )
    middle_y = top + _LANE * (1 if lane.has_drafter else 0.5)
    place = axes.get_yaxis_transform()
    words = f"{lane.total_tokens} tokens"
    axes.text(1.01, middle_y, words, transform=place, va="center", color=COLOURS["ink"])


def _ms(spans: tuple[tuple[float, float], ...]) -> list[tuple[float, float]]:
    return [(start_s * 1e3, length_s * 1e3) for start_s, length_s in spans]

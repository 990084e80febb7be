"""Draw how often at least so many draft tokens are accepted, a line for each method."""

from __future__ import annotations

from matplotlib.figure import Figure

from duodec_lab.bench.figures.canvas import (
    CHARACTER,
    COLOURS,
    Drawing,
    axes_with_margins,
    shortened,
)
from duodec_lab.bench.reports.measures import PairMeasures

_MOST_POSITIONS = 16
_SERIES = [COLOURS[f"s{i}"] for i in range(1, 9)]
_MARKERS, _DASHES = "osD^vPX*", ("-", "--", ":")


def acceptance_figure(name: str, measures: PairMeasures) -> Drawing | None:
    """The figure; None if nothing was accepted."""
    found = {m: measures.of(m).acceptance[:_MOST_POSITIONS] for m in measures.methods}
    lines = sorted(
        ((m, shares) for m, shares in found.items() if shares), key=lambda item: -item[1][0]
    )
    if not lines:
        return None
    longest = max(len(shares) for _, shares in lines)

    def draw(figure: Figure) -> None:
        legend = 52 + CHARACTER * max(len(shortened(method)) for method, _ in lines)
        axes = axes_with_margins(figure, left=52, right=legend, top=14, bottom=46)
        for i, (method, shares) in enumerate(lines):
            axes.plot(
                range(1, len(shares) + 1),
                [100 * share for share in shares],
                label=shortened(method),
                color=_SERIES[i % len(_SERIES)],
                linestyle=_DASHES[i // len(_SERIES) % len(_DASHES)],
                linewidth=1.7,
                marker=_MARKERS[i % len(_MARKERS)],
                markersize=5,
                clip_on=False,
            )
        axes.set_xlim(0.7, longest + 0.3)
        axes.set_ylim(bottom=0)
        axes.set_xticks(range(1, longest + 1))
        axes.tick_params(axis="x", pad=8)
        axes.set_xlabel("at least so many draft tokens accepted")
        axes.set_ylabel("% of the rounds")
        axes.grid(axis="y", color=COLOURS["line"], linewidth=0.7)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.03), labelspacing=0.55)

    described = "; ".join(
        f"{method} {', '.join(f'{share:.0%}' for share in shares)}" for method, shares in lines
    )
    return Drawing(name, "Acceptance by position", described, (1040, 340), draw)

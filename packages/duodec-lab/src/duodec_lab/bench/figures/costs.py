"""Draw what forward passes and draft steps cost, by their widths."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from matplotlib.figure import Figure

if TYPE_CHECKING:
    from duodec.loading.profile import Profile


def costs_figure(profile: Profile) -> str:
    """T(n, context) and d(k, context), side by side, as SVG."""
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for context in sorted({f.context for f in profile.forwards}):
        forwards = [f for f in profile.forwards if f.context == context]
        widths, seconds = [f.width for f in forwards], [f.seconds * 1e3 for f in forwards]
        left.plot(widths, seconds, marker="o", label=f"{context} tokens before")
        steps = [s for s in profile.steps if s.context == context]
        right.plot([s.leaves for s in steps], [s.seconds * 1e3 for s in steps], marker="o")
    left.set(title="T(n): the target's forward pass", xlabel="draft tokens", ylabel="ms")
    right.set(title="d(k): a draft step", xlabel="leaves", ylabel="ms")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
    left.legend()
    written = io.StringIO()
    figure.savefig(written, format="svg")
    return written.getvalue()

"""Compare predicted and observed acceptance of candidates.

`stream` decodes recorded text on a virtual clock, and each label is compared with the estimate just
before it. At temperature 0 and 0.8:

    python -m benchmarks calibration --data FOLDER --limit 2
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib.figure import Figure

from benchmarks import Figures
from duodec.bench.beds.simulated import simulated_stage
from duodec.bench.plan import BenchPlan
from duodec.bench.recording import record
from duodec.bench.tasks import TASKS, read_prompts
from duodec.core.sampling import SamplingParams
from duodec.methods.stream import Stream
from duodec.planning.acceptance import Acceptance
from duodec.planning.costs import Costs

TEMPERATURES = (0.0, 0.8)
_NUM_BINS = 10
_FIGURE = Path(__file__).parents[2] / "docs" / "figures" / "calibration.svg"


class Observed(Acceptance):
    """Keeps the prediction for each candidate that was then labelled."""

    def __init__(self) -> None:
        super().__init__()
        self.labels: list[tuple[float, float, bool]] = []  # confidence, predicted, is_right

    def observe(
        self, confidences: Sequence[float], ranks: Sequence[int], is_right: Sequence[bool]
    ) -> None:
        predicted = list(map(self.estimate, confidences, ranks))
        self.labels += zip(confidences, predicted, is_right, strict=True)
        super().observe(confidences, ranks, is_right)


@dataclass(frozen=True)
class Bin:
    """Candidates of about the same confidence."""

    confidence: float  # means
    predicted: float
    observed: float
    num: int


def bins(labels: Sequence[tuple[float, float, bool]]) -> list[Bin]:
    values = np.array(labels, dtype=np.float64)
    number = np.minimum(_NUM_BINS - 1, (values[:, 0] * _NUM_BINS).astype(int))
    found = []
    for i in range(_NUM_BINS):
        inside = values[number == i]
        if len(inside):
            confidence, predicted, observed = inside.mean(axis=0).tolist()
            found.append(Bin(confidence, predicted, observed, len(inside)))
    return found


def error(found: Sequence[Bin], what: str) -> float:
    """The expected calibration error: the mean distance from the observed values."""
    total = sum(b.num for b in found)
    off: float = sum(b.num * abs(getattr(b, what) - b.observed) for b in found)
    return off / total


def main(
    data: Annotated[Path | None, typer.Option(help="A folder in Spec-Bench's format.")] = None,
    limit: Annotated[int, typer.Option(help="Prompts a task.")] = 2,
    forward_ms: Annotated[float, typer.Option(help="The target's latency.")] = 25.0,
    max_tokens: Annotated[int, typer.Option(help="Of a completion.")] = 96,
) -> Figures:
    """The calibration of the draft's confidence, drawn as well."""
    found: dict[str, list[Bin]] = {}
    for temperature in TEMPERATURES:
        plan = BenchPlan(
            methods=("stream",),
            data=data,
            limit=limit,
            max_tokens=max_tokens,
            simulate_ms=forward_ms,
            sampling=SamplingParams(temperature=temperature, seed=0),
        )
        found[f"{temperature:g}"] = bins(_labels(plan))
        for b in found[f"{temperature:g}"]:
            print(
                f"T {temperature:g}  confidence {b.confidence:.2f}  predicted {b.predicted:.2f}  "
                f"observed {b.observed:.2f}  {b.num:6}",
                flush=True,
            )
    errors = {
        name: {what: error(own, what) for what in ("confidence", "predicted")}
        for name, own in found.items()
    }
    print(errors)
    draw(found)
    return {"errors": errors, "bins": {n: [asdict(b) for b in own] for n, own in found.items()}}


def _labels(plan: BenchPlan) -> list[tuple[float, float, bool]]:
    observed = Observed()
    method = Stream(acceptance=observed)
    prompts = read_prompts(plan.data, TASKS, plan.limit)
    with simulated_stage(plan.pairs()[0], plan, needs_model=True) as stage:
        bed, costs = stage.bed_for(method), Costs()
        for conversation in record(stage.recorder, prompts, plan.sampling, plan.max_tokens):
            bed.forget()
            for turn in conversation.turns:
                bed.answer(method, turn, costs)
    return observed.labels


def draw(found: dict[str, list[Bin]]) -> None:
    """Draw observed acceptance against the confidence itself, and against the planner's
    estimate."""
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    for axes, what, title in zip(
        figure.subplots(1, 2, sharey=True),
        ("confidence", "predicted"),
        ("the draft's own confidence", "the planner's estimate"),
        strict=True,
    ):
        axes.plot([0, 1], [0, 1], color="0.7", linewidth=1)
        for name, marker in zip(found, "os", strict=True):
            own = found[name]
            axes.plot(
                [getattr(b, what) for b in own],
                [b.observed for b in own],
                marker=marker,
                label=f"temperature {name}",
            )
        axes.set(title=title, xlabel="said", xlim=(0, 1), ylim=(0, 1))
    figure.axes[0].set_ylabel("accepted")
    figure.axes[0].legend()
    _FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(_FIGURE, format="svg")

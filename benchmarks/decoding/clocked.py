"""Hold the simulation against a clock: the same prompts, replayed and simulated.

A replay waits for each forward pass as long as the curve says, while real drafts come from the real
drafter process. A simulation moves a virtual clock by the same curve, by the costs of draft steps
and by the prices of the host's work, both measured at its start. Both have one shape (trees, as
many rows as wanted) and one machine, which must be quiet. For each curve and method: the simulated
speed over the replayed one, with its interval over prompts, and how far single prompts scatter.

    python -m benchmarks clocked --data FOLDER
    python -m benchmarks clocked --data FOLDER --target MODEL --draft MODEL --figure FILE.svg
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import stdev
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from matplotlib.figure import Figure

from benchmarks import Figures
from duodec.cli.output import progress_bar
from duodec_lab.bench.beds.shapes import TREE
from duodec_lab.bench.benchmark import benchmark
from duodec_lab.bench.figures.canvas import COLOURS, Drawing
from duodec_lab.bench.plan import BenchPlan
from duodec_lab.bench.reports.statistics import Rate, ratio_of_rates
from duodec_lab.bench.results import Results

_CURVES = "rtx4090-8b-q4_0;rtx4090-8b-bf16;mi50-27b-q8_0"
_METHODS = "ar,lookup,sps:2,auto"
_SIZE = (720, 250)  # of the figure, in CSS pixels


@dataclass(frozen=True)
class Held:
    """One method on one curve: (tokens, seconds) by prompt, replayed and simulated."""

    curve: str
    method: str
    replayed: dict[str, Rate]
    simulated: dict[str, Rate]

    @property
    def by_prompt(self) -> dict[str, float]:
        """Simulated over replayed speed, less one."""
        return {
            prompt: _speed(self.simulated[prompt]) / _speed(rate) - 1
            for prompt, rate in self.replayed.items()
        }

    def figures(self) -> Figures:
        prompts = list(self.replayed)
        ratio = ratio_of_rates(
            [self.simulated[p] for p in prompts], [self.replayed[p] for p in prompts], prompts
        )
        assert ratio.low is not None
        assert ratio.high is not None
        return {
            "curve": self.curve,
            "method": self.method,
            "bias": ratio.value - 1,
            "bias_95": [ratio.low - 1, ratio.high - 1],
            "scatter": stdev(math.log1p(share) for share in self.by_prompt.values()),
            "by_prompt": {
                p: {"replayed": self.replayed[p], "simulated": self.simulated[p]} for p in prompts
            },
        }


def main(
    data: Annotated[Path, typer.Option(help="A folder in Spec-Bench's format.")],
    target: Annotated[str, typer.Option()] = "smollm2",
    draft: Annotated[str, typer.Option(help="A name or a file.")] = "auto",
    curves: Annotated[
        str, typer.Option(help="Costs of a forward pass, separated by semicolons.")
    ] = _CURVES,
    methods: Annotated[str, typer.Option(help="Separated by commas.")] = _METHODS,
    limit: Annotated[int, typer.Option(help="Prompts a task.")] = 2,
    max_tokens: Annotated[int, typer.Option(help="Of a completion.")] = 64,
    repeats: Annotated[int, typer.Option(help="Of the replay.")] = 3,
    figure: Annotated[Path | None, typer.Option(help="Draw it: an SVG file.")] = None,
) -> Figures:
    """The bias of the simulation by curve and method."""
    held: list[Held] = []
    facts: dict[str, dict[str, str]] = {}
    for curve in curves.split(";"):
        plan = BenchPlan(
            methods=tuple(methods.split(",")),
            targets=(target,),
            drafts=(draft,),
            data=data,
            limit=limit,
            max_tokens=max_tokens,
        )
        replayed = _run(replace(plan, replay_ms=curve, repeats=repeats))
        simulated = _run(replace(plan, simulate_ms=curve, simulate_as=TREE.name))
        facts[curve] = {name: simulated.settings[name] for name in ("draft_ms", "host_us")}
        facts[curve]["others"] = str(replayed.environment["other_programs_cores"])
        held += _held(curve, _rates(replayed), _rates(simulated))
        for one in held[-len(plan.methods) :]:
            found = one.figures()
            low, high = found["bias_95"]
            print(
                f"{curve:<18} {one.method:<8} simulated over replayed {found['bias']:+.1%} "
                f"({low:+.1%} to {high:+.1%}), scatter {found['scatter']:.1%}"
            )
    if figure is not None:
        drawing(held).write(figure)
    return {"beds": facts, "held": [one.figures() for one in held]}


def _run(plan: BenchPlan) -> Results:
    with TemporaryDirectory() as folder, progress_bar(is_quiet=False) as on_progress:
        return benchmark(
            plan, Path(folder) / "run", command="", is_resumed=False, on_progress=on_progress
        )


def _rates(results: Results) -> dict[str, dict[str, Rate]]:
    """(tokens, seconds) by method and prompt; all repeats and turns of a prompt together."""
    found: dict[str, dict[str, Rate]] = defaultdict(dict)
    for one in results.generations:
        if (rate := one.rate) is not None:
            prompt = f"{one.task}/{one.prompt_id}"
            tokens, seconds = found[one.method].get(prompt, (0.0, 0.0))
            found[one.method][prompt] = (tokens + rate[0], seconds + rate[1])
    return found


def _held(
    curve: str, replayed: dict[str, dict[str, Rate]], simulated: dict[str, dict[str, Rate]]
) -> list[Held]:
    """Of the prompts that both completed. Ends the program where these are fewer than two."""
    held = []
    for method, rates in replayed.items():
        own = {prompt: rate for prompt, rate in rates.items() if prompt in simulated[method]}
        if len(own) < 2:
            sys.exit(f"{method} completed {len(own)} prompts in both beds; give two or more")
        held.append(Held(curve, method, own, simulated[method]))
    return held


def _speed(rate: Rate) -> float:
    return rate[0] / rate[1]


def drawing(held: list[Held]) -> Drawing:
    """A panel a curve: each prompt's share that the simulation is faster, by method."""
    curves = list(dict.fromkeys(one.curve for one in held))
    methods = list(dict.fromkeys(one.method for one in held))

    most = 110 * max(0.01, *(abs(share) for one in held for share in one.by_prompt.values()))

    def draw(figure: Figure) -> None:
        panels = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
        for panel, curve in zip(panels, curves, strict=True):
            panel.set_title(curve, fontsize=10)
            panel.axhline(0, color=COLOURS["line"])
            for one in held:
                if one.curve == curve:
                    place = methods.index(one.method)
                    shares = [share * 100 for share in one.by_prompt.values()]
                    steps = [
                        place + 0.3 * (i / max(1, len(shares) - 1) - 0.5)
                        for i in range(len(shares))
                    ]
                    panel.plot(steps, shares, "o", markersize=3, color=COLOURS[f"s{place + 1}"])
                    panel.plot(
                        [place - 0.3, place + 0.3], [one.figures()["bias"] * 100] * 2,
                        color=COLOURS["ink"],
                    )  # fmt: skip
            panel.set_xticks(range(len(methods)), methods)
            panel.set_ylim(-most, most)
        panels[0].set_ylabel("simulated over replayed, %")
        figure.tight_layout()

    return Drawing(
        "clocked",
        "The simulation held against a clock",
        "Dots are prompts, lines the ratio over all of them; 0 means that both say the same.",
        _SIZE,
        draw,
    )

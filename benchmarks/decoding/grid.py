"""Run `auto` on a grid of steep curves: what it loses to plain decoding while it learns them.

Table models on a virtual clock, so that the figures are the same everywhere: 10 shapes of T(n)
(five slopes, a curve with steps, a CPU's two kernels, two cliffs), three latencies, three draft
models. Every run begins knowing nothing.

    python -m benchmarks grid
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, product

import numpy as np

from benchmarks import Figures
from duodec.backends.curves import CostCurve, published
from duodec.core.round import Round
from duodec.core.sampling.sampler import Context, Sampler, SamplingParams
from duodec.core.targets import Candidates
from duodec.methods.method import Method
from duodec.methods.registry import method as method_named
from duodec.methods.request import NoDrafter, Request
from duodec.planning.costs import Costs
from duodec.scheduler.scheduled_request import ScheduledRequest
from duodec.scheduler.scheduler import Scheduler
from duodec.testing import TableModel, TableTarget
from duodec_lab.bench.beds.latency import LatencyCurve
from duodec_lab.bench.beds.virtual import (
    PricedModel,
    RowKey,
    SimulatedDrafter,
    SimulatedTarget,
    StepTable,
    VirtualClock,
)

STEPS = StepTable.parse("1:2.2,4:4,8:7,16:9.8,32:16,128:34")
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6)
LENGTHS = (20, 60, 240)  # tokens after the first
_TARGET = TableModel(num_vocab=64, order=2, seed=3)

SHAPES = {  # T by rows, of which T(1) is scaled
    **{f"slope {s}": CostCurve(((1, 1.0), (2, 1.0 + s))) for s in (0.15, 0.3, 0.5, 0.75, 1.0)},
    "steps": published()["mi50-27b-q8_0"],
    "cpu": CostCurve.parse("1:36.5,2:58,4:98,5:121,8:220,16:277,32:440"),
    "cpu, flat kernels": CostCurve.parse("1:33.5,2:34,4:38.5,5:43,8:58,16:108,32:205"),
    **{f"cliff after {n}": CostCurve.parse(f"1:25,{n}:27,{n + 80}:1067") for n in (8, 32)},
}
MILLISECONDS = (10.0, 25.0, 100.0)
DRAFTS = {"good": 0.15, "weak": 0.5, "none": None}  # noise of its logits


@dataclass(frozen=True)
class Case:
    """A curve, and a draft model or none."""

    shape: str
    milliseconds: float  # T(1)
    draft: str

    @property
    def curve(self) -> CostCurve:
        return scaled(SHAPES[self.shape], self.milliseconds / 1e3)


CASES = [Case(*parts) for parts in product(SHAPES, MILLISECONDS, DRAFTS)]


def scaled(curve: CostCurve, forward_s: float) -> CostCurve:
    """A curve of the same shape, with another T(1)."""
    factor = forward_s / curve.forward_s
    return replace(curve, points=tuple((n, s * factor) for n, s in curve.points))


@dataclass(frozen=True)
class Text:
    """A target's own text, and its rows as far as they are known."""

    tokens: np.ndarray
    candidates: dict[int, Candidates]
    known: dict[RowKey, Candidates]


@cache
def text_of(target: TableModel, num_tokens: int) -> Text:
    """What the target says greedily after the prompt."""
    tokens = list(PROMPT)
    for _ in range(num_tokens):
        context = Context(np.array(tokens, dtype=np.int32), ())
        tokens.append(int(np.argmax(target.logits(context))))
    return Text(np.array(tokens, dtype=np.int32), {}, {})


def rounds(
    curve: CostCurve,
    noise: float | None,
    *,
    method: Method | None = None,
    costs: Costs | None = None,
    target: TableModel = _TARGET,
    num_tokens: int = LENGTHS[-1],
    shares_cores: bool = False,
    takes_turns: bool = False,
) -> list[Round]:
    """The rounds of a completion on a curve; `auto` that knows nothing, unless told otherwise.
    ``noise`` of the draft model; None: there is none."""
    text, clock = text_of(target, num_tokens), VirtualClock()
    bed = SimulatedTarget(
        TableTarget(target), text.tokens, LatencyCurve(curve), clock, text.candidates, text.known
    )
    priced = None if noise is None else PricedModel(replace(target, noise=noise).load(), STEPS)
    request = Request(
        PROMPT,
        len(text.tokens),
        SimulatedDrafter(priced, clock) if priced else NoDrafter(),
        Sampler(SamplingParams(), 0, len(PROMPT)),
        costs=costs or Costs(),
        clock=clock,
        shares_cores=shares_cores,
        takes_turns=takes_turns,
    )
    scheduler = Scheduler(bed, request.costs, clock=clock)
    scheduler.submit(
        [ScheduledRequest(request, method or method_named("auto"), lambda output: None)]
    )
    while scheduler.step():
        pass
    assert np.array_equal(request.text, text.tokens)
    return request.rounds


def speedups(
    done: Sequence[Round], forward_s: float, lengths: Sequence[int] = LENGTHS
) -> list[float]:
    """The speed over plain decoding's in the first tokens after the prompt's round."""
    counts = list(accumulate(len(r.tokens) for r in done[1:]))
    found = []
    for length in lengths:
        place = next((i for i, count in enumerate(counts) if count >= length), len(counts) - 1)
        found.append(counts[place] * forward_s / (done[1 + place].end_s - done[0].end_s))
    return found


def main() -> Figures:
    """Every case, and the worst."""
    found = {}
    for case in CASES:
        done = rounds(case.curve, DRAFTS[case.draft])
        key = f"{case.shape}, {case.milliseconds:g} ms, {case.draft}"
        found[key] = [round(value, 3) for value in speedups(done, case.curve.forward_s)]
        print(f"{key:40}", *(f"{value:5.2f}" for value in found[key]), flush=True)
    worst = {}
    for i, length in enumerate(LENGTHS):
        key = min(found, key=lambda k: found[k][i])
        worst[length] = {"speedup": found[key][i], "case": key}
        mean = float(np.mean([values[i] for values in found.values()]))
        print(f"first {length} tokens: worst {found[key][i]:.3f} ({key}), mean {mean:.3f}")
    return {"lengths": LENGTHS, "worst": worst, "speedups": found}

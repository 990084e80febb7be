"""Measure one tree's gaps between forward passes; a program of `benchmarks gaps`.

The gap is taken at the target: from the moment at which a forward pass is over, whether anybody
looks or not, to the launch of the next one. All that stands between the two counts, but for waits
for drafts: where the method waited, the time from its request to the drafter, or from the end of
the forward pass if that came first, to the arrival of what it waited for. Whatever else is done
then is done while the drafter works. Each tree runs its own program, with the same arguments.
"""

from __future__ import annotations

import json
import math
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from duodec import SamplingParams
from duodec.backends.curves import CostCurve
from duodec.backends.paced import TargetAround
from duodec.core.targets import Launched, Query, Scores
from duodec.loading.config import EngineConfig
from duodec.methods.method import Method
from duodec.methods.registry import method as method_named
from duodec.planning.costs import Costs
from duodec_lab.bench.beds import Parts, ReplayBed, answered, on_cores, replay_stage
from duodec_lab.bench.beds.latency import LatencyCurve
from duodec_lab.bench.beds.replay import ReplayTarget
from duodec_lab.bench.recording import Turn

_BLOCKED_S = 5e-5  # a poll that takes longer has waited


@dataclass
class Gaps:
    """Seconds between forward passes and of the waits in them, as they come."""

    gaps_s: list[float] = field(default_factory=list)
    waits_s: list[float] = field(default_factory=list)
    end_s: float | None = None  # of the last forward pass
    asked_s: float = 0.0  # when the drafter was asked last
    arrived_s: float = 0.0  # when what was waited for arrived last

    def begin(self) -> None:
        """A forward pass is launched."""
        if self.end_s is None:
            return
        wait_s = max(0.0, self.arrived_s - max(self.asked_s, self.end_s))
        self.gaps_s.append(perf_counter() - self.end_s - wait_s)
        self.waits_s.append(wait_s)

    def end(self, due_s: float) -> None:
        """It was over at that moment."""
        self.end_s = due_s


@dataclass
class Watched(TargetAround):
    """A target at which gaps are noted."""

    gaps: Gaps

    def launch(self, queries: Sequence[Query]) -> Launched:
        self.gaps.begin()
        return _Flight(self.target.launch(queries), self.gaps)


@dataclass(frozen=True)
class _Flight:
    launched: Launched
    gaps: Gaps
    due_s: float = math.inf

    def result(self) -> list[Scores]:
        scores = self.launched.result()
        self.gaps.end(self.launched.due_s)
        return scores


class WatchedDrafter:
    """A drafter whose waits are noted."""

    def __init__(self, drafter: Any, gaps: Gaps) -> None:
        self._drafter, self._gaps = drafter, gaps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def submit(self, request: Any) -> None:
        self._gaps.asked_s = perf_counter()
        self._drafter.submit(request)

    def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Any:
        begin_s = perf_counter()
        drafted = self._drafter.poll(slot, wait_s, beyond)
        if wait_s and perf_counter() - begin_s > _BLOCKED_S:
            self._gaps.arrived_s = perf_counter()
        return drafted


def measured(
    parts: Parts, curve: LatencyCurve, method: Method, turns: list[Turn]
) -> dict[str, float]:
    """The figures of a method over some texts, each cold."""
    gaps, costs, stats = Gaps(), Costs(), []
    bed = ReplayBed(parts, curve)
    drafter: Any = parts.drafter and WatchedDrafter(parts.drafter, gaps)
    watched = replace(parts, drafter=drafter)
    for turn in turns:
        bed.forget()
        gaps.end_s = None
        target = Watched(ReplayTarget(turn.tokens, curve, turn.candidates_by_position), gaps)
        engine = watched.engine(target, costs)
        with on_cores(parts.target_cores):
            finished = answered(engine, parts.sampling, method, turn, len(turn.answer))
        stats.append(finished.stats)
    num_tokens = sum(s.num_new_tokens for s in stats)
    return {
        "gap_ms": 1e3 * median(gaps.gaps_s),
        "gap_p90_ms": 1e3 * quantiles(gaps.gaps_s, n=10)[-1],
        "wait_ms": 1e3 * sum(gaps.waits_s) / len(gaps.waits_s),
        "tokens_per_second": num_tokens / sum(s.decode_s for s in stats),
        "tokens_per_forward": num_tokens / sum(len(s.rounds) for s in stats),
    }


def main(recorded: str, target: str, draft: str, latencies: str, methods: str) -> None:
    """Print the figures as JSON, by latency and method."""
    turns = pickle.loads(Path(recorded).read_bytes())
    names = methods.split(",")
    config = EngineConfig(target=target, draft=draft or None)
    chosen = [method_named(name) for name in names]
    found: dict[str, dict[str, dict[str, float]]] = {}
    curve = LatencyCurve(CostCurve.flat(0.025))
    with replay_stage(config, SamplingParams(), curve, chosen) as stage:
        for milliseconds in latencies.split(","):
            curve = LatencyCurve(CostCurve.flat(float(milliseconds) / 1e3))
            found[milliseconds] = {}
            for name in names:
                bed = stage.bed_for(method_named(name))
                assert isinstance(bed, ReplayBed), "a replay needs no rows off the path"
                found[milliseconds][name] = measured(bed.parts, curve, method_named(name), turns)
                print(milliseconds, name, found[milliseconds][name], file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Decode a long text: check that nothing grows, and that a killed drafter changes no text.

`stream` decodes a sampled text of 2,000 tokens, new to all stores, twice: replayed at 25 ms a
forward pass, where the drafter's steps, the time between forward passes and the memory of both
processes are compared by quarters; and with the real target and the drafter killed every 50 tokens,
where the text must be that of plain decoding.

    python -m stress.endurance
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Annotated

import numpy as np
import psutil
import typer
from benchmarks import RESULTS

from duodec import Delta, Finished, SamplingParams
from duodec.backends.curves import CostCurve
from duodec.backends.drafter.process import ProcessDrafter
from duodec.core.drafters import Drafted
from duodec.llm import LLM, load
from duodec.loading.config import EngineConfig
from duodec.machine.cores import CoreSharing
from duodec_lab.bench.beds.latency import LatencyCurve
from duodec_lab.bench.beds.replay import ReplayTarget
from duodec_lab.bench.card import environment

_PROMPT = "Once upon a time, in a village by the sea,"
_FORWARD_S = 0.025
_KILL_EVERY = 50  # tokens
_QUARTERS = 4


@dataclass(frozen=True)
class Quarter:
    """A part of the rounds: medians, and memory at its end."""

    num_rounds: int
    mean_accepted: float
    step_ms: float  # of the drafter
    gap_ms: float  # from one forward pass to the next, without waiting for drafts
    wait_ms: float  # mean
    engine_mb: float
    drafter_mb: float


def main(num_tokens: Annotated[int, typer.Option(help="Of the completion.")] = 2000) -> None:
    """Print the quarters, and whether the text was that of plain decoding."""
    with load(EngineConfig(context=num_tokens + 600)) as engine:
        tokenizer = engine.loaded.tokenizer
        ends = {t: float("-inf") for t in range(tokenizer.num_vocab) if tokenizer.is_end(t)}
        sampling = SamplingParams(temperature=1.1, seed=5, logit_bias=ends)
        prompt = engine.tokens_of(_PROMPT)
        *_, plain = engine.stream(prompt, replace(sampling, max_tokens=num_tokens), method="ar")
        assert isinstance(plain, Finished)
        text = np.array([*prompt, *plain.tokens], dtype=np.int32)
        target = ReplayTarget(text, LatencyCurve(CostCurve.flat(_FORWARD_S)))
        replayed = LLM(replace(engine.loaded, target=target, cores=CoreSharing()))
        quarters = _quarters(replayed, prompt, sampling, num_tokens)
        for quarter in quarters:
            print(quarter, flush=True)
        is_same, num_kills = _killed(engine, prompt, sampling, plain)
        print(f"drafter killed {num_kills} times, same text: {is_same}")
    found = {
        "environment": environment(),
        "num_tokens": num_tokens,
        "quarters": [asdict(quarter) for quarter in quarters],
        "num_kills": num_kills,
        "is_same_text": is_same,
    }
    (RESULTS / "endurance.json").write_text(json.dumps(found, indent=1))
    if not is_same:
        raise SystemExit("the text changed")


def _quarters(
    engine: LLM, prompt: list[int], sampling: SamplingParams, num_tokens: int
) -> list[Quarter]:
    drafter = engine.loaded.drafter
    assert isinstance(drafter, ProcessDrafter)
    drafter.wait_ready()
    steps: list[tuple[int, float]] = []  # tokens so far, seconds of a step
    memory: list[tuple[int, float, float]] = []
    last: Finished | None = None
    done = 0
    for event in engine.stream(prompt, replace(sampling, max_tokens=num_tokens), method="stream"):
        if isinstance(event, Delta):
            done += 1
            drafted: Drafted = drafter.poll(0)
            if drafted.num_steps > 1:
                steps.append((done, drafted.draft_s / (drafted.num_steps - 1)))
            assert drafter.pid is not None
            sizes = [psutil.Process(pid).memory_info().rss / 1e6 for pid in (None, drafter.pid)]
            memory.append((done, sizes[0], sizes[1]))
        elif isinstance(event, Finished):
            last = event
    assert last is not None
    rounds = last.stats.rounds
    found = []
    for i in range(_QUARTERS):
        first, end = (len(rounds) * j // _QUARTERS for j in (i, i + 1))
        own = rounds[first:end]
        low, high = (done * j // _QUARTERS for j in (i, i + 1))
        found.append(
            Quarter(
                num_rounds=len(own),
                mean_accepted=sum(len(r.tokens) for r in own) / len(own),
                step_ms=1e3 * median(s for at, s in steps if low < at <= high),
                gap_ms=1e3 * median(b.start_s - a.end_s - b.draft_wait_s for a, b in pairwise(own)),
                wait_ms=1e3 * sum(r.draft_wait_s for r in own) / len(own),
                engine_mb=max(e for at, e, _ in memory if low < at <= high),
                drafter_mb=max(d for at, _, d in memory if low < at <= high),
            )
        )
    return found


def _killed(
    engine: LLM, prompt: list[int], sampling: SamplingParams, plain: Finished
) -> tuple[bool, int]:
    """`stream` on the real target, its drafter killed again and again."""
    drafter = engine.loaded.drafter
    assert isinstance(drafter, ProcessDrafter)
    drafter.wait_ready()
    num_kills, num_seen = 0, 0
    last: Finished | None = None
    for event in engine.stream(
        prompt, replace(sampling, max_tokens=len(plain.tokens)), method="stream"
    ):
        if isinstance(event, Delta):
            num_seen += 1
            if num_seen >= _KILL_EVERY * (num_kills + 1) and drafter.pid is not None:
                os.kill(drafter.pid, signal.SIGKILL)
                num_kills += 1
        elif isinstance(event, Finished):
            last = event
    assert last is not None
    return last.tokens == plain.tokens, num_kills


if __name__ == "__main__":
    typer.run(main)

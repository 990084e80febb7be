"""Made-up runs of a benchmark: what each method does on each prompt, without a model."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from duodec_lab.bench.results import Generation, Results, RoundTrace

TASKS = ("qa", "humaneval")
METHODS = {"ar": 0.0, "ar#2": 0.0, "slow": 0.05, "duo": 0.6}  # acceptance of a draft token
FORWARD_S = 0.025
Change = Callable[[Generation], Generation]


def generation(task: str, number: int, method: str, repeat: int = 0) -> Generation:
    """64 tokens at 25 ms a forward pass; `duo` drafts in parallel, `slow` before it."""
    dice = random.Random(f"{task} {number} {method} {repeat}")
    acceptance, wait_s = METHODS[method], 0.01 if method == "slow" else 0.0
    now, trace = 0.3, [RoundTrace(0.0, 0.3, 1, 0, 0, 0.0, 0.0)]
    while (left := 64 - sum(r.num_tokens for r in trace)) > 0:
        accepted = 0
        while accepted < min(4, left - 1) and dice.random() < acceptance:
            accepted += 1
        start = now + wait_s
        now = start + FORWARD_S * dice.uniform(0.99, 1.01)
        overlap_s = 0.02 if method == "duo" else 0.0
        trace.append(RoundTrace(start, now, accepted + 1, accepted, 4, wait_s, overlap_s))
    histogram = [sum(r.num_accepted == n for r in trace) for n in range(5)]
    busy_s = sum(r.end_s - r.start_s for r in trace)
    return Generation(
        task=task,
        prompt_id=f"{task}-{number}",
        turn=1,
        method=method,
        target="big",
        draft="small" if acceptance else None,
        repeat=repeat,
        test_bed="replay",
        prompt_tokens=100,
        new_tokens=64,
        ttft_s=0.3,
        decode_s=now - 0.3,
        rounds=len(trace),
        mean_accepted=64 / len(trace),
        acceptance_histogram=histogram,
        sequence_histogram=[6, 3, 1] if method == "duo" else [],
        draft_tokens=4 * len(trace),
        accepted_tokens=sum(r.num_accepted for r in trace),
        target_busy_s=busy_s,
        draft_busy_s=sum(r.overlap_s + r.draft_wait_s for r in trace),
        overlap=sum(r.overlap_s for r in trace) / busy_s,
        identical=True,
        near_ties=0,
        drafter_restarts=0,
        ceiling_tokens_per_second=64 / len(trace) / FORWARD_S,
        memory_bytes=2**30,
        trace=trace,
    )


def run(
    change: Change = lambda g: g, *, num_prompts: int = 6, num_repeats: int = 1, **settings: Any
) -> Results:
    """Every method on all prompts of each task, each record changed by ``change``."""
    generations = [
        change(generation(task, number, method, repeat))
        for task in TASKS
        for number in range(num_prompts)
        for repeat in range(num_repeats)
        for method in METHODS
    ]
    environment = {"date": "2026-11-20", "cpu": "a processor", "load_average": [0.1, 0.1, 0.1]}
    chosen = {
        "command": "duodec bench --methods ar,ar,slow,duo",
        "methods": list(METHODS),
        "tasks": list(TASKS),
        "baseline": "ar",
        "notes": [],
        "is_complete": True,
    }
    return Results(generations, environment, {**chosen, **settings})

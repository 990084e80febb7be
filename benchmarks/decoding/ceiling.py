"""Compute the ceiling of `stream`: its speed with drafts that take no time.

The draft model runs for real, on a clock on which its steps take no time, and its tree is grown
until nothing in it is likelier than one in a thousand; the target scores the likeliest nodes of all
sources. As its latency is flat here, the tokens a forward pass are the same at any latency:

    python -m benchmarks.decoding.ceiling --data FOLDER --limit 5
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import RESULTS
from duodec.bench.card import environment
from duodec.bench.plan import BenchPlan
from duodec.bench.recording import record
from duodec.bench.simulation import simulated_stage
from duodec.bench.tasks import TASKS, read_prompts
from duodec.core.round import Stats
from duodec.methods.stream import Stream
from duodec.planning.costs import Costs


@dataclass
class Sum:
    """Sums over the forward passes after the first, which prefills the prompt."""

    num_tokens: int = 0
    num_forwards: int = 0

    def add(self, stats: Stats) -> None:
        self.num_tokens += sum(len(r.tokens) for r in stats.rounds[1:])
        self.num_forwards += len(stats.rounds) - 1

    @property
    def mean_accepted(self) -> float:
        return self.num_tokens / self.num_forwards


def main(
    data: Annotated[Path | None, typer.Option(help="A folder in Spec-Bench's format.")] = None,
    limit: Annotated[int, typer.Option(help="Prompts a task.")] = 2,
    max_tokens: Annotated[int, typer.Option(help="Of a completion.")] = 96,
    target: Annotated[str, typer.Option(help="The target.")] = "smollm2",
    draft: Annotated[str, typer.Option(help="The draft model.")] = "auto",
    width: Annotated[int, typer.Option(help="Most nodes of a forward pass.")] = 80,
    forward_ms: Annotated[float, typer.Option(help="The target's latency.")] = 100.0,
) -> None:
    """Print the tokens a forward pass, by task and over all tasks."""
    plan = BenchPlan(
        methods=("stream",),
        targets=(target,),
        drafts=(draft,),
        data=data,
        limit=limit,
        max_tokens=max_tokens,
        simulate_ms=forward_ms,
        draft_ms="1:0",
    )
    prompts = read_prompts(plan.data, TASKS, plan.limit)
    sums = {task: Sum() for task in (*TASKS, "all")}
    method, costs = Stream(num_tokens=width, patience=0.0), Costs()
    with simulated_stage(plan.pairs()[0], plan, needs_model=True) as stage:
        bed = stage.bed_for(method)
        for conversation in record(stage.recorder, prompts, plan.sampling, plan.max_tokens):
            bed.forget()
            for turn in conversation.turns:
                stats = bed.answer(method, turn, costs).stats
                for name in (conversation.prompt.task, "all"):
                    sums[name].add(stats)
            print(f"{conversation.prompt.task:16} {sums['all'].mean_accepted:.2f}", flush=True)
    found = {name: s.mean_accepted for name, s in sums.items() if s.num_forwards}
    print(found)
    name = f"ceiling-{Path(target).stem}-{width}.json"
    (RESULTS / name).write_text(
        json.dumps(
            {"environment": environment(), "prompts": len(prompts), "mean_accepted": found},
            indent=1,
        )
    )


if __name__ == "__main__":
    typer.run(main)

"""Measure what stands between two forward passes: replayed text, real drafts, real clocks.

Texts are recorded first, then replayed at several latencies, by this tree and, with ``--against``,
by another one in turn. For each method: the median and the 90th percentile of the time between the
result of a forward pass and the launch of the next one, waits for drafts left out; and tokens per
second. `benchmarks.decoding.gaps_of_tree` says how a gap is taken.

    python -m benchmarks gaps --data FOLDER
    python -m benchmarks gaps --data FOLDER --against ../old --latencies 5,10,25,50
    python -m benchmarks gaps --data FOLDER --against ../old --target MODEL
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks import SCRATCH, Figures, in_process
from duodec.core.sampling.sampler import SamplingParams
from duodec.llm import load
from duodec.loading.config import EngineConfig
from duodec.loading.resolve import draft_for
from duodec_lab.bench.recording import record
from duodec_lab.bench.tasks import TASKS, read_prompts

_ROOT = Path(__file__).parents[2]
Found = dict[str, dict[str, dict[str, float]]]  # by latency, method and what it is


def main(
    data: Annotated[Path, typer.Option(help="A folder in Spec-Bench's format.")],
    against: Annotated[Path | None, typer.Option(help="Another tree's root.")] = None,
    target: Annotated[str, typer.Option()] = "smollm2",
    limit: Annotated[int, typer.Option(help="Prompts a task.")] = 1,
    max_tokens: Annotated[int, typer.Option(help="Of a completion.")] = 64,
    latencies: Annotated[str, typer.Option(help="Milliseconds, by commas.")] = "5,10,25,50",
    methods: Annotated[str, typer.Option()] = "ar,lookup,duo,stream,auto",
    repeats: Annotated[int, typer.Option(help="Of each tree, by turns.")] = 3,
) -> Figures:
    """The medians over the repeats."""
    config = EngineConfig(target=target, draft=None)
    draft = draft_for(EngineConfig(target=target)) or ""
    with load(config) as llm:
        num_vocab = llm.loaded.tokenizer.num_vocab
        prompts = read_prompts(data, TASKS, limit)
        recorded = record(llm, prompts, SamplingParams(), max_tokens)
        turns = [turn for conversation in recorded for turn in conversation.turns[:1]]
    SCRATCH.mkdir(exist_ok=True)
    file = SCRATCH / "gaps.pickle"
    file.write_bytes(pickle.dumps(turns))
    arguments = [str(file), target, draft, latencies, methods]
    trees = {"this tree": _ROOT} | ({"against": against.resolve()} if against else {})
    runs: dict[str, list[Found]] = {tree: [] for tree in trees}
    for repeat in range(repeats):
        for tree in list(trees)[:: 1 if repeat % 2 else -1]:
            runs[tree].append(_measured(trees[tree], arguments))
    found = {tree: _medians(several) for tree, several in runs.items()}
    for latency in latencies.split(","):
        for method in methods.split(","):
            for tree in trees:
                f = found[tree][latency][method]
                print(
                    f"{latency:>4} ms  {method:<8} {tree:<10} gap {f['gap_ms']:.3f} ms "
                    f"(p90 {f['gap_p90_ms']:.3f})  {f['tokens_per_second']:7.1f} tokens/s  "
                    f"{f['tokens_per_forward']:.2f} a forward pass"
                )
    return {"draft": draft, "num_vocab": num_vocab, "prompts": len(turns), "milliseconds": found}


def _measured(tree: Path, arguments: list[str]) -> Found:
    """The figures of a tree, in a process of its own."""
    program = tree / "benchmarks" / "decoding" / "gaps_of_tree.py"  # the tree's own
    places = os.pathsep.join(map(str, [tree / "src", *tree.glob("packages/*/src")]))
    figures: Found = in_process(str(program), *arguments, PYTHONPATH=places)
    return figures


def _medians(runs: list[Found]) -> Found:
    """The median of each figure over several runs."""
    return {
        latency: {
            method: {what: median(run[latency][method][what] for run in runs) for what in figures}
            for method, figures in by_method.items()
        }
        for latency, by_method in runs[0].items()
    }

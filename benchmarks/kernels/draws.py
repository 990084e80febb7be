"""Time the work on a row of logits: candidates, log-normaliser, keyed draws.

On real rows of a model, next to one draft step of the same model on one thread.

    python -m benchmarks.kernels.draws --model qwen2.5-coder-0.5b
"""

from __future__ import annotations

import json
from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from benchmarks import RESULTS
from duodec.backends.llamacpp.draft import LlamaDraftModel
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.trees import LlamaScores
from duodec.bench.card import environment
from duodec.core.draft import Draft
from duodec.core.protocols import Query, RowQuery
from duodec.core.rows import Row, log_normaliser, top
from duodec.core.sampling import Context, Sampler, SamplingParams
from duodec.core.verify import verify
from tests.models.weights import weights

_REPEATS = 40
_WIDTH = 16
TEXT = (
    "The harbour was quiet that morning. Boats lay still in the fog, and the only sound came from "
    "a bell on the breakwater. def merge(left, right): return sorted(left + right) # a fox ran"
)


def timed_us(work: Callable[[Row], object], rows: list[Row]) -> float:
    """Median microseconds over rows."""
    times = []
    for i in range(_REPEATS):
        row = rows[i % len(rows)]
        begin = perf_counter()
        work(row)
        times.append(perf_counter() - begin)
    return median(times) * 1e6


def main(model: Annotated[str, typer.Option()] = "qwen2.5-coder-0.5b") -> None:
    """Time the work on rows of MODEL."""
    console = Console()
    llama = LlamaModel(weights(model))
    drafts = LlamaDraftModel(llama, num_context=256, num_threads=1)
    tokens = np.array(llama.tokenize(TEXT, is_templated=False), dtype=np.int32)
    chain = Draft.chain(tokens[-_WIDTH:].tolist())
    text = tokens[:-_WIDTH]
    wanted = tuple(range(_WIDTH + 1))
    rows = [row.copy() for row in drafts.rows(RowQuery(0, text, chain, wanted))]
    steps = []
    for i in range(_WIDTH):
        begin = perf_counter()
        drafts.rows(RowQuery(0, np.concatenate([text, tokens[-_WIDTH:][: i + 1]]), Draft(), (0,)))
        steps.append(perf_counter() - begin)
    context = Context(text)
    greedy, warm = SamplingParams(), SamplingParams(temperature=0.7, top_p=0.95, seed=1)
    whole = SamplingParams(temperature=1.0, seed=1)
    figures = {
        "one draft step": median(steps) * 1e6,
        "8 best and log-normaliser": timed_us(lambda r: (top(r, 8), log_normaliser(r)), rows),
        "8 candidates, temperature 0": timed_us(
            lambda r: Sampler(greedy).candidates(r, context, 8), rows
        ),
        "8 candidates, temperature 0.7": timed_us(
            lambda r: Sampler(warm).candidates(r, context, 8), rows
        ),
        "keyed draw, temperature 0": timed_us(lambda r: Sampler(greedy).draw(r, context), rows),
        "keyed draw, temperature 1, whole row": timed_us(
            lambda r: Sampler(whole).draw(r, context), rows
        ),
        "keyed draw, temperature 0.7, top-p 0.95": timed_us(
            lambda r: Sampler(warm).draw(r, context), rows
        ),
        f"verification of a chain of {_WIDTH}, all accepted, temperature 0.7, top-p 0.95": (
            accepted_us(text, rows, warm)
        ),
    }
    for what, us in figures.items():
        console.print(f"{what}: {us:.0f} us ({us / figures['one draft step']:.1%} of a draft step)")
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "draws.json").write_text(
        json.dumps(
            {
                "environment": environment(),
                "model": model,
                "num_vocab": llama.num_vocab,
                "microseconds": figures,
            },
            indent=1,
        )
    )


def accepted_us(text: np.ndarray, rows: list[Row], params: SamplingParams) -> float:
    """Microseconds of verifying a chain that is accepted whole: a draw for every row."""
    sampler = Sampler(params)
    drawn: list[int] = []
    for i in range(_WIDTH):
        drawn.append(sampler.draw(rows[i], Context(text, tuple(drawn))).token)
    draft = Draft.chain(drawn)
    scores = LlamaScores(Query(0, text, draft, sampler), rows)
    times = []
    for _ in range(_REPEATS):
        begin = perf_counter()
        verdict = verify(draft, scores)
        times.append(perf_counter() - begin)
    assert len(verdict.accepted) == _WIDTH
    return median(times) * 1e6


if __name__ == "__main__":
    typer.run(main)

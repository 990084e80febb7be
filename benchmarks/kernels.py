"""Measure the cost of the exact kernels, and check that they are exact.

For each setting, in a separate process (the switch is read when the library loads): how far the
logits of one text move with the width of the forward pass, the threads and the parts of the
prefill, and the time of a forward pass.

    python -m benchmarks.kernels smollm2 qwen2.5-coder-0.5b
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks import RESULTS
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target import LlamaScores, LlamaTarget
from duodec.bench.card import environment
from duodec.core.draft import Draft
from duodec.core.protocols import Query
from duodec.models import resolve

WIDTHS = (1, 2, 8, 16)
THREADS = (1, 2)
LENGTHS = (256, 768)
SETTINGS = {
    "fast": (False, False),
    "width-exact attention": (False, True),
    "width-exact attention, exact matrices": (True, True),
}
REPEATS = 2


@dataclass(frozen=True)
class Measured:
    """One model, setting, text length."""

    model: str
    setting: str
    num_tokens: int
    deviation: float  # greatest difference of a logit between any two ways
    prefill_ms_per_token: dict[int, float]  # by threads
    forward_ms: dict[int, dict[int, float]]  # by threads and width


def measure(model_name: str, setting: str, length: int) -> Measured:
    """Compute the same rows in every way."""
    is_exact, is_width_exact = SETTINGS[setting]
    model = LlamaModel(resolve(model_name).path, is_exact=is_exact)
    target = LlamaTarget(model, num_context=1024, num_threads=1, is_width_exact=is_width_exact)
    prose = (Path(__file__).parent.parent / "LICENSE").read_text()
    tokens = model.tokenize(prose, is_templated=False)[:length]
    start = length - 16
    ways: list[NDArray[np.float32]] = []
    prefill: dict[int, float] = {}
    forwards: dict[int, dict[int, float]] = {}
    for threads in THREADS:
        target.context.num_threads = target.context.num_prompt_threads = threads
        score(target, tokens[:1])
        begin = perf_counter()
        score(target, tokens[:start])
        prefill[threads] = (perf_counter() - begin) / start * 1e3
        forwards[threads] = {}
        for width in WIDTHS:
            score(target, tokens[:start])
            rows, times = [], []
            for i in range(start, length, width):
                begin = perf_counter()
                rows += score(target, tokens[:i], tokens[i : i + width - 1])
                times.append((perf_counter() - begin) * 1e3)
            ways.append(np.stack(rows))
            forwards[threads][width] = median(times)
    score(target, tokens[:1])
    for i in range(40, start, 40):  # the text read in small pieces
        score(target, tokens[:i])
    ways.append(np.stack(score(target, tokens[:start], tokens[start : length - 1])))
    spread = max(float(np.abs(way - ways[0]).max()) for way in ways)
    return Measured(model_name, setting, length, spread, prefill, forwards)


def score(
    target: LlamaTarget, text: Sequence[int], draft: Sequence[int] = ()
) -> list[NDArray[np.float32]]:
    (scores,) = target.score([Query(0, np.array(text, np.int32), Draft.chain(draft))])
    assert isinstance(scores, LlamaScores)
    return [row.copy() for row in scores.rows]


def main() -> None:
    """Run every setting in its own process, interleaved, and print medians."""
    console = Console()
    models = sys.argv[1:] or ["smollm2"]
    table = []
    for model in models:
        for length in LENGTHS:
            runs: dict[str, list[dict[str, Any]]] = {name: [] for name in SETTINGS}
            for _ in range(REPEATS):
                for setting in SETTINGS:
                    out = subprocess.run(
                        [sys.executable, "-m", "benchmarks.kernels", "--one", model, setting,
                         str(length)],
                        check=True, capture_output=True, text=True,
                    )  # fmt: skip
                    runs[setting].append(json.loads(out.stdout.splitlines()[-1]))
            for setting, results in runs.items():
                cells = {
                    f"{t} threads, prefill": median(
                        r["prefill_ms_per_token"][str(t)] for r in results
                    )
                    for t in THREADS
                } | {
                    f"{t} threads, {w} rows": median(
                        r["forward_ms"][str(t)][str(w)] for r in results
                    )
                    for t in THREADS
                    for w in WIDTHS
                }
                worst = max(r["deviation"] for r in results)
                table.append({"model": model, "tokens": length, "setting": setting,
                              "deviation": worst, "ms": cells})  # fmt: skip
                shown = ", ".join(f"{name} {ms:.1f}" for name, ms in cells.items())
                console.print(f"{model} at {length}, {setting}: moves {worst:.3g}; ms: {shown}")
    path = RESULTS / "kernels.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"environment": environment(), "table": table}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        sys.stdout.write(json.dumps(asdict(measure(sys.argv[2], sys.argv[3], int(sys.argv[4])))))
    else:
        main()

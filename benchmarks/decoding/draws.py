"""Time the work on a row of logits: draws, and candidates.

Rows of a real model over prose and code, and flat ones (every logit alike but for noise), where a
draw at temperature 1 has the most to do: its noise is of the few tokens that can still win
(`native/draws.cpp`). Each kind of work by turns, medians.

    python -m benchmarks draws qwen2.5-coder-0.5b
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console

from benchmarks import Figures
from benchmarks.kernels.kernels import model_file, score
from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.core.sampling.sampler import Context, Draw, Sampler, SamplingParams

Row = NDArray[np.float32]
_WORK = {  # a sampler's parameters
    "temperature 0": SamplingParams(),
    "temperature 1": SamplingParams(temperature=1.0),
    "temperature 0.7, top-p 0.95": SamplingParams(temperature=0.7, top_p=0.95),
}
_ROOT, _TEXTS = Path(__file__).parents[2], ("LICENSE", "src/duodec/core/verify.py")
_START, _NUM_ROWS, _NUM_CANDIDATES = 32, 16, 8


def main(
    model: Annotated[str, typer.Argument(metavar="MODEL")] = "smollm2",
    repeats: Annotated[int, typer.Option(help="Of each kind of work on each row.")] = 40,
) -> Figures:
    """Time every kind of work on a row."""
    kinds = {"of text": _rows(model)}
    num_vocab = len(kinds["of text"][0])
    dice = np.random.default_rng(0)
    kinds["flat"] = list(dice.normal(0, 0.1, (_NUM_ROWS, num_vocab)).astype(np.float32))
    console = Console()
    microseconds: dict[str, dict[str, float]] = {}
    for kind, rows in kinds.items():
        microseconds[kind] = _medians(_kinds_of_work(), rows, repeats)
        for name, figure in microseconds[kind].items():
            console.print(f"{figure:8.0f} us  {name}, rows {kind}", highlight=False)
    return {"model": Path(model).name, "num_vocab": num_vocab, "microseconds": microseconds}


def _rows(name: str) -> list[Row]:
    """Rows of logits over a text."""
    library.load()
    with closing(LlamaModel(model_file(name), num_gpu_layers=0)) as model:
        found: list[Row] = []
        for file in _TEXTS:
            text = model.tokenize((_ROOT / file).read_text("utf-8"), is_templated=False)
            tokens = text[: _START + _NUM_ROWS // 2]
            with closing(LlamaTarget(model, num_context=128, num_threads=1)) as target:
                score(target, tokens[:_START])
                found += score(target, tokens[:_START], tokens[_START:-1])
        return found


def _kinds_of_work() -> dict[str, Callable[[Row, int], Any]]:
    """By name: what is done with a row at a position."""
    found: dict[str, Callable[[Row, int], Any]] = {}
    for name, params in _WORK.items():
        found[f"draw, {name}"] = partial(_draw, Sampler(params))
        found[f"{_NUM_CANDIDATES} candidates, {name}"] = partial(_candidates, Sampler(params))
    return found


def _draw(sampler: Sampler, row: Row, position: int) -> Draw:
    return sampler.draw(row, Context(np.zeros(position, np.int32)))


def _candidates(sampler: Sampler, row: Row, position: int) -> object:
    return sampler.candidates(row, Context(np.zeros(position, np.int32)), _NUM_CANDIDATES)


def _medians(
    kinds: dict[str, Callable[[Row, int], Any]], rows: list[Row], repeats: int
) -> dict[str, float]:
    """Microseconds of each, taken in turn."""
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for turn in range(repeats):
        for place, row in enumerate(rows):
            for name, work in kinds.items():
                begin_s = perf_counter()
                work(row, 1 + turn * len(rows) + place)
                times[name].append(1e6 * (perf_counter() - begin_s))
    return {name: round(median(found), 1) for name, found in times.items()}

"""Compute, in a separate process, what `duodec.backends.llamacpp.checks.self_test` compares."""

from __future__ import annotations

import ctypes
import json
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.checks.self_test import PROMPT, REFERENCE, STRIDE, Examined
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.context import LlamaContext
from duodec.core.draft import Draft
from duodec.core.drafters import RowQuery

TIMED = (1, 8)  # numbers of rows; the least of several times counts for each
_REPEATS = 7


def compute() -> Examined:
    """Load the library, and compute the compared logits of the draft model that we ship. It runs in
    a separate process."""
    path = Path(__file__).parents[3] / "data" / "smollm2-135m-draft-q4_0.gguf"
    model = LlamaModel(path, num_gpu_layers=0)
    context = LlamaContext(model, num_context=64, num_sequences=1, num_threads=1, max_rows=1)
    text = np.array(PROMPT, np.int32)

    def row_after(length: int) -> NDArray[np.float32]:
        ((row,),) = context.rows([RowQuery(0, text[:length], Draft(), (0,))])
        return np.array(row)

    found = []
    for length in REFERENCE:
        row_after(length - 1)  # several tokens at once, then one: other kernels
        found.append([float(x) for x in row_after(length)[::STRIDE]])
    seconds: dict[int, list[float]] = {num_rows: [] for num_rows in TIMED}
    for _ in range(_REPEATS):
        for num_rows, times in seconds.items():
            row_after(16)
            begin = perf_counter()
            row_after(16 + num_rows)
            times.append(perf_counter() - begin)
    named, worst = library.kernels(model.lib), 0.0
    if named:
        measure = model.lib._lib.duodec_deviation
        measure.restype, measure.argtypes = ctypes.c_double, ()
        worst = measure()
    return Examined(found, named, worst, sum(min(times) for times in seconds.values()))


if __name__ == "__main__":
    print(json.dumps(asdict(compute())))

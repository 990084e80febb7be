"""Compare single products of kernels with exact ones, by format of the weights.

A whole model's logits (`faithfulness`) multiply roundings as chance has it. Here the same rows of
activations, with outliers as models have them, are multiplied with the same weights: as ggml's
kernels do, and as ours do (`tests/backends/llamacpp/test_row_kernels.py` holds ours against this to
the last roundings). The error is that of the root mean square.

    python -m benchmarks products
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray
from rich.console import Console

from benchmarks import Figures
from benchmarks.kernels.faithfulness import floats
from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.header import ggml

Floats = NDArray[np.float32]

FORMATS = (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
    "F16", "BF16", "F32",
)  # fmt: skip
NUM_WEIGHTS, NUM_ROWS, NUM_COLUMNS = 128, 256, 1536
OUTLIERS, SIZE = 0.01, 20.0  # a share of activations, so many times as large as the others
BLOCK = 32


class _CpuTraits(ctypes.Structure):
    """ggml_type_traits_cpu."""

    _fields_ = (
        ("from_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
        (
            "vec_dot",
            ctypes.CFUNCTYPE(
                None, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
                ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int,
            ),
        ),
        ("vec_dot_type", ctypes.c_int),
        ("nrows", ctypes.c_int64),
    )  # fmt: skip


def quantised(weights: Floats, kind: GGMLQuantizationType) -> NDArray[np.uint8]:
    """Rows of a file."""
    num_rows, num_columns = weights.shape
    made = np.empty((num_rows, _row_bytes(kind, num_columns)), np.uint8)
    quantise = ggml(
        library.load(), "ggml_quantize_chunk", ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p,
        ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p,
    )  # fmt: skip
    size = quantise(
        kind.value, weights.ctypes.data, made.ctypes.data, 0, num_rows, num_columns, None
    )
    assert size == made.size
    return made


def of_ggml(weights: NDArray[np.uint8], kind: GGMLQuantizationType, x: Floats) -> Floats:
    """Products with ggml's kernels."""
    find = ggml(
        library.load(), "ggml_get_type_traits_cpu", ctypes.POINTER(_CpuTraits), ctypes.c_int
    )
    traits = find(kind.value).contents
    rounded = GGMLQuantizationType(traits.vec_dot_type)
    rows = x.view(np.uint8)
    if rounded != GGMLQuantizationType.F32:
        rows = np.empty((len(x), _row_bytes(rounded, x.shape[1])), np.uint8)
        for row, to in zip(x, rows, strict=True):
            find(rounded.value).contents.from_float(row.ctypes.data, to.ctypes.data, x.shape[1])
    made = np.empty((len(x), len(weights)), np.float32)
    for i, row in enumerate(rows):
        for j, weight in enumerate(weights):
            traits.vec_dot(
                x.shape[1],
                made[i:, j:].ctypes.data,
                0,
                weight.ctypes.data,
                0,
                row.ctypes.data,
                0,
                1,
            )
    return made


def of_ours(weights: Floats, kind: GGMLQuantizationType, x: Floats) -> NDArray[np.float64]:
    """Products of what our kernels multiply: activations of 8 bits, 32 to a scale."""
    if kind.name not in {"F16", "BF16", "F32"}:
        blocks = x.reshape(len(x), -1, BLOCK)
        most = np.abs(blocks).max(axis=-1, keepdims=True)
        codes = np.rint(blocks * (np.float32(127) / most))
        x = (codes * (most / np.float32(127))).reshape(x.shape)
    return x.astype(np.float64) @ weights.astype(np.float64).T


def _row_bytes(kind: GGMLQuantizationType, num_columns: int) -> int:
    columns, num_bytes = GGML_QUANT_SIZES[kind]
    return num_columns // columns * num_bytes


def main() -> Figures:
    """Each format's errors."""
    rng = np.random.default_rng(1)
    drawn = rng.standard_normal((NUM_WEIGHTS, NUM_COLUMNS)).astype(np.float32)
    x = rng.standard_normal((NUM_ROWS, NUM_COLUMNS)).astype(np.float32)
    x[rng.random(x.shape) < OUTLIERS] *= SIZE
    table: dict[str, dict[str, Any]] = {}
    for name in FORMATS:
        kind = GGMLQuantizationType[name]
        file = quantised(drawn, kind)
        weights = floats(file, kind)
        exact = x.astype(np.float64) @ weights.astype(np.float64).T
        size = np.sqrt(np.mean(exact**2))
        table[name] = {
            kernels: float(np.sqrt(np.mean((found - exact) ** 2)) / size)
            for kernels, found in (
                ("ours", of_ours(weights, kind, x)),
                ("llama.cpp", of_ggml(file, kind, x)),
            )
        }
        Console().print(f"{name}: " + ", ".join(f"{k} {v:.3g}" for k, v in table[name].items()))
    return {"table": table}

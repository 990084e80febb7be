"""What blocks stand for in formats that have one number for four weights, or for eight.

The tables cannot be drawn: they are read from the kernels' source, and a test holds what they give
against the gguf package's own.
"""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import numpy.typing as npt
from fakes.kernel_probes import KERNELS

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]
Parts = tuple[Floats, Floats]

_VALUES = {
    "IQ1": (-1, 0, 1), "IQ2_XXS": (8, 25, 43), "IQ2_XS": (8, 25, 43), "IQ2_S": (8, 25, 43),
    "IQ3_XXS": (4, 12, 20, 28, 36, 44, 52, 62), "IQ3_S": (1, 3, 5, 7, 9, 11, 13, 15),
}  # fmt: skip
_NONE = np.zeros(1)


@cache
def _grid(name: str) -> Floats:
    """Magnitudes by index: (n, 8) or (n, 4)."""
    source = (KERNELS / "grids.h").read_text()
    found = re.search(rf" {name}_DIGITS\[\d+\] = {{(.*?)}}", source, re.DOTALL)
    assert found, name
    entries = np.array([int(word, 16) for word in re.findall(r"0x[0-9a-f]+", found[1])])
    num, bits = (4, 3) if name.startswith("IQ3") else (8, 2)
    digits = entries[:, None] >> bits * np.arange(num) & ((1 << bits) - 1)
    return np.array(_VALUES[name], np.float64)[digits]


def _half(raw: Bytes) -> Floats:
    return np.ascontiguousarray(raw).view(np.float16).astype(np.float64)


def _shorts(raw: Bytes) -> npt.NDArray[np.int64]:
    return np.ascontiguousarray(raw).view(np.uint16).astype(np.int64)


def _words(raw: Bytes) -> npt.NDArray[np.int64]:
    return np.ascontiguousarray(raw).view(np.uint32).astype(np.int64)


def _signs(bits: npt.NDArray[np.int64]) -> Floats:
    """(...) numbers of eight bits to (..., 8) signs."""
    return 1.0 - 2 * (bits[..., None] >> np.arange(8) & 1)


def _even_signs(bits: npt.NDArray[np.int64]) -> Floats:
    """The same of seven bits: the last sign makes the minus signs an even number."""
    signs = _signs(bits & 127)
    signs[..., 7] = signs[..., :7].prod(axis=-1)
    return signs


def _fours(name: str, index: npt.NDArray[np.int64]) -> Floats:
    """Entries of four weights, two by two."""
    entries = _grid(name)[index]
    return entries.reshape(*index.shape[:-1], -1, 8)


def _nibbles(raw: Bytes) -> Floats:
    """Bytes to twice as many numbers of four bits, the low ones first."""
    both = np.stack([raw & 15, raw >> 4], axis=-1).astype(np.float64)
    return both.reshape(*raw.shape[:-1], -1)


def _scaled(weights: Floats, scales: Floats, half: Floats) -> Parts:
    """(..., 32, 8) weights times (..., n) scales, each of as many, and a half."""
    num = scales.shape[-1]
    by_scale = weights.reshape(*weights.shape[:-2], num, 256 // num)
    scaled = by_scale * scales[..., None] * half[..., None]
    return scaled.reshape(*weights.shape[:-2], 256), _NONE


def iq2_xxs(b: Bytes) -> Parts:
    both = _words(b[..., 2:66]).reshape(*b.shape[:-1], 8, 2)
    index = both[..., :1] >> np.arange(0, 32, 8) & 255
    signs = _even_signs(both[..., 1:] >> np.arange(0, 28, 7))
    weights = (_grid("IQ2_XXS")[index] * signs).reshape(*b.shape[:-1], 32, 8)
    return _scaled(weights, (0.5 + (both[..., 1] >> 28)) / 4, _half(b[..., :2]))


def iq2_xs(b: Bytes) -> Parts:
    both = _shorts(b[..., 2:66])
    weights = _grid("IQ2_XS")[both & 511] * _even_signs(both >> 9)
    return _scaled(weights, (0.5 + _nibbles(b[..., 66:74])) / 4, _half(b[..., :2]))


def iq2_s(b: Bytes) -> Parts:
    high = b[..., 66:74, None] >> np.arange(0, 8, 2) & 3
    index = b[..., 2:34] + 256 * high.reshape(*b.shape[:-1], 32).astype(np.int64)
    weights = _grid("IQ2_S")[index] * _signs(b[..., 34:66].astype(np.int64))
    return _scaled(weights, (0.5 + _nibbles(b[..., 74:82])) / 4, _half(b[..., :2]))


def iq3_xxs(b: Bytes) -> Parts:
    rest = _words(b[..., 66:98])
    signs = _even_signs(rest[..., None] >> np.arange(0, 28, 7))
    weights = _fours("IQ3_XXS", b[..., 2:66].astype(np.int64))
    weights = weights * signs.reshape(weights.shape)
    return _scaled(weights, (0.5 + (rest >> 28)) / 2, _half(b[..., :2]))


def iq3_s(b: Bytes) -> Parts:
    high = b[..., 66:74, None] >> np.arange(8) & 1
    index = b[..., 2:66] + 256 * high.reshape(*b.shape[:-1], 64).astype(np.int64)
    weights = _fours("IQ3_S", index) * _signs(b[..., 74:106].astype(np.int64))
    return _scaled(weights, 1 + 2 * _nibbles(b[..., 106:110]), _half(b[..., :2]))


def iq1_s(b: Bytes) -> Parts:
    rest = _shorts(b[..., 34:50])
    high = (rest[..., None] >> np.arange(0, 12, 3) & 7).reshape(*b.shape[:-1], 32)
    shift = np.where(rest >> 15, -0.125, 0.125).repeat(4, axis=-1)
    weights = _grid("IQ1")[b[..., 2:34] + 256 * high] + shift[..., None]
    return _scaled(weights, 1.0 + 2 * (rest >> 12 & 7), _half(b[..., :2]))


def iq1_m(b: Bytes) -> Parts:
    high = np.stack([b[..., 32:48] & 15, b[..., 32:48] >> 4], axis=-1).astype(np.int64)
    high = high.reshape(*b.shape[:-1], 32)
    weights = _grid("IQ1")[b[..., :32] + 256 * (high & 7)]
    weights = weights + np.where(high >> 3, -0.125, 0.125)[..., None]
    rest = _shorts(b[..., 48:56])
    scales = (rest[..., None] >> np.arange(0, 12, 3) & 7).reshape(*b.shape[:-1], 16)
    half = ((rest >> 12) << np.arange(0, 16, 4)).sum(axis=-1, keepdims=True).astype(np.uint16)
    return _scaled(weights, 1.0 + 2 * scales, half.view(np.float16).astype(np.float64))

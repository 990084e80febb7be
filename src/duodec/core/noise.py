"""Gumbel noise as a pure function of (seed, choice, position, token).

The integers are splitmix64 (Steele, Lea and Flood 2014): counter-based, the same bits in
NumPy and torch. The floats come from them by `log32`, a fixed sequence of fp32 additions
and multiplications, so every library that rounds each of them makes the same floats;
library logarithms do not (they differ in their last bits).

    u = (2 b + 1) / 2**24,  b the upper 23 bits        exact in fp32, never 0 or 1
    G = -ln(-ln u)                                     GUMBEL_MIN <= G <= GUMBEL_MAX
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

GUMBEL_MIN: Final = -2.8122
GUMBEL_MAX: Final = 16.6356

# What a stream of noise is used for; streams of one seed are independent.
DRAW: Final = 0
DRAFT: Final = 1  # tokens drawn from the draft's law, `sps-rejection` only
COIN: Final = 2  # acceptance of such a token

_MASK: Final = (1 << 64) - 1
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return z ^ (z >> 31)


def key(seed: int, choice: int, position: int, stream: int = DRAW) -> int:
    """The 64-bit key of one position's noise."""
    state = 0
    for value in (seed, choice, position, stream):
        state = _mix((state ^ (value & _MASK)) + _GOLDEN & _MASK)
    return state


def bits(key: int, tokens: NDArray[np.int64]) -> NDArray[np.uint64]:
    """23 random bits a token, shape (n,)."""
    z = tokens.astype(np.uint64)
    z += np.uint64(1)
    z *= np.uint64(_GOLDEN)
    z += np.uint64(key)
    z ^= z >> np.uint64(30)
    z *= np.uint64(_MIX_1)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_MIX_2)
    z ^= z >> np.uint64(31)
    z >>= np.uint64(41)
    return z


# Cephes logf: minimax polynomial of ln(1 + f) on [sqrt(1/2) - 1, sqrt(2) - 1].
_LOG_COEFFICIENTS: Final = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_SQRT_HALF: Final = np.float32(0.70710678)
_LN2_HIGH: Final = np.float32(0.693359375)
_LN2_LOW: Final = np.float32(-2.12194440e-4)


def log32(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """ln x for positive normal fp32, absolute error below 1e-6, each operation rounded."""
    mantissa, exponent = np.frexp(x)  # exact: x = mantissa * 2**exponent, mantissa in [1/2, 1)
    below = mantissa < _SQRT_HALF
    f = np.where(below, mantissa + mantissa, mantissa)
    f -= np.float32(1)
    e = (exponent - below).astype(np.float32)
    square = f * f
    y = np.full_like(f, np.float32(_LOG_COEFFICIENTS[0]))
    for coefficient in _LOG_COEFFICIENTS[1:]:
        y *= f
        y += np.float32(coefficient)
    y *= f
    y *= square
    y += e * _LN2_LOW
    y -= square * np.float32(0.5)
    y += f
    y += e * _LN2_HIGH
    return y


def uniform(key: int, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """Uniform noise in (0, 1), one value a token, shape (n,) fp32."""
    odd = bits(key, tokens)
    odd <<= np.uint64(1)
    odd += np.uint64(1)
    return odd.astype(np.float32) * np.float32(2.0**-24)


def gumbel(key: int, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """Standard Gumbel noise, one value a token, shape (n,) fp32."""
    return -log32(-log32(uniform(key, tokens)))

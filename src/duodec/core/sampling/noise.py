"""Compute Gumbel noise as a pure function of (seed, choice, position, token).

The integers are counter-based, the same bits in NumPy, torch and a GPU kernel: a 64-bit key of
the position (splitmix64, Steele, Lea and Flood 2014), and per token two rounds of a 32-bit
mixer under the two halves of that key. The floats come from them by `log32`, a fixed sequence
of fp32 additions and multiplications, so every library that rounds each of them makes the
same floats; library logarithms do not (they differ in their last bits).

    u = (b + 1/2) / 2**32,  b of 32 bits               rounded to fp32
    v = 1 - u               from the complement of b   rounded on its own: fine near 0
    G = -ln(-ln u)          ln u as ln(1 - v) near 1   GUMBEL_MIN <= G <= GUMBEL_MAX

A rare token is drawn where v is small, so v has as many significant bits there as anywhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from duodec.native.library import address, library

GUMBEL_MIN: Final = np.float32(-3.1301)
GUMBEL_MAX: Final = np.float32(22.8740)

# This is what a stream of noise is used for; streams of one seed are independent.
DRAW: Final = 0
DRAFT: Final = 1  # tokens drawn from the draft's distribution, `sps-rejection` only
COIN: Final = 2  # acceptance of such a token

_MASK: Final = (1 << 64) - 1
_HALF: Final = (1 << 32) - 1
_BLOCK: Final = 1 << 15
_GOLDEN: Final = 0x9E3779B97F4A7C15
_MIX_1: Final = 0xBF58476D1CE4E5B9
_MIX_2: Final = 0x94D049BB133111EB


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    return z ^ (z >> 31)


def key(seed: int, choice: int, position: int, stream: int = DRAW) -> int:
    """Return the 64-bit key of the noise at one position."""
    state = 0
    for value in (seed, choice, position, stream):
        state = _mix((state ^ (value & _MASK)) + _GOLDEN & _MASK)
    return state


def in_blocks(
    function: Callable[[NDArray[Any]], NDArray[Any]], values: NDArray[Any], dtype: DTypeLike
) -> NDArray[Any]:
    """Apply an elementwise ``function`` of many steps block by block. Its intermediate arrays then
    stay in the cache, and in memory that is not returned to the system after each step."""
    if len(values) <= _BLOCK:
        return function(values)
    out = np.empty(len(values), dtype)
    for begin in range(0, len(values), _BLOCK):
        out[begin : begin + _BLOCK] = function(values[begin : begin + _BLOCK])
    return out


def bits(key: int, tokens: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return 32 random bits for each token, with shape (n,)."""
    return in_blocks(lambda block: _bits(key, block), tokens, np.uint32)


def _bits(key: int, tokens: NDArray[np.int64]) -> NDArray[np.uint32]:
    z = tokens.astype(np.uint32)
    z *= np.uint32(0x9E3779B1)  # separates neighbours; odd, so no two tokens collide
    for half in (key & _HALF, key >> 32):
        z ^= np.uint32(half)
        z ^= z >> np.uint32(16)
        z *= np.uint32(0x7FEB352D)
        z ^= z >> np.uint32(15)
        z *= np.uint32(0x846CA68B)
        z ^= z >> np.uint32(16)
    return z


# Cephes logf: minimax polynomial of ln(1 + f) on [sqrt(1/2) - 1, sqrt(2) - 1].
_LOG_COEFFICIENTS: Final = tuple(
    np.float32(c) for c in (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)
)  # fmt: skip
_SQRT_HALF: Final = np.int32(0x3F3504F3)  # the bits of sqrt(1/2) in fp32
_LN2_HIGH: Final = np.float32(0.693359375)
_LN2_LOW: Final = np.float32(-2.12194440e-4)


def log32(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute ln x for positive normal fp32, with an absolute error below 1e-6, each operation
    rounded."""
    return _log(*_split(x))


def _split(x: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return e and f of x = (1 + f) * 2**e with 1 + f in [sqrt(1/2), sqrt(2)), by integer
    operations."""
    pattern = x.view(np.int32) - _SQRT_HALF
    exponent = pattern >> np.int32(23)
    pattern &= np.int32(0x007FFFFF)
    pattern += _SQRT_HALF
    return exponent.astype(np.float32), pattern.view(np.float32) - np.float32(1)


def _log(e: NDArray[np.float32], f: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute ln((1 + f) * 2**e)."""
    square = f * f
    y: NDArray[np.float32] = f * _LOG_COEFFICIENTS[0]
    for coefficient in _LOG_COEFFICIENTS[1:-1]:
        y += coefficient
        y *= f
    y += _LOG_COEFFICIENTS[-1]
    y *= f
    y *= square
    y += e * _LN2_LOW
    y -= square * np.float32(0.5)
    y += f
    y += e * _LN2_HIGH
    return y


def uniform(key: int, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return uniform noise in (0, 1), one value per token, with shape (n,) and type fp32."""
    return np.minimum(_uniform(bits(key, tokens)), _BELOW_ONE)


def gumbel(key: int, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return standard Gumbel noise, one value per token, with shape (n,) and type fp32."""
    return gumbel_of(bits(key, tokens))


def gumbel_of(random: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Return standard Gumbel noise, made of 32 random bits each."""
    e, f = _split(_uniform(random))
    near_one = -_uniform(~random)
    return -log32(-_log(e, np.where(e == 0, near_one, f)))


def best_two(
    key: int,
    tokens: NDArray[np.int64] | None,
    logits: NDArray[np.float32],
    temperature: float = 1.0,
) -> tuple[Sequence[int], Sequence[float]] | None:
    """Return the two tokens that have the greatest sum of logit over temperature and Gumbel noise,
    the lowest first among equals, and these sums; None where one is NaN. There are two or more
    tokens. ``tokens`` ascend; None means 0, 1, ... C++ (`native/draws.cpp`) computes noise only for
    the few tokens that can still be among the two."""
    logits = np.ascontiguousarray(logits, np.float32)
    if tokens is not None:
        tokens = np.ascontiguousarray(tokens)
    best, sums = array("q", (0, 0)), array("f", (0.0, 0.0))
    are_numbers = library().duodec_draw(
        logits.ctypes.data, None if tokens is None else tokens.ctypes.data, len(logits),
        1 / temperature, key, address(best), address(sums),
    )  # fmt: skip
    return (best, sums) if are_numbers else None


_BELOW_ONE: Final = np.float32(1 - 2.0**-24)


def _uniform(random: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Return the middle of each of 2**32 parts of (0, 1), rounded; the last ones are 1.0."""
    middle = random.astype(np.float32) + np.float32(0.5)
    middle *= np.float32(2.0**-32)
    return middle

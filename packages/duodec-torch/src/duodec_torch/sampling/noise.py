"""Compute `duodec.core.sampling.noise` and the masses of `duodec.core.rows` in torch: equal bits.

Integers are lanes of int64 masked to 32 bits, since torch lacks arithmetic on uint32. Floats are
made by the same sequence of fp32 operations, each a kernel of its own, so none is fused with the
next: never compile these functions.
"""

from __future__ import annotations

from duodec_torch.library import torch

_HALF = (1 << 32) - 1
LOG_COEFFICIENTS = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
SQRT_HALF = 0x3F3504F3
LN2_HIGH = 0.693359375
LN2_LOW = -2.12194440e-4
_EXP2_COEFFICIENTS = (0.013555746, 0.052032368, 0.24137977, 0.69303212, 1.0)
_MASS_BITS = 24


def halves(key: int) -> tuple[int, int]:
    """A 64-bit key as the two 32-bit numbers that `bits` takes, low half first."""
    return key & _HALF, key >> 32


def bits(low: torch.Tensor, high: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """32 random bits a token: int64, the shape of ``tokens`` with the keys' halves broadcast."""
    z = (tokens * 0x9E3779B1) & _HALF
    for half in (low, high):
        z = z ^ half
        z = z ^ (z >> 16)
        z = (z * 0x7FEB352D) & _HALF
        z = z ^ (z >> 15)
        z = (z * 0x846CA68B) & _HALF
        z = z ^ (z >> 16)
    return z


def log32(x: torch.Tensor) -> torch.Tensor:
    """ln x for positive normal fp32."""
    return _log(*_split(x))


def _split(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """e and f of x = (1 + f) * 2**e with 1 + f in [sqrt(1/2), sqrt(2))."""
    pattern = x.view(torch.int32) - SQRT_HALF
    e = (pattern >> 23).float()
    return e, ((pattern & 0x007FFFFF) + SQRT_HALF).view(torch.float32) - 1


def _log(e: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
    """ln((1 + f) * 2**e)."""
    square = f * f
    y = f * LOG_COEFFICIENTS[0]
    for coefficient in LOG_COEFFICIENTS[1:-1]:
        y = (y + coefficient) * f
    y = (y + LOG_COEFFICIENTS[-1]) * f * square
    y = y + e * LN2_LOW
    y = y - square * 0.5
    y = y + f
    return y + e * LN2_HIGH


def gumbel(low: torch.Tensor, high: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise, fp32, one value a token."""
    return gumbel_of(bits(low, high, tokens))


def gumbel_of(random: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise, fp32, made of 32 random bits each, int64."""
    e, f = _split(_uniform(random))
    near_one = -_uniform(random ^ _HALF)
    return -log32(-_log(e, torch.where(e == 0, near_one, f)))


def _uniform(random: torch.Tensor) -> torch.Tensor:
    return (random.float() + 0.5) * 2.0**-32


def exp_mass(x: torch.Tensor) -> torch.Tensor:
    """2**24 exp(x) for x <= 0, rounded to whole numbers: int64, so their sums have no order."""
    t = torch.clamp(x * 1.44269504, min=-_MASS_BITS - 2)
    n = torch.floor(t)
    t = t - n
    y = t * _EXP2_COEFFICIENTS[0]
    for coefficient in _EXP2_COEFFICIENTS[1:-1]:
        y = (y + coefficient) * t
    y = y + _EXP2_COEFFICIENTS[-1]
    exponent = (n.int() + _MASS_BITS) << 23
    scaled = (y.view(torch.int32) + exponent).view(torch.float32)  # times 2**(n + 24), exact
    return torch.round(scaled).long()

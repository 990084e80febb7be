"""Find the best tokens, the normaliser and the nucleus of a row of logits.

A row has up to a few hundred thousand entries, so each pass over it matters. Only comparisons,
fixed-order fp32 operations and sums of whole numbers decide a token.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from duodec.core.sampling import noise
from duodec.errors import ComputeFailed
from duodec.native import ranking

Row = NDArray[np.float32]  # logits of shape (vocab,)

HEAD = 128  # tokens examined before all others


def check_finite(row: NDArray[np.floating]) -> None:
    """Raise ComputeFailed for a row of logits whose largest is not finite. If any of them is NaN,
    that is the largest."""
    if not math.isfinite(row.max()):
        raise not_finite()


def not_finite() -> ComputeFailed:
    """Return the error for a row of logits whose largest is not finite."""
    return ComputeFailed(
        "the model computed logits that are no numbers: its file is damaged, or its numbers "
        "overflow; download it again, or choose another `dtype`"
    )


def top(values: Row, k: int) -> NDArray[np.int64]:
    """Return the indices of the k largest values, largest first, lowest index first among equals.
    Raises ComputeFailed where one is NaN."""
    found = ranking.top(values, k)
    if found is None:
        raise not_finite()
    return found


def descending(values: Row) -> NDArray[np.int64]:
    """Return the indices in stable order, largest value first."""
    if len(values) <= 512:
        return np.argsort(-values, kind="stable")
    # For many values, integers in the order of (value descending, index) sort several times faster.
    pattern = (values + np.float32(0)).view(np.int32).astype(np.int64)  # + 0: no negative zero
    ascending = np.where(pattern < 0, pattern ^ 0x7FFFFFFF, pattern)
    keys = (-ascending << 32) | np.arange(len(values))
    keys.sort()
    order: NDArray[np.int64] = keys & 0xFFFFFFFF
    return order


def masked(row: Row, allowed: NDArray[np.bool_] | None) -> Row:
    """Return the row with -inf where a token is not ``allowed`` or beyond the end of
    ``allowed``."""
    if allowed is None:
        return row
    size = min(len(row), len(allowed))
    kept = np.full_like(row, -np.inf)
    np.copyto(kept[:size], row[:size], where=allowed[:size])
    return kept


def log_normaliser(row: Row) -> float:
    """Return the logarithm of the sum of exp over a row of logits."""
    shift = row.max()
    return float(shift) + math.log(float(np.exp(row - shift).sum(dtype=np.float64)))


_MASS_BITS = 24
_MASS_FLOOR = np.float32(-(_MASS_BITS + 1) * math.log(2))  # below it, a mass rounds to 0


def nucleus(scores: Row, tokens: NDArray[np.int64] | None, top_p: float) -> NDArray[np.int64]:
    """Return the fewest tokens, best first, whose mass reaches top_p; they are ascending.

    Masses are whole numbers (in 2**-24 of the best token's), so their sums do not depend on order.
    """
    best = scores.max() if tokens is None else scores[tokens].max()
    if tokens is None:
        tokens = np.flatnonzero(scores >= best + _MASS_FLOOR)
    if best == -np.inf:  # all of them are banned
        return tokens
    heavy = scores[tokens]
    mass = exp_mass(heavy - best)
    wanted = math.ceil(top_p * int(mass.sum(dtype=np.float64)))
    k = HEAD
    while True:
        order = top(heavy, k)
        reached = np.cumsum(mass[order], dtype=np.float64)
        if reached[-1] >= wanted or len(order) == len(heavy):
            return np.sort(tokens[order[: int(np.searchsorted(reached, wanted)) + 1]])
        k *= 8


# This computes 2**f on [0, 1), with a relative error below 4e-6, exact at both ends.
_EXP2_COEFFICIENTS = tuple(
    np.float32(c) for c in (0.013555746, 0.052032368, 0.24137977, 0.69303212, 1.0)
)


def exp_mass(x: Row) -> Row:
    """Compute 2**24 exp(x) for x <= 0, rounded to whole fp32 numbers, by fixed-order operations."""
    return noise.in_blocks(_exp_mass, x, np.float32)


def _exp_mass(x: Row) -> Row:
    t = x * np.float32(1.44269504)
    np.maximum(t, np.float32(-_MASS_BITS - 2), out=t)
    n = np.floor(t)
    t -= n  # f = t - n, exact
    y: Row = t * _EXP2_COEFFICIENTS[0]
    for coefficient in _EXP2_COEFFICIENTS[1:-1]:
        y += coefficient
        y *= t
    y += _EXP2_COEFFICIENTS[-1]
    exponent = n.astype(np.int32)
    exponent += np.int32(_MASS_BITS)
    exponent <<= np.int32(23)
    y.view(np.int32)[...] += exponent  # times 2**(n + 24), exact
    np.rint(y, out=y)
    return y

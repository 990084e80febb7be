"""Rank the tokens of a row of logits, in C++: see `core.rows` and `core.sampling.Sampler`."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from duodec.native.library import address, library

BestTwo = tuple[Sequence[int], Sequence[float]]
"""Two tokens, the better one first, and their scores; only one if the row has only one."""
Best = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Tokens, best first, and how likely each is."""


def top(row: NDArray[np.float32], k: int) -> NDArray[np.int64] | None:
    """Return the k largest entries, largest first, lowest token first among equals; None for a row
    that has a NaN."""
    row = np.ascontiguousarray(row, dtype=np.float32)
    tokens = np.empty(min(k, len(row)), dtype=np.int64)
    count = library().duodec_top(row.ctypes.data, len(row), len(tokens), tokens.ctypes.data)
    return None if count < 0 else tokens


def best_two(row: NDArray[np.float32]) -> BestTwo | None:
    """Return the two largest entries, as `top`; None for a row that has a NaN."""
    row = np.ascontiguousarray(row, dtype=np.float32)
    tokens, scores = array("q", (0, 0)), array("f", (0.0, 0.0))
    count = library().duodec_best_two(row.ctypes.data, len(row), address(tokens), address(scores))
    return None if count < 0 else (tokens[:count], scores[:count])


def likeliest(row: NDArray[np.float32], k: int) -> Best | None:
    """Return the k likeliest tokens with their probabilities; None for a row whose largest logit is
    not finite."""
    return _best(library().duodec_likeliest, row, k)


def candidates(row: NDArray[np.float32], k: int) -> Best | None:
    """Return the k likeliest tokens with the softmax of their logits; None as above."""
    return _best(library().duodec_candidates, row, k)


def noisy(row: NDArray[np.float32], k: int, head: int, temperature: float, key: int) -> Best | None:
    """Return the k best of the ``head`` likeliest tokens by logit over temperature plus the noise
    of ``key``, with the softmax of all their scores; None as above."""
    return _best(library().duodec_noisy, row, k, head, 1 / temperature, key)


def _best(
    function: Callable[..., int], row: NDArray[np.float32], k: int, *settings: float
) -> Best | None:
    row = np.ascontiguousarray(row, dtype=np.float32)
    tokens, confidences = np.empty(k, dtype=np.int64), np.empty(k)
    count = function(
        row.ctypes.data, len(row), k, *settings, tokens.ctypes.data, confidences.ctypes.data
    )
    return None if count < 0 else (tokens[:count], confidences[:count])

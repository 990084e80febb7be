"""Rank the tokens of a draft model's row of logits, in C++: see `core.sampling.Sampler`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from duodec.native.library import library

Best = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Tokens, best first, and how likely each is."""


def likeliest(row: NDArray[np.float32], k: int) -> Best | None:
    """The k likeliest tokens with their probabilities; None for a row whose largest logit is not
    finite."""
    row = np.ascontiguousarray(row, dtype=np.float32)
    tokens, confidences = np.empty(k, dtype=np.int64), np.empty(k)
    count = library().duodec_likeliest(
        row.ctypes.data, len(row), k, tokens.ctypes.data, confidences.ctypes.data
    )
    return None if count < 0 else (tokens[:count], confidences[:count])


def noisy(row: NDArray[np.float32], k: int, head: int, temperature: float, key: int) -> Best | None:
    """The k best of the ``head`` likeliest tokens by logit over temperature plus the noise of
    ``key``, with the softmax of all their scores; None as above."""
    row = np.ascontiguousarray(row, dtype=np.float32)
    tokens, confidences = np.empty(k, dtype=np.int64), np.empty(k)
    count = library().duodec_noisy(
        row.ctypes.data, len(row), k, head, 1 / temperature, key,
        tokens.ctypes.data, confidences.ctypes.data,
    )  # fmt: skip
    return None if count < 0 else (tokens[:count], confidences[:count])

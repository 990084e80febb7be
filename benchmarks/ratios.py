"""Paired ratios of rates, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import bootstrap

Rate = tuple[float, float]  # (tokens, seconds) of one prompt


@dataclass(frozen=True)
class Ratio:
    """A ratio and its 95% interval."""

    value: float
    low: float
    high: float


def ratio_of_rates(ours: Sequence[Rate], theirs: Sequence[Rate]) -> Ratio:
    """Our tokens per second over theirs, summed over prompts; prompts are resampled in pairs."""
    rows = np.array([(*a, *b) for a, b in zip(ours, theirs, strict=True)])

    def statistic(*columns: np.ndarray, axis: int = -1) -> np.ndarray:
        a, b, c, d = (column.sum(axis=axis) for column in columns)
        return np.asarray((a / b) / (c / d))

    value = float(statistic(*rows.T))
    if len(rows) < 2:
        return Ratio(value, value, value)
    interval = bootstrap(
        tuple(rows.T), statistic, paired=True, n_resamples=2000, method="percentile",
        vectorized=True, rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return Ratio(value, float(interval.low), float(interval.high))

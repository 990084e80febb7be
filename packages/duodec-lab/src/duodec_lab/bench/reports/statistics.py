"""Compute a benchmark's statistics with scipy: paired ratios with intervals, and outliers.

Numbers in, numbers out: independent of methods, tasks and files.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import bootstrap, median_abs_deviation

Rate = tuple[float, float]  # (tokens, seconds)

_RESAMPLES = 2000
_OUTLIER_DEVIATIONS = 5.0
_OUTLIER_SHARE = 0.25  # of the median: less is not reported, however small the spread
_FEWEST_FOR_OUTLIERS = 5
FEWEST_FOR_A_MARK = 5  # prompts: the interval of fewer is too narrow to conclude from


@dataclass(frozen=True)
class Ratio:
    """A ratio of rates and its 95% interval (None for a single prompt)."""

    value: float
    low: float | None
    high: float | None
    num_prompts: int  # independent prompts that the interval is based on

    @property
    def is_slower(self) -> bool:
        return self.is_conclusive and self.high is not None and self.high < 1

    @property
    def is_faster(self) -> bool:
        return self.is_conclusive and self.low is not None and self.low > 1

    @property
    def is_conclusive(self) -> bool:
        """Whether prompts suffice to call it faster or slower, or to say that it is neither."""
        return self.num_prompts >= FEWEST_FOR_A_MARK


def ratio_of_rates(
    ours: Sequence[Rate], theirs: Sequence[Rate], prompts: Sequence[Hashable]
) -> Ratio:
    """Our tokens per second over theirs, each a ratio of sums, with a percentile interval.

    The three sequences correspond: the i-th rates are of the same prompt, ``prompts[i]``. Prompts
    are resampled, in pairs and with all their repeats and turns, since these are not independent.
    """
    totals: dict[Hashable, np.ndarray] = {}
    for prompt, our, their in zip(prompts, ours, theirs, strict=True):
        totals[prompt] = totals.get(prompt, np.zeros(4)) + np.array([*our, *their])
    columns = tuple(np.array(list(totals.values())).T)
    value = float(_ratio(*columns))
    if len(totals) < 2:
        return Ratio(value, None, None, len(totals))
    interval = bootstrap(
        columns,
        _ratio,
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=_RESAMPLES,
        batch=max(1, 1_000_000 // len(totals)),
        rng=np.random.default_rng(0),
    ).confidence_interval
    return Ratio(value, float(interval.low), float(interval.high), len(totals))


def _ratio(*columns: np.ndarray, axis: int = -1) -> np.ndarray:
    """(our tokens, our seconds, their tokens, their seconds), each (..., prompts)."""
    our_tokens, our_s, their_tokens, their_s = (column.sum(axis=axis) for column in columns)
    return np.asarray((our_tokens / our_s) / (their_tokens / their_s))


def slow_outliers(seconds: Sequence[float]) -> list[int]:
    """Which of these durations are far longer than the others: by more than 5 deviations
    (median absolute deviation, scaled to a normal distribution's) and by more than a quarter.

    Short ones are not reported. Fewer than five durations have no outliers.
    """
    if len(seconds) < _FEWEST_FOR_OUTLIERS:
        return []
    values = np.asarray(seconds)
    median = float(np.median(values))
    deviation = float(median_abs_deviation(values, scale="normal"))
    limit = median + max(_OUTLIER_DEVIATIONS * deviation, _OUTLIER_SHARE * median)
    return [int(i) for i in np.flatnonzero(values > limit)]

"""Compute the target's own log probabilities of tokens, before any sampler."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from duodec.core.rows import Row, check_finite, log_normaliser, top
from duodec.core.targets import Scores

_LOWEST = -9999.0  # used for minus infinity, which JSON lacks


@dataclass(frozen=True)
class Logprob:
    """Hold a token, its log probability, and the likeliest tokens with theirs, best first.
    ``rank``, for a prompt's tokens, is 1 for the likeliest."""

    token: int
    logprob: float
    tops: tuple[tuple[int, float], ...] = ()
    rank: int | None = None


def logprob(scores: Scores, row: int, token: int, num_tops: int) -> Logprob:
    """Return the logprob of a token drawn from a row. Raises DistributionUnavailable, and
    ComputeFailed where the logits are not finite."""
    logits = _logits(scores, row)
    normaliser = log_normaliser(logits)
    best = top(logits, num_tops).tolist() if num_tops else ()
    tops = tuple((one, _floored(float(logits[one]) - normaliser)) for one in best)
    return Logprob(token, _floored(float(logits[token]) - normaliser), tops)


def rank(scores: Scores, row: int, token: int) -> int:
    """Return the rank of a token in a row, 1 for the likeliest. Raises what `logprob` raises."""
    logits = _logits(scores, row)
    return 1 + int(np.count_nonzero(logits > logits[token]))


def _logits(scores: Scores, row: int) -> Row:
    """Return the model's own logits, before temperature, penalties and cuts."""
    logits = scores.row_logits(row)
    check_finite(logits)
    return logits


def _floored(value: float) -> float:
    return max(_LOWEST, value)

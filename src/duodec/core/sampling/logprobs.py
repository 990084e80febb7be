"""Compute the target's own log probabilities of tokens, before any sampler."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from duodec.core.protocols import Scores
from duodec.core.rows import top
from duodec.core.sampling.sampler import Context, Distribution, Sampler, SamplingParams

_PLAIN = Sampler(SamplingParams(temperature=1.0))
_NO_CONTEXT = Context(np.empty(0, dtype=np.int32), ())  # no parameter that looks at it
_LOWEST = -9999.0  # in place of minus infinity, which JSON lacks


@dataclass(frozen=True)
class Logprob:
    """A token, its log probability, and the likeliest tokens with theirs, best first. ``rank``, of
    a prompt's tokens, is 1 for the likeliest."""

    token: int
    logprob: float
    tops: tuple[tuple[int, float], ...] = ()
    rank: int | None = None


def logprob(scores: Scores, row: int, token: int, num_tops: int) -> Logprob:
    """The logprob of a token drawn from a row. Raises DistributionUnavailable."""
    plain = plain_distribution(scores, row)
    best = top(plain.probs.astype(np.float32), num_tops) if num_tops else ()
    tops = tuple((int(plain.tokens[i]), _log(float(plain.probs[i]))) for i in best)
    return Logprob(token, _log(plain.prob(token)), tops)


def rank(scores: Scores, row: int, token: int) -> int:
    """How many tokens are likelier in a row, and one. Raises DistributionUnavailable."""
    plain = plain_distribution(scores, row)
    return 1 + int(np.count_nonzero(plain.probs > plain.prob(token)))


def plain_distribution(scores: Scores, row: int) -> Distribution:
    """The model's own distribution: no temperature, no penalties, no cuts. Raises
    DistributionUnavailable."""
    return _PLAIN.distribution(scores.row_logits(row), _NO_CONTEXT)


def _log(prob: float) -> float:
    return max(_LOWEST, math.log(prob)) if prob > 0 else _LOWEST

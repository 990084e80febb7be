"""Compute the target's own log probabilities of tokens, before any sampler."""

from __future__ import annotations

import math
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import numpy as np

from duodec.core.protocols import Query, Scores
from duodec.core.rows import top
from duodec.core.sampling import Distribution, Sampler, SamplingParams
from duodec.errors import DistributionUnavailable

_PLAIN = Sampler(SamplingParams(temperature=1.0))
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
    """The model's own distribution: no temperature, no penalties, no cuts."""
    sampled: Any = scores
    query = getattr(sampled, "query", None)
    if not (is_dataclass(sampled) and isinstance(query, Query)):
        raise DistributionUnavailable("this target has no logprobs; leave logprobs out")
    plain: Any = replace(sampled, query=replace(query, sampler=_PLAIN))  # type: ignore[type-var]
    distribution: Distribution = plain.distribution(row)
    return distribution


def _log(prob: float) -> float:
    return max(_LOWEST, math.log(prob)) if prob > 0 else _LOWEST

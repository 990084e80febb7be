"""What the target itself gave a token, before any sampler: OpenAI's ``logprobs``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import numpy as np

from duodec.core.protocols import Query, Scores
from duodec.core.sampling import Law, Sampler, SamplingParams
from duodec.errors import LawUnavailable

_PLAIN = Sampler(SamplingParams(temperature=1.0))
_LOWEST = -9999.0  # of what JSON cannot say: minus infinity


@dataclass(frozen=True)
class Mark:
    """A token of the answer, its logprob, and those of the likeliest ones, best first."""

    token: int
    logprob: float
    tops: tuple[tuple[int, float], ...] = ()


def mark(scores: Scores, row: int, token: int, num_tops: int) -> Mark:
    """The mark of a token drawn from a row. Raises LawUnavailable where the target has no laws."""
    law = plain_law(scores, row)
    best = np.argsort(-law.probs, kind="stable")[:num_tops]
    tops = tuple((int(law.tokens[i]), _log(float(law.probs[i]))) for i in best)
    return Mark(token, _log(law.prob(token)), tops)


def plain_law(scores: Scores, row: int) -> Law:
    """The model's own law of a row: no temperature, no penalties, no cuts."""
    answer: Any = scores
    query = getattr(answer, "query", None)
    if not (is_dataclass(answer) and isinstance(query, Query)):
        raise LawUnavailable("this target does not tell logprobs; ask without them")
    plain: Any = replace(answer, query=replace(query, sampler=_PLAIN))  # type: ignore[type-var]
    law: Law = plain.law(row)
    return law


def _log(prob: float) -> float:
    return max(_LOWEST, math.log(prob)) if prob > 0 else _LOWEST


Piece = Callable[[int], bytes]
"""The bytes that a token adds to the text."""


def chat_content(marks: Sequence[Mark], piece: Piece) -> dict[str, Any]:
    """``choices[].logprobs`` of a chat completion."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = piece(token)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}

    content = [
        {**entry(m.token, m.logprob), "top_logprobs": [entry(t, value) for t, value in m.tops]}
        for m in marks
    ]
    return {"content": content, "refusal": None}


def completion_lists(marks: Sequence[Mark], piece: Piece, offset: int) -> dict[str, Any]:
    """``choices[].logprobs`` of a text completion whose marks begin at ``offset`` characters."""

    def word(token: int) -> str:
        return piece(token).decode("utf-8", "replace")

    words = [word(m.token) for m in marks]
    starts = np.cumsum([offset, *map(len, words)]).tolist()[: len(words)]
    return {
        "tokens": words,
        "token_logprobs": [m.logprob for m in marks],
        "top_logprobs": [{word(t): value for t, value in m.tops} for m in marks],
        "text_offset": starts,
    }

"""Write log probabilities in OpenAI's shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from duodec.core.logprobs import Logprob

Piece = Callable[[int], bytes]
"""The bytes that a token adds to the text."""


def chat_content(logprobs: Sequence[Logprob], piece: Piece) -> dict[str, Any]:
    """``choices[].logprobs`` of a chat completion."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = piece(token)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}

    content = [
        {**entry(m.token, m.logprob), "top_logprobs": [entry(t, value) for t, value in m.tops]}
        for m in logprobs
    ]
    return {"content": content, "refusal": None}


def completion_lists(logprobs: Sequence[Logprob], piece: Piece, offset: int) -> dict[str, Any]:
    """``choices[].logprobs`` of a text completion whose logprobs begin at ``offset`` characters."""

    def word(token: int) -> str:
        return piece(token).decode("utf-8", "replace")

    words = [word(m.token) for m in logprobs]
    starts = np.cumsum([offset, *map(len, words)]).tolist()[: len(words)]
    return {
        "tokens": words,
        "token_logprobs": [m.logprob for m in logprobs],
        "top_logprobs": [{word(t): value for t, value in m.tops} for m in logprobs],
        "text_offset": starts,
    }

"""Draft without a model: what followed the same tokens earlier in the text."""

from __future__ import annotations

import numpy as np

from duodec.core.sampling import Tokens


def continuation(text: Tokens, max_ngram: int, num_tokens: int) -> list[int]:
    """Up to ``num_tokens`` tokens that followed the first earlier occurrence of the text's last
    n-gram, longest n first; [] when its last token is new."""
    length = len(text)
    for n in range(min(max_ngram, length - 1), 0, -1):
        # starts[i]: text[i : i + n] equals the last n tokens
        starts = np.ones(length - n, dtype=bool)
        for offset in range(n):
            starts &= text[offset : offset + length - n] == text[length - n + offset]
        first = int(starts.argmax())
        if starts[first]:
            return [int(token) for token in text[first + n : first + n + num_tokens]]
    return []

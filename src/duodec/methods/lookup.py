"""Decode with prompt lookup: the draft is what followed the last n-gram earlier in the text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from duodec.core.draft import Draft
from duodec.core.sampling.sampler import Tokens
from duodec.methods.loops import serial
from duodec.methods.method import Method
from duodec.methods.request import Loop, Request


def continuation(text: Tokens, max_ngram: int, num_tokens: int) -> list[int]:
    """Return up to ``num_tokens`` tokens that followed the first earlier occurrence of the text's
    last n-gram, longest n first; [] when its last token is new."""
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


@dataclass(frozen=True)
class PromptLookup(Method):
    """Draft by prompt lookup (Saxena 2023); transformers' ``prompt_lookup_num_tokens``."""

    name = "lookup"

    num_tokens: int = 10
    max_ngram: int = 3

    def decode(self, request: Request) -> Loop:
        def propose(request: Request) -> Draft:
            num_tokens = min(self.num_tokens, request.room)
            return Draft.chain(continuation(request.text, self.max_ngram, num_tokens))

        return serial(request, propose)

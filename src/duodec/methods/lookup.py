"""Decode with prompt lookup: the draft is what followed the last n-gram earlier in the text."""

from __future__ import annotations

from dataclasses import dataclass

from duodec.core.draft import Draft
from duodec.drafting.ngram import continuation
from duodec.methods.loops import serial
from duodec.methods.method import Method
from duodec.methods.request import Loop, Request


@dataclass(frozen=True)
class PromptLookup(Method):
    """Saxena 2023; transformers' ``prompt_lookup_num_tokens``."""

    name = "lookup"

    num_tokens: int = 10
    max_ngram: int = 3

    def decode(self, request: Request) -> Loop:
        def propose(request: Request) -> Draft:
            num_tokens = min(self.num_tokens, request.room)
            return Draft.chain(continuation(request.text, self.max_ngram, num_tokens))

        return serial(request, propose)

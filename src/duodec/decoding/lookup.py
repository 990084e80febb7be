"""Prompt lookup decoding: the draft is what followed the last n-gram earlier in the text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from duodec.core.draft import Draft
from duodec.core.round import Round
from duodec.decoding.loops import serial
from duodec.decoding.method import Method
from duodec.decoding.session import Session
from duodec.drafting.ngram import continuation


@dataclass(frozen=True)
class PromptLookup(Method):
    """Saxena 2023; transformers' ``prompt_lookup_num_tokens``."""

    name = "lookup"

    num_tokens: int = 10
    max_ngram: int = 3

    def rounds(self, session: Session) -> Iterator[Round]:
        def propose(session: Session) -> Draft:
            num_tokens = min(self.num_tokens, session.room)
            return Draft.chain(continuation(session.text, self.max_ngram, num_tokens))

        return serial(session, propose)

"""Speculative sampling, keyed: a chain from the draft model, one forward to verify it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from duodec.core.draft import Draft
from duodec.core.round import Round
from duodec.decoding.loops import serial
from duodec.decoding.method import Method
from duodec.decoding.session import Session
from duodec.drafting.plans import Chain


@dataclass(frozen=True)
class SpeculativeSampling(Method):
    """2211.17192 and 2302.01318, with keyed draws in place of the rejection rule."""

    name = "sps"
    needs_draft_model = True

    num_tokens: int = 4  # gamma

    def rounds(self, session: Session) -> Iterator[Round]:
        def propose(session: Session) -> Draft:
            return session.draft(Chain(min(self.num_tokens, session.room)))

        return serial(session, propose)

"""Speculative sampling as published: drafts drawn from q, accepted with min(1, p / q)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from duodec.core.draft import Draft
from duodec.core.round import Round
from duodec.core.verify import Dice, KeyedDice, Rule, rejection
from duodec.decoding.loops import serial
from duodec.decoding.method import Method
from duodec.decoding.session import Session
from duodec.drafting.plans import SampledChain


@dataclass(frozen=True)
class RejectionSampling(Method):
    """2211.17192 with laws: exact in law, exempt from "one seed, one text"."""

    name = "sps-rejection"
    needs_draft_model = True
    reads_off_path = True

    num_tokens: int = 4  # gamma
    dice: Dice | None = None  # None: keyed by the sampler

    def rounds(self, session: Session) -> Iterator[Round]:
        dice = self.dice or KeyedDice(session.sampler)

        def propose(session: Session) -> Draft:
            return session.draft(SampledChain(min(self.num_tokens, session.room)))

        def rule(session: Session) -> Rule:
            return rejection(dice, len(session.text))

        return serial(session, propose, rule)

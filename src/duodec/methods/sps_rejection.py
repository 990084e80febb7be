"""Decode with speculative sampling as published: drafts from q, accepted with min(1, p / q)."""

from __future__ import annotations

from dataclasses import dataclass

from duodec.core.drafters import Plan
from duodec.core.verify import Dice, KeyedDice, Rule, rejection
from duodec.drafting.plans import SampledChain
from duodec.methods.loops import serial
from duodec.methods.method import Method
from duodec.methods.request import Loop, Request


@dataclass(frozen=True)
class RejectionSampling(Method):
    """Draft as in 2211.17192. It is exact in distribution, and exempt from "one seed, one text"."""

    name = "sps-rejection"
    needs_draft_model = True
    reads_off_path = True

    num_tokens: int = 4  # gamma
    dice: Dice | None = None  # None: keyed by the sampler

    def decode(self, request: Request) -> Loop:
        dice = self.dice or KeyedDice(request.sampler)

        def propose(request: Request) -> Plan:
            return SampledChain(min(self.num_tokens, request.room))

        def rule(request: Request) -> Rule:
            return rejection(dice, len(request.text))

        return serial(request, propose, rule)

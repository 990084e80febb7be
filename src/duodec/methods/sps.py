"""Decode with keyed speculative sampling: a chain from the draft model, one pass to verify it."""

from __future__ import annotations

from dataclasses import dataclass

from duodec.core.drafters import Plan
from duodec.drafting.plans import Chain
from duodec.methods.loops import serial
from duodec.methods.method import Method
from duodec.methods.request import Loop, Request


@dataclass(frozen=True)
class SpeculativeSampling(Method):
    """Draft as in 2211.17192 and 2302.01318, with keyed draws in place of the rejection rule."""

    name = "sps"
    needs_draft_model = True

    num_tokens: int = 4  # gamma
    least: float = 0.0  # drafting stops after a token that the draft model finds less likely

    def decode(self, request: Request) -> Loop:
        def propose(request: Request) -> Plan:
            return Chain(min(self.num_tokens, request.room), self.least)

        return serial(request, propose)

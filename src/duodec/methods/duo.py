"""Decode with DuoDecoding: like PEARL, with several sequences where the draft is unsure."""

from __future__ import annotations

from dataclasses import dataclass

from duodec.drafting.plans import Sequences
from duodec.methods.loops import overlapped
from duodec.methods.method import Method
from duodec.methods.request import Loop, Request


@dataclass(frozen=True)
class DuoDecoding(Method):
    """Draft as in 2503.00784. The budget is the number of draft tokens that fit in one forward pass
    of the target. It is measured, unless it is given: the released scripts give 24 for Llama and 16
    for Vicuna."""

    name = "duo"
    needs_draft_model = True
    is_overlapped = True

    num_tokens: int | None = None  # the budget; None: measured

    def decode(self, request: Request) -> Loop:
        return overlapped(request, Sequences, self.num_tokens)

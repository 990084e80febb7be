"""Decode with PEARL: draft the next chain while the target verifies the last one."""

from __future__ import annotations

from dataclasses import dataclass

from duodec.drafting.plans import Chain
from duodec.methods.loops import overlapped
from duodec.methods.method import Method
from duodec.methods.request import Loop, Request


@dataclass(frozen=True)
class Pearl(Method):
    """Draft as in 2408.11850. Pre-verify judges the first token of a chain while the rest is
    drafted. Post-verify drafts the next chain while this one is judged.

    With the same budget it is DuoDecoding with one sequence.
    """

    name = "pearl"
    needs_draft_model = True
    is_overlapped = True

    num_tokens: int | None = None  # length of a chain; None: as many as fit in one forward pass

    def decode(self, request: Request) -> Loop:
        return overlapped(request, Chain, self.num_tokens)

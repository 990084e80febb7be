"""Decode with drafts from the target's own heads: what every such method shares."""

from __future__ import annotations

from dataclasses import dataclass

from duodec.core.draft import Draft
from duodec.core.sampling.sampler import Tokens
from duodec.core.targets import HeadPlan, Scores
from duodec.methods.loops import serial
from duodec.methods.method import Method
from duodec.methods.request import Loop, Request


@dataclass(frozen=True)
class HeadsMethod(Method):
    """Score in each forward pass what the heads proposed after the last one. A subclass names the
    kind of heads in ``needs_heads``, and its tree."""

    reads_off_path = True

    tree: HeadPlan

    def decode(self, request: Request) -> Loop:
        proposed = Draft()

        def learn(text: Tokens, draft: Draft, scores: Scores) -> None:
            nonlocal proposed
            found = scores.proposed().tree
            proposed = Draft(tuple(found.tokens), tuple(found.parents))

        return serial(request, lambda _: proposed, learn=learn, heads=self.tree)

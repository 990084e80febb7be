"""Decode with suffixes: drafts are what followed the last tokens in this text or earlier ones."""

from __future__ import annotations

from dataclasses import dataclass, field

from duodec.core.draft import Draft
from duodec.drafting.owners import ByOwner
from duodec.drafting.suffix import Suffixes
from duodec.methods.loops import serial
from duodec.methods.method import Method
from duodec.methods.request import Loop, Request

_MAX_DEPTH = 24


@dataclass(frozen=True)
class SuffixDecoding(Method):
    """Draft as in 2411.04975. There are two stores: this text, and earlier completions. The more
    promising of their two drafts is used. The settings are those of the release."""

    name = "suffix"
    learns = True

    factor: float = 1.0  # draft tokens per matched token
    min_share: float = 0.1
    earlier: ByOwner[Suffixes] = field(default_factory=lambda: Suffixes.by_owner(_MAX_DEPTH))

    def decode(self, request: Request) -> Loop:
        own, earlier = Suffixes(_MAX_DEPTH), self.earlier.of(request.owner)
        num_prompt = len(request.text)

        def propose(request: Request) -> Draft:
            own.extend(request.text[len(own) :].tolist())
            speculations = [
                store.speculate(request.text, self.factor, self.min_share)
                for store in (own, earlier)
            ]
            return max(speculations, key=lambda speculation: speculation.score).draft

        try:
            yield from serial(request, propose)
        finally:
            earlier.extend(request.text[num_prompt:].tolist())
            earlier.end()

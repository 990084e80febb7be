"""Decode with streaming tree drafts: the drafter never stops, and no useful draft is discarded."""

from __future__ import annotations

from dataclasses import dataclass, field

from duodec.drafting.growth import Tree
from duodec.methods.loops import streaming
from duodec.methods.method import Method
from duodec.methods.request import Loop, Request
from duodec.planning.acceptance import HOPED, Acceptance
from duodec.planning.governor import Governor, Sources
from duodec.planning.planner import Planner, Waits
from duodec.planning.sources import TextMemory, TextSources


class _Always(Governor):
    """Allows all sources, whether they pay or not."""

    def __init__(self) -> None:
        super().__init__([Sources.ALL])

    def sources(self, most: Sources = Sources.ALL) -> Sources:
        return most


@dataclass(frozen=True)
class Stream(Method):
    """Ours. Related: SwiftSpec (2506.11309), SSD (2603.03251) and SpecBranch (2506.01979); none of
    them drafts on a CPU."""

    name = "stream"
    needs_draft_model = True
    is_overlapped = True
    learns = True

    num_tokens: int = (
        Planner.num_tokens
    )  # draft tokens in a forward pass at most; the planner decides how many
    patience: float = (
        Planner.patience
    )  # how much faster than decoding a wait for drafts must yield tokens
    plan: Tree = field(default_factory=Tree)
    acceptance: Acceptance = field(default_factory=Acceptance)
    memory: TextMemory = field(default_factory=TextMemory)
    waits: Waits = field(default_factory=Waits)

    def decode(self, request: Request) -> Loop:
        planner = Planner(
            request.costs, self.acceptance, self.num_tokens, self.patience, waits=self.waits
        )
        if request.takes_turns:
            # a drafter that rests while the target computes has nothing to lose by being waited
            # for, and shows what it is worth only then
            planner.patience, planner.busy, planner.prior = 1.0, 0.0, HOPED
        texts = TextSources(
            self.memory, request.text, request.datastore, request.sampler, request.owner
        )
        try:
            yield from streaming(request, planner, self.plan, texts, self.governor(request))
        finally:
            texts.end(request.text)

    def governor(self, request: Request) -> Governor:
        """The governor that chooses the sources."""
        return _Always()

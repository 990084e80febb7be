"""The default: streaming tree drafting with whatever pays on this text, or nothing at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from duodec.core.round import Round
from duodec.decoding.free import FreeCandidates, FreeMemory
from duodec.decoding.loops import streaming
from duodec.decoding.method import Method
from duodec.decoding.session import NoDrafter, Session
from duodec.drafting.growth import Tree
from duodec.planning.acceptance import Acceptance
from duodec.planning.governor import Governor, Sources
from duodec.planning.planner import Planner


@dataclass(frozen=True)
class Auto(Method):
    """Ours: `stream`, governed by measured rates; it may end at `ar`."""

    name = "auto"
    uses_draft_model = True
    is_overlapped = True
    learns = True

    plan: Tree = field(default_factory=Tree)
    acceptance: Acceptance = field(default_factory=Acceptance)
    memory: FreeMemory = field(default_factory=FreeMemory)
    governors: dict[bool, Governor] = field(default_factory=dict)  # by whether there is a drafter

    def rounds(self, session: Session) -> Iterator[Round]:
        has_drafter = not isinstance(session.drafter, NoDrafter)
        if has_drafter not in self.governors:
            allowed = [Sources.FREE, Sources.ALL] if has_drafter else [Sources.FREE]
            self.governors[has_drafter] = Governor(allowed)
        planner = Planner(session.costs, self.acceptance)
        free = FreeCandidates(self.memory, session.text)
        try:
            yield from streaming(session, planner, self.plan, free, self.governors[has_drafter])
        finally:
            free.end(session.text)

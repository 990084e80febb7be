"""Decode by default: streaming tree drafting from the sources that pay on this text, if any."""

from __future__ import annotations

from dataclasses import dataclass, field

from duodec.methods.request import NoDrafter, Request
from duodec.methods.stream import Stream
from duodec.planning.governor import Governor, Sources

_HOPELESS = 0.5  # of plain decoding's rate: two rounds show it


@dataclass(frozen=True)
class Auto(Stream):
    """Ours: `stream`, governed by measured rates; it may fall back to `ar`."""

    name = "auto"
    needs_draft_model = False
    uses_draft_model = True

    governors: dict[tuple[bool, int], Governor] = field(default_factory=dict)
    """By whether there is a drafter, and by slot: concurrent requests are judged separately."""

    def governor(self, request: Request) -> Governor:
        has_drafter = not isinstance(request.drafter, NoDrafter)
        key = (has_drafter, request.slot)
        if key not in self.governors:
            allowed = [Sources.FREE, Sources.ALL] if has_drafter else [Sources.FREE]
            self.governors[key] = Governor(allowed, hopeless=_HOPELESS)
        return self.governors[key]

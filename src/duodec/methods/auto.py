"""Decode by default: streaming tree drafting from the sources that pay on this text, if any."""

from __future__ import annotations

from dataclasses import dataclass, field

from duodec.methods.request import NoDrafter, Request
from duodec.methods.stream import Stream
from duodec.planning.governor import Governor, Sources

_FIRST_PROBE = 8  # rounds of drafting before the first one of plain decoding
_FIRST_REST = 16  # rounds before a draft model is tried that takes the target's cores
_TRIAL = 24  # rounds, of which few may have had a draft
_HOPELESS = 0.6  # of plain decoding's rate: two rounds show it
_HOPELESS_IN_TURNS = 0.4  # where a draft that is refused has stopped the target
_MARGIN = 0.97  # of plain decoding's rate: what drafts nothing may take a moment longer
_ALLOWANCE = 1.0  # rounds of plain decoding that drafts may lose before they have gained any
_ALLOWANCE_IN_TURNS = 4.0  # where a draft model has to be tried against its cost
_PAUSE_PER_LOST = 24  # rounds: trials take 4% of the time, even where drafts cost several rounds


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
            allowed, probes = [Sources.FREE], [Sources.NONE]
            if request.traits.heads:
                allowed.append(Sources.HEADS)
                probes += [Sources.HEADS] * has_drafter  # which they may make superfluous
            allowed += [Sources.ALL] * has_drafter
            self.governors[key] = Governor(
                allowed,
                first_probe=_FIRST_PROBE,
                trial=_TRIAL,
                probes=probes,
                hopeless=_HOPELESS_IN_TURNS if request.takes_turns else _HOPELESS,
                margin=_MARGIN,
                pause_per_lost=_PAUSE_PER_LOST,
                first_rests={Sources.ALL: _FIRST_REST} if request.takes_turns else {},
                allowance=_ALLOWANCE_IN_TURNS if request.takes_turns else _ALLOWANCE,
            )
        return self.governors[key]

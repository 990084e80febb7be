"""Decode by default: streaming tree drafting from the sources that pay on this text, if any."""

from __future__ import annotations

from dataclasses import dataclass, field

from duodec.drafting import constants
from duodec.methods.request import NoDrafter, Request
from duodec.methods.stream import Stream
from duodec.planning.governor import Governor, Sources


@dataclass(frozen=True)
class Auto(Stream):
    """Run `stream`, governed by measured rates; it may fall back to `ar`. This method is ours."""

    name = "auto"
    needs_draft_model = False
    uses_draft_model = True

    governors: dict[tuple[bool, int], Governor] = field(default_factory=dict)
    """The governors by whether there is a drafter, and by slot: concurrent requests are judged
    separately."""

    def governor(self, request: Request) -> Governor:
        has_drafter = not isinstance(request.drafter, NoDrafter)
        key = (has_drafter, request.slot)
        if key not in self.governors:
            allowed, probes = [Sources.FREE], [Sources.NONE]
            if request.traits.heads:
                allowed.append(Sources.HEADS)
                # Heads may make the draft model superfluous.
                probes += [Sources.HEADS] * has_drafter
            allowed += [Sources.ALL] * has_drafter
            in_turns = request.takes_turns
            allowance = constants.ALLOWANCE_IN_TURNS if in_turns else constants.ALLOWANCE
            # On the target's device a step costs its own time, and the planner asks for few that
            # do not pay. A rest would measure earlier text alone, on a text that may suit it.
            rests = in_turns and request.shares_cores
            self.governors[key] = Governor(
                allowed,
                first_probe=constants.LOOK_AGAIN_AFTER,
                trial=constants.TRIAL_ROUNDS,
                probes=probes,
                hopeless=constants.HOPELESS_BELOW,
                margin=constants.MARGIN,
                pause_per_lost=constants.TRIAL_ROUNDS,
                first_rests={Sources.ALL: constants.REST_BEFORE_TRIAL} if rests else {},
                allowance=allowance,
            )
        return self.governors[key]

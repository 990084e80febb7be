"""Define the events of a generation: one `Started`, many `Delta`s, one `Finished`.

The command line, the server and the benchmark all consume them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from duodec.core.round import Stats

FinishReason = Literal["stop", "length", "context"]
"""The reason is stop (end token or stop string), length (``max_tokens``) or context (the context is
full). A text that ``should_stop`` of `LLM.stream` ended has the reason of its limit: length, or
context."""


@dataclass(frozen=True)
class Started:
    """Report that the request was accepted; nothing is computed yet."""

    method: str
    seed: int
    num_prompt_tokens: int

    @property
    def text(self) -> str:
        """Return no text yet: every event has a text."""
        return ""


DraftSource = Literal["draft model", "earlier text"]
"""What proposed a draft token: the draft model, even if other sources did too, or earlier text
alone. Earlier text is this text, completions before it, rows that the target has scored, and a
datastore."""


@dataclass(frozen=True)
class Segment:
    """Hold text whose last token was drafted and accepted, or was the target's own."""

    text: str
    source: DraftSource | None  # None: the token is the target's own

    @property
    def is_drafted(self) -> bool:
        return self.source is not None


@dataclass(frozen=True)
class Delta:
    """Carry new text. It never splits a character or contains a part of a stop string."""

    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        return "".join(segment.text for segment in self.segments)


@dataclass(frozen=True)
class Finished:
    """Hold the whole completion. ``tokens`` holds the end token, if one was drawn; ``text`` does
    not. ``finish_reason`` is as in `Completion`; for ``should_stop`` see `LLM.stream`."""

    text: str
    tokens: tuple[int, ...] = field(repr=False)
    finish_reason: FinishReason
    stats: Stats


Event = Started | Delta | Finished

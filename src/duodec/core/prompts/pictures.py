"""Define how pictures stand in a prompt: as runs of negative tokens, which no vocabulary has.

A run's tokens are drawn from a hash of the picture's content, so that two texts share a prefix
exactly where they share the pictures in it. Only the target knows what a run shows; whatever drafts
is shown a blank in its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np

from duodec.core.sampling.sampler import Tokens
from duodec.core.special_tokens import Spelled

NUM_CHANNELS = 3  # red, green, blue


@dataclass(frozen=True)
class Picture:
    """A decoded picture: rows from the top, 3 bytes a pixel."""

    width: int
    height: int
    pixels: bytes = field(repr=False)

    def __post_init__(self) -> None:
        assert len(self.pixels) == NUM_CHANNELS * self.width * self.height

    @cached_property
    def digest(self) -> bytes:
        """Names its content: 32 bytes."""
        size = b"%d %d " % (self.width, self.height)
        return hashlib.sha256(size + self.pixels).digest()


class Shown(Protocol):
    """A part of a picture as one target sees it."""

    @property
    def tokens(self) -> Tokens:
        """The negative tokens that stand for it."""


class PromptTokens(list[int]):
    """Tokens of a prompt, and what its negative ones show, in order."""

    def __init__(self, tokens: Iterable[int], shown: Sequence[Shown] = ()) -> None:
        super().__init__(tokens)
        self.shown = tuple(shown)


TextPart = tuple[str, Sequence[Spelled] | None]
"""A text, and where its control tokens are; None: wherever it spells one."""


class Sight(Protocol):
    """What turns texts with pictures into tokens of one model."""

    @property
    def blank(self) -> int:
        """The token that drafts are shown in place of each of a picture's."""

    @property
    def uses_mrope(self) -> bool:
        """Positions behind a picture are fewer than its tokens."""

    def tokenize(self, parts: Iterable[TextPart | Picture]) -> PromptTokens:
        """Tokens of a templated text with pictures, each of which is used when it comes. Raises
        BadOption and PicturesFull."""

    def close(self) -> None:
        """Free it; before its model. Can be called twice."""


def sight_of(tokenizer: object) -> Sight | None:
    """What a tokenizer's model sees pictures with; None: it reads text only."""
    sight: Sight | None = getattr(tokenizer, "sight", None)
    return sight


def shown_in(tokens: Sequence[int]) -> tuple[Shown, ...]:
    """What the negative tokens of a prompt show."""
    return tokens.shown if isinstance(tokens, PromptTokens) else ()


def run_tokens(digest: bytes, length: int) -> Tokens:
    """So many negative tokens, drawn from a digest: the first eight hold 248 bits of it."""
    drawn = np.frombuffer(hashlib.shake_128(digest).digest(4 * length), dtype=np.uint32)
    return (-1 - (drawn >> 1).astype(np.int64)).astype(np.int32)


def blanked(text: Tokens, blank: int) -> Tokens:
    """A text with this token in place of every negative one."""
    return np.where(text < 0, np.int32(blank), text).astype(np.int32)

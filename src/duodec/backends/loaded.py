"""Define a loaded target, whichever library computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from duodec.backends.llamacpp.footprint import Footprint
from duodec.backends.placement import Placement
from duodec.backends.translation.recipe import VocabularyRecipe
from duodec.core.protocols import Target, Tokenizer
from duodec.core.traits import Widths
from duodec.errors import ContextExceeded
from duodec.machine.core_plan import CorePlan


class OpenVocabulary(Tokenizer, Protocol):
    """A vocabulary that is freed when it is closed."""

    def by_value(self) -> VocabularyRecipe: ...
    def close(self) -> None: ...


class TargetModel(Tokenizer, Protocol):
    """A model's vocabulary and its facts; the chat template is its own unless another is set."""

    chat_template: str | None

    @property
    def name(self) -> str: ...
    @property
    def architecture(self) -> str: ...
    @property
    def license(self) -> str | None: ...
    @property
    def num_params(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def is_read(self) -> bool:
        """Whether its weights are in memory; otherwise they are read from the disk as they are
        used."""

    @property
    def num_context_train(self) -> int: ...
    @property
    def cache_bytes_per_token(self) -> int: ...
    def by_value(self) -> VocabularyRecipe:
        """Its vocabulary, for another process to load."""

    def close(self) -> None: ...


class RunningTarget(Target, Protocol):
    """A target with its cache."""

    def use_threads(self, num_threads: int) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class LoadedTarget:
    """A loaded model; `start` makes the target that computes it, for texts of so many tokens, and
    raises ModelUnreadable if memory is too short."""

    model: TargetModel
    placement: Placement
    num_context: int  # most tokens of a text: as configured, or as many as memory holds
    start: Callable[[int, CorePlan], RunningTarget]
    place: str  # for people: its backend, device and number format
    free_bytes: Callable[[], int] | None = None  # of its own device's memory, if known
    widths: Widths = field(default_factory=Widths)  # rows of a forward pass that continues a text
    pass_s: Mapping[int, float] = field(default_factory=dict)
    """Seconds of a forward pass by its rows, as far as loading measured them."""
    footprint: Footprint | None = None  # if it was estimated before loading

    @property
    def is_on_cpu(self) -> bool:
        """Whether it computes on cores that a drafter would use, if only in part."""
        return self.placement.uses_cores


def checked_context(num_context: int, trained: int) -> int:
    """Raises ContextExceeded for more than the model was trained for."""
    if num_context > trained:
        raise ContextExceeded(
            f"context is {num_context} and the model was trained for {trained} tokens; "
            f"use {trained} or less"
        )
    return num_context

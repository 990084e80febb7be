"""Pass on a drafter's calls of a model, apart from its rows."""

from __future__ import annotations

from collections.abc import Callable

from duodec.core.drafters import DraftModel
from duodec.core.traits import DraftTraits


class Wrapped(DraftModel):
    """Wrap another draft model, and share its traits."""

    def __init__(self, model: DraftModel) -> None:
        self.model = model

    @property
    def traits(self) -> DraftTraits:
        return self.model.traits

    def widen(self, slot: int, *, is_idle: bool) -> bool:
        return self.model.widen(slot, is_idle=is_idle)

    def forget(self, slot: int) -> None:
        self.model.forget(slot)

    def compute_alone(self, is_alone: bool) -> None:
        self.model.compute_alone(is_alone)

    @property
    def num_computed(self) -> int:
        return self.model.num_computed

    @property
    def on_chunk(self) -> Callable[[], None]:
        return self.model.on_chunk

    @on_chunk.setter
    def on_chunk(self, hook: Callable[[], None]) -> None:
        self.model.on_chunk = hook

    @property
    def clock(self) -> Callable[[], float]:
        return self.model.clock

    @clock.setter
    def clock(self, clock: Callable[[], float]) -> None:
        self.model.clock = clock

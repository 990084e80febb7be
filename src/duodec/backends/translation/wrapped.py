"""Pass on what a drafter asks of a model beside its rows."""

from __future__ import annotations

from collections.abc import Callable

from duodec.core.protocols import DraftModel, has_branches


class Wrapped:
    """A draft model that has one of its own. What that one lacks is lacking here: a clock, a count
    of the tokens computed, a hook between the chunks of a text."""

    def __init__(self, model: DraftModel) -> None:
        self.model = model

    def widen(self, slot: int, *, is_idle: bool) -> bool:
        """Read a little older text, where the model does."""
        widen = getattr(self.model, "widen", None)
        return widen is not None and bool(widen(slot, is_idle=is_idle))

    @property
    def has_branches(self) -> bool:
        """Whether it computes several paths at once."""
        return has_branches(self.model)

    @property
    def num_computed(self) -> int:
        """Tokens computed so far, by all forward passes."""
        return int(getattr(self.model, "num_computed"))  # noqa: B009  not of every model

    @property
    def on_chunk(self) -> Callable[[], None]:
        """Called between the chunks of a long text; may raise to abandon it."""
        hook: Callable[[], None] = getattr(self.model, "on_chunk")  # noqa: B009  not of every model
        return hook

    @on_chunk.setter
    def on_chunk(self, hook: Callable[[], None]) -> None:
        setattr(self.model, "on_chunk", hook)  # noqa: B010

    @property
    def clock(self) -> Callable[[], float]:
        """The seconds by which the model measures itself."""
        clock: Callable[[], float] = getattr(self.model, "clock")  # noqa: B009
        return clock

    @clock.setter
    def clock(self, clock: Callable[[], float]) -> None:
        setattr(self.model, "clock", clock)  # noqa: B010

"""Keep what the target knows by slot: which text it has cached, and what computes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from duodec.core.prefix import common_prefix
from duodec.core.protocols import Target
from duodec.core.sampling import Tokens

_NOTHING: Tokens = np.empty(0, dtype=np.int32)


@dataclass(frozen=True)
class Targets:
    """What computes a request.

    ``shared`` computes it together with others, in one forward pass; ``alone`` while there are
    none, in the first slot (others would each need a cache of their own); ``trees`` computes for
    methods that read rows off the path, where ``shared`` leaves out branches.
    """

    shared: Target
    alone: Target | None = None
    trees: Target | None = None

    def number(self, target: Target) -> int:
        """Which of them it is; 0 computes a request alone."""
        first = self.alone or self.shared
        known = (first, self.shared, self.trees)
        return next(number for number, own in enumerate(known) if own is target)

    def of(self, slot: int, *, reads_off_path: bool, is_alone: bool) -> Target:
        if reads_off_path:
            return self.trees or self.shared
        return (self.alone or self.shared) if is_alone and slot == 0 else self.shared


class Slot:
    """A place at the target. What one target has cached another one has not."""

    def __init__(self, number: int, target: Target) -> None:
        self.number = number
        self.target = target
        self._known: dict[int, Tokens] = {}  # by target, the text that it has cached

    @property
    def known(self) -> Tokens:
        """The text that its target has cached."""
        return self._known.get(id(self.target), _NOTHING)

    @known.setter
    def known(self, text: Tokens) -> None:
        self._known[id(self.target)] = text

    def use(self, target: Target) -> None:
        """Compute what follows with this one."""
        self.target = target

    def forget(self) -> None:
        """What its target holds is not known any more."""
        self._known.pop(id(self.target), None)

    def num_known(self, text: Tokens) -> int:
        """Tokens of a text that are cached."""
        return common_prefix(self.known, text)


def best_slot(idle: Iterable[Slot], text: Tokens) -> Slot:
    """The slot that knows most of a prompt; where none knows half of it, the first: it has learned
    most, and neighbours at the target share its forward passes."""
    slots = sorted(idle, key=lambda slot: slot.number)
    best = max(slots, key=lambda slot: slot.num_known(text))
    return best if 2 * best.num_known(text) >= len(text) else slots[0]

"""Keep what the target knows by slot: which text it read there last, and what computes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from duodec.core.prefix import common_prefix
from duodec.core.protocols import Target
from duodec.core.sampling import Tokens

_NOTHING: Tokens = np.empty(0, dtype=np.int32)


@dataclass(frozen=True)
class Targets:
    """What computes a request.

    ``shared`` computes it beside others, in one forward pass with them; ``alone`` while there are
    none, in the first slot (others would each need a cache of their own); ``trees`` computes for
    methods that read rows off the path, where ``shared`` leaves out branches.
    """

    shared: Target
    alone: Target | None = None
    trees: Target | None = None

    def of(self, slot: int, *, reads_off_path: bool, is_alone: bool) -> Target:
        if reads_off_path:
            return self.trees or self.shared
        return (self.alone or self.shared) if is_alone and slot == 0 else self.shared


@dataclass(eq=False)
class Slot:
    """A place at the target. What one target has read there is unknown to another one."""

    number: int
    target: Target
    known: Tokens = field(default_factory=lambda: _NOTHING)  # the text that was read last

    def use(self, target: Target) -> None:
        if target is not self.target:
            self.target = target
            self.known = _NOTHING

    def forget(self) -> None:
        self.known = _NOTHING

    def num_known(self, text: Tokens) -> int:
        """Tokens of a text that were read already."""
        return common_prefix(self.known, text)


def best_slot(idle: Iterable[Slot], text: Tokens) -> Slot:
    """The slot that knows most of a prompt; where none knows half of it, the first: it has learned
    most, and neighbours at the target share its forward passes."""
    slots = sorted(idle, key=lambda slot: slot.number)
    best = max(slots, key=lambda slot: slot.num_known(text))
    return best if 2 * best.num_known(text) >= len(text) else slots[0]

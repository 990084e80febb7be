"""Keep what the target knows by slot: which text it has cached."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from duodec.core.prefix import common_prefix
from duodec.core.sampling import Tokens
from duodec.core.traits import TargetCache

_NOTHING: Tokens = np.empty(0, dtype=np.int32)


class Slot:
    """A place at the target, and what its caches hold there."""

    def __init__(self, number: int, cache: TargetCache) -> None:
        self.number = number
        self.cache = cache  # that computes what follows
        self._known: dict[int, Tokens] = {}  # by cache

    @property
    def known(self) -> Tokens:
        """The text that its cache holds."""
        return self._known.get(self.cache.number, _NOTHING)

    @known.setter
    def known(self, text: Tokens) -> None:
        self._known[self.cache.number] = text

    def forget(self) -> None:
        """What its cache holds is not known any more."""
        self._known.pop(self.cache.number, None)

    def num_known(self, text: Tokens) -> int:
        """Tokens of a text that are cached."""
        return common_prefix(self.known, text)


def best_slot(idle: Iterable[Slot], text: Tokens) -> Slot:
    """The slot that knows most of a prompt; where none knows half of it, the first: it has learned
    most, and neighbours at the target share its forward passes."""
    slots = sorted(idle, key=lambda slot: slot.number)
    best = max(slots, key=lambda slot: slot.num_known(text))
    return best if 2 * best.num_known(text) >= len(text) else slots[0]

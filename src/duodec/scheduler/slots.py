"""Keep what the target knows by slot: which text it has cached."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from duodec.core.prefix import common_prefix
from duodec.core.sampling.sampler import Tokens
from duodec.core.traits import TargetCache

_NOTHING: Tokens = np.zeros(0, dtype=np.int32)
_MUCH_LONGER = 4  # a cached text must be this many times as long as a prompt to be kept


class Slot:
    """Hold a place at the target, and what its caches hold there."""

    def __init__(self, number: int, cache: TargetCache) -> None:
        self.number = number
        self.cache = cache  # cache that computes what follows
        self.owner = ""  # owner of the texts that it holds
        self._known: dict[int, Tokens] = {}  # by cache

    @property
    def num_cached(self) -> int:
        """Return the length of the longest text that its caches hold."""
        return max(map(len, self._known.values()), default=0)

    def know(self, text: Tokens) -> None:
        """Record that its cache has computed a text."""
        self._known[self.cache.number] = text

    def forget(self) -> None:
        """Record that the content of its cache is unknown."""
        self._known.pop(self.cache.number, None)

    @property
    def known(self) -> Tokens:
        """Return the text that its cache holds."""
        return self._known.get(self.cache.number, _NOTHING)

    def num_in_cache(self, text: Tokens) -> int:
        """Return how many tokens of a text its cache holds."""
        return common_prefix(self.known, text)

    def belong_to(self, owner: str) -> None:
        """Forget texts of another owner."""
        self._known.clear()
        self.owner = owner

    def num_known(self, text: Tokens) -> int:
        """Return how many tokens of a text one of its caches holds."""
        return max((common_prefix(known, text) for known in self._known.values()), default=0)


def best_slot(idle: Iterable[Slot], text: Tokens, owner: str = "") -> Slot:
    """Return the slot that knows most of a prompt, among those of its owner and empty ones; others
    know nothing of it. Where none knows half of it, return the first: it has learned most, and its
    neighbours at the target share its forward passes. But a short prompt does not evict a long
    conversation there; it takes the slot that knows least."""
    slots = sorted(idle, key=lambda slot: slot.number)
    own = [slot for slot in slots if slot.owner == owner or not slot.num_cached]
    best = max(own, key=lambda slot: slot.num_known(text), default=None)
    if best is not None and 2 * best.num_known(text) >= len(text):
        return best
    slots = own or slots
    if slots[0].num_cached <= _MUCH_LONGER * len(text):
        return slots[0]
    return min(slots, key=lambda slot: slot.num_cached)

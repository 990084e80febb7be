"""Keep what is learned from texts separate by owner, within one bound for all owners."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from duodec.drafting import constants

_T = TypeVar("_T")


class ByOwner(Generic[_T]):
    """Keep a store for each owner of texts. No owner gets drafts from another owner's texts.

    Owners are strings. The part before a colon names a holder, and all owners of a holder have one
    share. Where the stores exceed their bound, the holder with the most loses its least recently
    used store. So a holder with many names cannot make others lose their stores.
    """

    def __init__(self, make: Callable[[], _T], size: Callable[[_T], int], most: int) -> None:
        """``size`` returns how much a store holds. All stores together hold at most ``most``, apart
        from what is added to those in use."""
        self._make, self._size, self._most = make, size, most
        self._stores: OrderedDict[str, _T] = OrderedDict()  # the last used last

    def __len__(self) -> int:
        return len(self._stores)

    @property
    def num_held(self) -> int:
        """Return how much all stores hold."""
        return sum(map(self._size, self._stores.values()))

    def of(self, owner: str) -> _T:
        """Return this owner's store, and make one if there is none."""
        if owner not in self._stores:
            self._stores[owner] = self._make()
        self._stores.move_to_end(owner)
        self._trim()
        return self._stores[owner]

    def _trim(self) -> None:
        while len(self._stores) > 1:
            shares: Counter[str] = Counter()
            for owner, store in self._stores.items():
                shares[_holder(owner)] += max(constants.MIN_STORE, self._size(store))
            if shares.total() <= self._most:
                return
            ((largest, _),) = shares.most_common(1)
            oldest = next(owner for owner in self._stores if _holder(owner) == largest)
            if oldest == next(reversed(self._stores)):  # it is in use, and becomes empty
                self._stores[oldest] = self._make()
            else:
                del self._stores[oldest]


def _holder(owner: str) -> str:
    return owner.partition(":")[0]

"""Keep what is learned of texts apart by their owners, within one bound for all of them."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from duodec.drafting import constants

_T = TypeVar("_T")


class ByOwner(Generic[_T]):
    """A store for each owner of texts. Nobody is drafted for from another owner's.

    Owners are texts. What stands before a colon names whose they are, all of whom have one share:
    where the stores exceed their bound, the one with the most loses the store of its own that was
    not used for the longest, so that nobody makes others lose theirs by calling itself many names.
    """

    def __init__(self, make: Callable[[], _T], size: Callable[[_T], int], most: int) -> None:
        """``size`` tells how much a store holds, ``most`` how much all of them hold together, but
        for what is added to those in use."""
        self._make, self._size, self._most = make, size, most
        self._stores: OrderedDict[str, _T] = OrderedDict()  # the last used last

    def __len__(self) -> int:
        return len(self._stores)

    @property
    def num_held(self) -> int:
        """How much all of them hold."""
        return sum(map(self._size, self._stores.values()))

    def of(self, owner: str) -> _T:
        """This owner's store, which is new where there is none."""
        if owner not in self._stores:
            self._stores[owner] = self._make()
        self._stores.move_to_end(owner)
        self._trim()
        return self._stores[owner]

    def _trim(self) -> None:
        while len(self._stores) > 1:
            shares: Counter[str] = Counter()
            for owner, store in self._stores.items():
                shares[_holder(owner)] += max(constants.LEAST_STORE, self._size(store))
            if shares.total() <= self._most:
                return
            ((largest, _),) = shares.most_common(1)
            oldest = next(owner for owner in self._stores if _holder(owner) == largest)
            if oldest == next(reversed(self._stores)):  # in use: it goes on with an empty one
                self._stores[oldest] = self._make()
            else:
                del self._stores[oldest]


def _holder(owner: str) -> str:
    return owner.partition(":")[0]

"""Decide which models may make space for others that requests wait for.

To exchange two models costs both their loading times, in which nobody is served. So a model that is
in use stays for several times as long as it took to load. One that takes the place of a model in
use is a guest: it serves what has waited for it, and gives the place back as soon as somebody
waits for the other. Otherwise one client that asks for another model again and again would have
everybody else wait for loading most of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

_STAYS = 20.0  # loading times: then exchanges take a tenth of the time at most
_PAUSE = 0.25  # of a loading time between two requests of a model that is in use


class Used(Protocol):
    """A model in memory."""

    name: str
    used_s: float  # when its last request ended

    @property
    def is_busy(self) -> bool: ...


@dataclass(frozen=True)
class _Stay:
    since_s: float
    loading_s: float
    is_guest: bool


class Residence:
    """Of the models of one server. ``most_s`` is the longest that a model stays for others' sake:
    as long may a request for another one wait until its model begins to be loaded."""

    def __init__(self, most_s: float, clock: Callable[[], float]) -> None:
        self._most_s, self._clock = most_s, clock
        self._stays: dict[str, _Stay] = {}
        self._displaced: set[str] = set()  # models that were in use when they made space

    def begin(self, name: str, loading_s: float) -> None:
        """A model is there, whose loading took so long."""
        is_guest = bool(self._displaced) and name not in self._displaced
        self._displaced.discard(name)
        self._stays[name] = _Stay(self._clock(), loading_s, is_guest)

    def stays(self, model: Used) -> bool:
        """Whether requests for others wait for it to stay a while."""
        stay = self._stays[model.name]
        return self._is_young(stay) and not stay.is_guest and self._is_in_use(model, stay)

    def is_guest(self, model: Used) -> bool:
        """Whether it is in the place of another that was in use. One that nobody has sent away for
        as long as a model may stay is at home."""
        stay = self._stays[model.name]
        return stay.is_guest and self._is_young(stay)

    def end(self, model: Used, *, is_awaited: bool) -> None:
        """A model has made space; others may wait for it already."""
        if not self.is_guest(model):
            if is_awaited or self._is_in_use(model, self._stays[model.name]):
                self._displaced.add(model.name)
            else:
                self._displaced.clear()
        del self._stays[model.name]

    def _is_young(self, stay: _Stay) -> bool:
        return self._clock() - stay.since_s < min(_STAYS * stay.loading_s, self._most_s)

    def _is_in_use(self, model: Used, stay: _Stay) -> bool:
        return model.is_busy or self._clock() - model.used_s < _PAUSE * stay.loading_s

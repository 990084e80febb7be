"""Prepare what follows a forward pass shortly before the pass ends.

Drafts for the likeliest verdicts are made, what the drafter has sent is received, and the code
between two forward passes runs once, so that it is in the processor's caches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import sleep

from duodec.methods.request import Request

_FIRST_REHEARSAL_S, _FIRST_WARM_UP_S = 0.001, 0.0002  # expected before the first one
_COLD_AFTER_S = 0.003  # after a shorter forward pass the code is still warm
_MARGIN = 1.5  # factor on the longest usual time
# Remembered times; the longest are dropped, when something else had the core.
_REMEMBERED, _OUTLIERS = 16, 2


class _Lead:
    """Estimate how long before a moment some work must begin, to be done by then."""

    def __init__(self, first_s: float) -> None:
        self._seconds = deque([first_s], maxlen=_REMEMBERED)

    @property
    def longest_s(self) -> float:
        """Return the longest recent time, outliers left out."""
        ascending = sorted(self._seconds)
        return ascending[max(0, len(ascending) - 1 - _OUTLIERS)]

    def wait(self, end_s: float, clock: Callable[[], float]) -> float:
        """Wait until the work must begin to be done at ``end_s``; return that time."""
        begin_s = max(clock(), end_s - _MARGIN * self.longest_s)
        if (left_s := begin_s - clock()) > 0:
            sleep(left_s)
        return begin_s

    def observe(self, seconds: float) -> None:
        self._seconds.append(seconds)


@dataclass
class Rehearsal:
    """Rehearse for one scheduler; ``warm_up`` runs the code between two forward passes."""

    warm_up: Callable[[], None]
    clock: Callable[[], float]
    _offers: _Lead = field(default_factory=lambda: _Lead(_FIRST_REHEARSAL_S))
    _warming: _Lead = field(default_factory=lambda: _Lead(_FIRST_WARM_UP_S))

    def before_end(self, request: Request, start_s: float, num_drafted: int) -> None:
        """Wait until just before the earliest end of a forward pass over ``num_drafted`` draft
        tokens, and rehearse. Raises what the request's method raises."""
        soonest_s = request.costs.soonest_s(num_drafted)
        end_s = start_s + soonest_s
        if request.rehearse is not None:
            begin_s = self._offers.wait(end_s, self.clock)
            request.rehearse(end_s)
            self._offers.observe(self.clock() - begin_s)
        if soonest_s > _COLD_AFTER_S:
            begin_s = self._warming.wait(end_s, self.clock)
            request.poll_drafter()
            self.warm_up()
            self._warming.observe(self.clock() - begin_s)

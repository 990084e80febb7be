"""Measure how late the event loop is: what it does not get to, no client does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

from duodec.server.logs import log

_EVERY_S = 0.1
_WINDOW_S = 60.0  # over which the longest delay is told
_WARN_S = 1.0


class Watchdog:
    """Sleeps, and looks how much later than asked for it wakes. ``observe`` is told each time."""

    def __init__(
        self, observe: Callable[[float], None], clock: Callable[[], float] = perf_counter
    ) -> None:
        self._observe = observe
        self._clock = clock
        self._peaks: deque[tuple[float, float]] = deque()  # (when, delay), ever smaller delays

    @property
    def longest_s(self) -> float:
        """The longest delay of the last minute."""
        self._forget(self._clock())
        return self._peaks[0][1] if self._peaks else 0.0

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            begin_s = self._clock()
            await asyncio.sleep(_EVERY_S)
            self.note(max(0.0, self._clock() - begin_s - _EVERY_S))

    def note(self, delay_s: float) -> None:
        """One delay."""
        now_s = self._clock()
        self._forget(now_s)
        while self._peaks and self._peaks[-1][1] <= delay_s:
            self._peaks.pop()
        self._peaks.append((now_s, delay_s))
        self._observe(delay_s)
        if delay_s > _WARN_S:
            log.warning("the event loop was held up", extra={"facts": {"seconds": delay_s}})

    def _forget(self, now_s: float) -> None:
        while self._peaks and self._peaks[0][0] < now_s - _WINDOW_S:
            self._peaks.popleft()

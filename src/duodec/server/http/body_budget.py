"""Bound the bytes of all bodies that are received or prepared at once.

Small bodies are not counted: as many as there are connections fit into memory. Of larger ones, the
one that has been received for longest makes room for others, so that clients who send slowly, or
never end, keep nobody out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from duodec.server.errors import ApiError, busy

SMALL_BYTES = 64 << 10
_NUM_LARGEST = 16  # bodies of the size that a server takes
_SLOW_RATE = 16e6  # bytes a second that are read of all of them together where there are many


class BodyBudget:
    """The bodies of a server that takes bodies of up to ``max_body_bytes``."""

    def __init__(self, max_body_bytes: int) -> None:
        self.most_bytes = _NUM_LARGEST * max_body_bytes
        self.num_bytes = 0
        self._receiving: dict[HeldBody, None] = {}  # the longest first
        self._next_s = 0.0  # when more is read, where there are many

    @contextmanager
    def hold(self) -> Iterator[HeldBody]:
        """A body, from its first byte until its request is prepared."""
        body = HeldBody(self)
        try:
            yield body
        finally:
            self._receiving.pop(body, None)
            self.num_bytes -= body.num_bytes

    def grow(self, body: HeldBody, num_bytes: int) -> None:
        """It has so many bytes by now. Raises ApiError where it has to make room itself."""
        self._receiving.setdefault(body)
        self.num_bytes += num_bytes - body.num_bytes
        body.num_bytes = num_bytes
        while self.num_bytes > self.most_bytes:
            longest = next(iter(self._receiving))
            del self._receiving[longest]
            self.num_bytes -= longest.num_bytes
            longest.num_bytes = 0
            if longest is body:
                raise _too_much()
            longest.is_over.set_result(None)

    def pause_s(self, num_bytes: int) -> float:
        """How long whoever has sent so many bytes waits before more is read. Where half of the
        memory is taken, most of them are refused in the end, and the event loop has other work."""
        now_s = perf_counter()
        if self.num_bytes < self.most_bytes // 2:
            return 0.0
        self._next_s = max(now_s, self._next_s) + num_bytes / _SLOW_RATE
        return self._next_s - now_s

    def add(self, num_bytes: int) -> None:
        """What is stored belongs to a request, too. Raises ApiError where it does not fit."""
        if self.num_bytes + num_bytes > self.most_bytes:
            raise busy(1, "too many long conversations are being prepared; ask again in a moment")
        self.num_bytes += num_bytes

    def remove(self, num_bytes: int) -> None:
        """That was prepared."""
        self.num_bytes -= num_bytes

    def end(self, body: HeldBody) -> None:
        """It is complete."""
        self._receiving.pop(body, None)


class HeldBody:
    """A body as it grows."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.num_bytes = 0  # that count
        self.is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def grow(self, num_bytes: int) -> None:
        """It has so many bytes by now. Raises ApiError where they do not fit."""
        if num_bytes > SMALL_BYTES:
            num_new = num_bytes - self.num_bytes
            self._budget.grow(self, num_bytes)
            if pause_s := self._budget.pause_s(num_new):
                await asyncio.sleep(pause_s)

    async def received(self, reading: asyncio.Future[bytes], most_s: float) -> bytes:
        """What ``reading`` returns. Raises ApiError where this body made room for others, and
        TimeoutError."""
        try:
            either: set[asyncio.Future[Any]] = {reading, self.is_over}
            await asyncio.wait(either, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                self._budget.end(self)
                return reading.result()
            raise _too_much() if self.is_over.done() else asyncio.TimeoutError
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


def _too_much() -> ApiError:
    error = busy(1, "more large requests are being received than there is room for; ask again")
    error.headers["Connection"] = "close"  # the rest of it is not read: no request can follow
    return error

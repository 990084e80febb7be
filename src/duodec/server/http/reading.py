"""Take turns in parsing what connections have sent.

One read may hold thousands of requests, or a body in tens of thousands of parts, and hundreds of
connections may be read at once. Here a slice of one connection's bytes is parsed, then one of the
next, and after a short time the event loop goes on with everything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from time import perf_counter
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl

_TURN_S = 0.001  # of parsing, before the loop goes on
_MOST_BEGUN = 4  # requests that begin in a turn: short ones are answered before the next


class Reader(Protocol):
    """Who has bytes to parse."""

    def read_on(self) -> int:
        """Parse a slice, or begin a request that was parsed: how many requests have begun."""

    @property
    def can_read_on(self) -> bool:
        """There is more, and nothing it must wait for."""


class ReadingTurns:
    """Readers in the order in which they have their turns."""

    def __init__(self) -> None:
        self._waiting: dict[Reader, None] = {}
        self._is_due = False
        self._context = copy_context()  # not that of the request which happens to be in work

    def add(self, reader: Reader) -> None:
        """It has something to read on, or may go on."""
        if reader.can_read_on:
            self._waiting[reader] = None
            self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run, context=self._context)

    def _run(self) -> None:
        end_s, num_begun = perf_counter() + _TURN_S, 0
        self._is_due = False
        while self._waiting and num_begun < _MOST_BEGUN and perf_counter() < end_s:
            reader = next(iter(self._waiting))
            del self._waiting[reader]
            num_begun += reader.read_on()
            self.add(reader)
        self._schedule()


class Flow(FlowControl):
    """uvicorn's, which stops and continues our parsing; whether the transport is read follows from
    what is not parsed yet."""

    def __init__(self, transport: asyncio.Transport, on_change: Callable[[], None]) -> None:
        super().__init__(transport)
        self._on_change = on_change

    def pause_reading(self) -> None:
        self.read_paused = True

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._on_change()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._on_change()

    def resume_writing(self) -> None:
        if self.write_paused:
            super().resume_writing()
            self._on_change()

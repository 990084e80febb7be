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
AHEAD_S = 0.005  # between two requests of pipelines, of all together


class Reader(Protocol):
    """Who has bytes to parse."""

    def read_on(self) -> int:
        """Parse a slice, or begin a request that was parsed: how many requests have begun."""

    @property
    def can_read_on(self) -> bool:
        """There is more, and nothing it must wait for."""

    @property
    def is_ahead(self) -> bool:
        """Its client sent a request before it had the response to the last one."""


class ReadingTurns:
    """Readers in the order in which they have their turns. Pipelines come after all others, and
    their requests begin with pauses: they would never leave the event loop idle."""

    def __init__(self) -> None:
        self._waiting: dict[Reader, None] = {}
        self._ahead: dict[Reader, None] = {}
        self._ahead_from_s = 0.0  # when the next request of a pipeline may begin
        self._due: asyncio.Handle | None = None
        self._context = copy_context()  # not that of the request which happens to be in work

    def add(self, reader: Reader) -> None:
        """It has something to read on, or may go on."""
        if reader.can_read_on:
            self._waiting.pop(reader, None)
            self._ahead.pop(reader, None)
            (self._ahead if reader.is_ahead else self._waiting)[reader] = None
            self._schedule()

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        if self._waiting and (self._due is None or isinstance(self._due, asyncio.TimerHandle)):
            if self._due is not None:
                self._due.cancel()
            self._due = loop.call_soon(self._run, context=self._context)
        elif self._ahead and self._due is None:
            rest_s = max(0.0, self._ahead_from_s - perf_counter())
            self._due = loop.call_later(rest_s, self._run, context=self._context)

    def _run(self) -> None:
        end_s, num_begun = perf_counter() + _TURN_S, 0
        self._due = None
        while num_begun < _MOST_BEGUN and perf_counter() < end_s:
            is_resting = perf_counter() < self._ahead_from_s
            readers = self._waiting or (self._ahead if not is_resting else None)
            if not readers:
                break
            reader = next(iter(readers))
            del readers[reader]
            was_ahead, num = reader.is_ahead, reader.read_on()
            if was_ahead and num:
                self._ahead_from_s = perf_counter() + AHEAD_S
            num_begun += num
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

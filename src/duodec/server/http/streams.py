"""Answers to clients: whole, or as server-sent events; and the moment when a client leaves.

A ping is a comment of one line, since some clients take an empty line for an event, and no event
is ever empty or named.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Sequence
from math import inf
from time import perf_counter
from typing import Any, Protocol, TypeVar

from starlette.types import Receive, Scope, Send

from duodec.scheduler.outputs import Done, Piece
from duodec.server.errors import api_error
from duodec.server.logs import log, note
from duodec.server.models.feed import Feed

_T = TypeVar("_T")
_LAST_WORDS_S = 5.0  # that a client may take to read why its answer ended
_PING = b": ping\n"
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy that collects events defeats them
]


class Form(Protocol):
    """A response in the making, told as JSON."""

    def opening(self) -> Sequence[dict[str, Any]]:
        """Events before the first word."""

    def add(self, index: int, word: Piece | Done) -> Sequence[dict[str, Any]]:
        """The events that a word of a choice makes."""

    def ending(self) -> Sequence[dict[str, Any]]:
        """Events after the last word."""

    def whole(self) -> dict[str, Any]:
        """The response, when all is said."""

    def facts(self) -> dict[str, Any]:
        """For the log: how much was answered, how fast."""


class ClientGone(Exception):
    """The client closed the connection before it had its answer."""


async def whole(form: Form, feed: Feed, receive: Receive) -> dict[str, Any]:
    """The complete answer. Raises what ended it, and ClientGone."""
    try:
        return await or_gone(receive, _collected(form, feed))
    finally:
        feed.leave()
        note(**form.facts())


async def _collected(form: Form, feed: Feed) -> dict[str, Any]:
    while not feed.is_over:
        for index, word in await feed.next(inf):
            form.add(index, word)
    return form.whole()


class EventStream:
    """An ASGI answer of events, as they come. The feed is left with its last word, whenever the
    client reads it."""

    def __init__(self, form: Form, feed: Feed, ping_s: float) -> None:
        self._form, self._feed, self._ping_s = form, feed, ping_s
        self._unsent = bytearray()
        self._news = asyncio.Event()  # there is more to send, or never will be
        self._is_complete = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        most_s = self._feed.left_s + _LAST_WORDS_S
        making = asyncio.ensure_future(self._make())
        try:
            await asyncio.wait_for(or_gone(receive, self._send_all(send)), most_s)
        except (ClientGone, OSError):
            note(is_gone=True)  # nobody is there to be told
        except asyncio.TimeoutError:
            note(is_stalled=True)  # nobody reads what is sent
        finally:
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
            self._feed.leave()
            note(**self._form.facts())

    async def _make(self) -> None:
        """Take what is said as it is said, so that the model is free when all is."""
        try:
            async for data in self._events():
                self._unsent += data
                self._news.set()
        finally:
            self._is_complete = True
            self._news.set()
            self._feed.leave()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        while self._unsent or not self._is_complete:
            await self._news.wait()
            self._news.clear()
            if data := bytes(self._unsent):
                self._unsent.clear()
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[bytes]:
        said_s = perf_counter()
        try:
            for chunk in self._form.opening():
                yield event(chunk)
            while not self._feed.is_over:
                # words may be held back for long, as those of a call are
                words = await self._feed.next(max(0.0, said_s + self._ping_s - perf_counter()))
                chunks = [chunk for index, word in words for chunk in self._form.add(index, word)]
                if chunks or perf_counter() - said_s >= self._ping_s:
                    yield b"".join(map(event, chunks)) or _PING
                    said_s = perf_counter()
            yield b"".join(map(event, self._form.ending()))
        except Exception as error:  # noqa: BLE001  what began must be ended in the same shape
            told = api_error(error)
            if told is not error and told.status >= 500:
                log.error("a stream failed", exc_info=error)
            note(error=told.status)
            yield event(told.body)
        yield _DONE


def event(value: object) -> bytes:
    """One server-sent event."""
    return b"data: " + _JSON.encode(value).encode() + b"\n\n"


async def or_gone(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """What ``work`` returns. Raises ClientGone, and ends it, when the client leaves before."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

"""Send responses: whole, or as server-sent events; and notice when a client leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from math import inf
from time import perf_counter
from typing import Any, Protocol, TypeVar

from starlette.types import Receive, Scope, Send

from duodec.scheduler.outputs import Done, Piece
from duodec.server.errors import ApiError, api_error
from duodec.server.logs import log, note
from duodec.server.models.output_collector import OutputCollector

_T = TypeVar("_T")
LAST_WORDS_S = 5.0  # that a client may take to read why its response ended
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_EVENTS, _LINES = b"text/event-stream; charset=utf-8", b"application/x-ndjson"
_HEADERS = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy that collects events defeats them
]


class Framing(Protocol):
    """How an API writes events to a stream."""

    @property
    def content_type(self) -> bytes: ...
    @property
    def ping(self) -> bytes:
        """What says that a stream lives."""

    @property
    def end(self) -> bytes: ...
    def event(self, value: Mapping[str, Any]) -> bytes: ...
    def error(self, error: ApiError) -> bytes: ...


class _DataEvents:
    """OpenAI's: no event has a name. A ping is a comment of one line, since some clients take an
    empty line for an event."""

    content_type, end = _EVENTS, b"data: [DONE]\n\n"

    @property
    def ping(self) -> bytes:
        return b": ping\n"

    def event(self, value: Mapping[str, Any]) -> bytes:
        return b"data: " + _JSON.encode(value).encode() + b"\n\n"

    def error(self, error: ApiError) -> bytes:
        return self.event(error.body)


class NumberedEvents(_DataEvents):
    """Those of OpenAI's responses, made by their writer. A ping is an event, as OpenAI sends it:
    clients that wait for events for so long only (Codex) do not count comments."""

    def __init__(
        self, made: Callable[[], dict[str, Any]], failed: Callable[[ApiError], dict[str, Any]]
    ) -> None:
        self._made, self._failed = made, failed

    @property
    def ping(self) -> bytes:
        return self.event(self._made())

    def error(self, error: ApiError) -> bytes:
        return self.event(self._failed(error))


class NamedEvents:
    """Anthropic's: each event has its type for a name. Other events go with a ping, for clients
    that do not count it."""

    content_type, end = _EVENTS, b""

    def __init__(self, alive: Callable[[], Sequence[Mapping[str, Any]]]) -> None:
        self._alive = alive

    @property
    def ping(self) -> bytes:
        return b"".join(map(self.event, [{"type": "ping"}, *self._alive()]))

    def event(self, value: Mapping[str, Any]) -> bytes:
        name = f"event: {value['type']}\n".encode()
        return name + b"data: " + _JSON.encode(value).encode() + b"\n\n"

    def error(self, error: ApiError) -> bytes:
        return self.event(error.named)


class _Lines:
    """Ollama's: an object a line, and nothing between them."""

    content_type, ping, end = _LINES, b"", b""

    def event(self, value: Mapping[str, Any]) -> bytes:
        return _JSON.encode(value).encode() + b"\n"

    def error(self, error: ApiError) -> bytes:
        return self.event(error.plain)


DATA_EVENTS, LINES = _DataEvents(), _Lines()


class Writer(Protocol):
    """Writes a response as JSON: whole, or as events."""

    @property
    def framing(self) -> Framing: ...

    @property
    def is_streamed(self) -> bool:
        """The client wants events."""

    def opening(self) -> Sequence[dict[str, Any]]:
        """Events before the first output."""

    def add(self, index: int, output: Piece | Done) -> Sequence[dict[str, Any]]:
        """The events that an output of a choice makes."""

    def ending(self) -> Sequence[dict[str, Any]]:
        """Events after the last output."""

    def whole(self) -> dict[str, Any]:
        """The response, once it is complete; large values in it may be functions that make them
        (`json_parts.encoded`)."""

    def facts(self) -> dict[str, Any]:
        """For the log: how many tokens, how fast."""


Prepared = tuple[Writer, OutputCollector]
"""A request that is with the scheduler, and what writes its response."""


class ClientGone(Exception):
    """The client closed the connection before it had its response."""


async def whole(writer: Writer, collector: OutputCollector, receive: Receive) -> dict[str, Any]:
    """The complete response. Raises what ended it, and ClientGone."""
    try:
        return await or_gone(receive, _collected(writer, collector))
    finally:
        collector.close()
        _note(writer, collector)


async def _collected(writer: Writer, collector: OutputCollector) -> dict[str, Any]:
    while not collector.is_over:
        for index, output in await collector.next(inf):
            writer.add(index, output)
    return writer.whole()


class EventStream:
    """An ASGI response of events, as they come. The collector is closed after its last output,
    whenever the client reads that."""

    def __init__(self, writer: Writer, collector: OutputCollector, ping_s: float) -> None:
        self._writer, self._collector, self._ping_s = writer, collector, ping_s
        self._unsent = bytearray()
        self._news = asyncio.Event()  # there is more to send, or never will be
        self._is_complete = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        most_s = self._collector.left_s + LAST_WORDS_S
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
            self._collector.close()
            _note(self._writer, self._collector)

    async def _make(self) -> None:
        """Take outputs as they come, so that the model is free after the last one."""
        try:
            async for data in self._events():
                self._unsent += data
                self._news.set()
        finally:
            self._is_complete = True
            self._news.set()
            self._collector.close()

    async def _send_all(self, send: Send) -> None:
        headers = [(b"content-type", self._writer.framing.content_type), *_HEADERS]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while self._unsent or not self._is_complete:
            await self._news.wait()
            self._news.clear()
            if data := bytes(self._unsent):
                self._unsent.clear()
                await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[bytes]:
        sent_s, framing = perf_counter(), self._writer.framing
        try:
            for chunk in self._writer.opening():
                yield framing.event(chunk)
            while not self._collector.is_over:
                # text may be held back for long, as that of a call is
                outputs = await self._collector.next(
                    max(0.0, sent_s + self._ping_s - perf_counter())
                )
                chunks = [chunk for output in outputs for chunk in self._writer.add(*output)]
                if chunks or perf_counter() - sent_s >= self._ping_s:
                    yield b"".join(map(framing.event, chunks)) or framing.ping
                    sent_s = perf_counter()
            yield b"".join(map(framing.event, self._writer.ending()))
        except Exception as error:  # noqa: BLE001  what began must be ended in the same shape
            told = api_error(error)
            if told is not error and told.status >= 500:
                log.error("a stream failed", exc_info=error)
            note(error=told.status)
            yield framing.error(told)
        yield framing.end


def _note(writer: Writer, collector: OutputCollector) -> None:
    """Let the log say what the response was, with what was generated of one that was cut short."""
    found = writer.facts()
    for counts in collector.cut_short:
        found["tokens"] += counts.num_tokens
        found["drafted"] += counts.num_drafted
        found["accepted"] += counts.num_accepted
    note(**found)


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

"""Bound what a connection may send and how long it may take, before any route sees a request.

uvicorn reads HTTP with llhttp, which joins the parts of a header line and sets no limit to them;
its only timer is that of an idle connection. Here the bytes and lines of a head, the time for a
head and for a body, what surrounds the payload of a body, the time between requests and the number
of connections are limited. A connection that waits for its client never keeps another client out:
at the limit, the one that has waited longest is closed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from httptools import HttpParserError, HttpParserUpgrade
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from duodec.server.errors import (
    ApiError,
    bad_http,
    head_too_large,
    many_headers,
    slow_head,
    small_chunks,
    unavailable,
)
from duodec.server.http.reading import Flow, ReadingTurns
from duodec.server.settings import Settings

_MARGIN_S = 1.0  # a route that reads a body says itself, before this, that it was slow
_SLICE = 1 << 10  # bytes that are parsed at once: some fifty of the shortest requests
_BODY_SLICE = 1 << 15  # of a body whose length was said: nothing but bytes to copy
_MOST_UNREAD = 1 << 16  # bytes that wait for their turn, before a client is read no further
_MOST_HEADERS = 100
_FRAMED = 1 + 1 / 16  # bytes of a body for each of its payload, besides those that headers may have
_MOST_READS = 64  # of a message, however small; more must bring so many bytes each, or take so long
_LEAST_READ = 256
_REST_S = 0.05
LINGER_S = 5.0  # after its last response, for a client that is sending still
_MOST_DROPPED = 1 << 20  # bytes that it may send meanwhile


class Connections:
    """The open connections of a server. ``protocol`` is what uvicorn makes one of."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._open: set[Connection] = set()
        self.turns = ReadingTurns()
        self._waiting: dict[Connection, None] = {}  # for their clients; the longest first

    @property
    def protocol(self) -> Any:
        return partial(Connection, self)

    def join(self, connection: Connection) -> bool:
        """It was just opened; makes room where others only wait. Whether there is room for it."""
        self._open.add(connection)
        if self._is_full and self._waiting:
            next(iter(self._waiting)).abandon()
        return not self._is_full

    def leave(self, connection: Connection) -> None:
        """It is open no longer."""
        self._open.discard(connection)
        self.forget(connection)

    def wait(self, connection: Connection) -> None:
        """It waits for its client from now on."""
        self._waiting.pop(connection, None)
        self._waiting[connection] = None

    def forget(self, connection: Connection) -> None:
        """It waits for its client no longer."""
        self._waiting.pop(connection, None)

    @property
    def _is_full(self) -> bool:
        return len(self._open) > self.settings.max_connections


@dataclass(frozen=True)
class _Writer:
    """What uvicorn knows of the transport when it writes a response."""

    write: Callable[[bytes], None]
    close: Callable[[], None]  # after the response, where that is agreed
    is_closing: Callable[[], bool]


class Connection(HttpToolsProtocol):
    """uvicorn's protocol, with limits. What is read is parsed in turns with other connections."""

    cycle: RequestResponseCycle | None  # type: ignore[assignment]  # None before the first request

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._connections = connections
        self._settings = connections.settings
        self._phase = "new"
        self._timer: asyncio.TimerHandle | None = None
        self._unread = bytearray()  # not parsed yet
        self._is_stopped = False  # the transport is not read
        self._rest: asyncio.TimerHandle | None = None  # until it is read again
        self._num_reads = self._num_read_bytes = 0  # since the last message was complete
        self._running: RequestResponseCycle | None = None  # the one under way, or the last
        self._is_next_due = False  # the first of the pipeline may begin
        self.is_ahead = False  # its client sent a request before it had the last response
        self._num_head_bytes = 0  # since the last head, or part of a body, was complete
        self._num_fed = self._num_payload = 0  # bytes of the body in work
        self._num_declared = 0  # bytes that it is to have, if its head says so
        self._is_in_head = True
        self._is_in_body = False
        self._is_over = False  # nothing more is parsed or answered
        self._num_dropped = 0  # bytes that came after that
        self._is_deaf = False  # closed after the responses that are under way
        self._error: ApiError | None = None  # why the parser was stopped

    # --- asyncio's side

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport, self._go_on)
        if self._connections.join(self):
            self._watch()
        else:
            self._refuse(unavailable("the server has no room for another connection; come back"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._unread.clear()
        self._stop_running()  # uvicorn tells the last of a pipeline alone
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            self._num_dropped += len(data)
            if self._num_dropped > _MOST_DROPPED:
                self.abandon()
            return
        if self._is_deaf or self.parser is None:
            return
        self._unread += data
        self._num_reads += 1
        self._num_read_bytes += len(data)
        if self._num_reads > _MOST_READS + self._num_read_bytes // _LEAST_READ:
            # each read costs the same, however little it brings
            self._rest = self._rest or self.loop.call_later(_REST_S, self._read_again)
        self._go_on()

    def _read_again(self) -> None:
        self._rest = None
        self._go_on()

    def _go_on(self) -> None:
        """Parse, and read, as far as that is possible now."""
        if self._is_closing():
            return
        self._connections.turns.add(self)
        must_stop = self._rest is not None or len(self._unread) >= _MOST_UNREAD
        if must_stop != self._is_stopped:
            self._is_stopped = must_stop
            (self.transport.pause_reading if must_stop else self.transport.resume_reading)()
        self._watch()

    # --- the parser's side

    @property
    def can_read_on(self) -> bool:
        """It has something to parse, or to begin, and nothing to wait for."""
        if self._is_closing() or self.parser is None:
            return False
        if self.pipeline:
            return self._is_next_due and not self.flow.write_paused
        return bool(
            self._unread and not (self.flow.read_paused or self.flow.write_paused or self._is_deaf)
        )

    def read_on(self) -> int:
        """Parse a slice, or begin what was parsed: how many requests have begun."""
        if not self.can_read_on:
            return 0
        num_tasks = len(self.tasks)
        if self.pipeline:
            self._begin(*self.pipeline.pop())
        else:
            num_left = self._num_declared - self._num_payload
            self._parse(self._unread[: max(_SLICE, min(num_left, _BODY_SLICE))])
        self._go_on()
        return len(self.tasks) - num_tasks

    def _begin(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Let the application respond to a request of the pipeline."""
        self._is_next_due, self._running = False, cycle
        task = self.loop.create_task(cycle.run_asgi(app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def _parse(self, part: bytearray) -> None:
        del self._unread[: len(part)]
        self._num_head_bytes += len(part)
        self._num_fed += len(part)
        try:
            self.parser.feed_data(part)
        except HttpParserUpgrade as ended:
            self._stay(part[ended.args[0] :])
        except HttpParserError:
            self.send_400_response("")
            return
        most = self._settings.max_header_bytes
        if self._num_head_bytes > most:
            self._refuse(head_too_large(most))
        elif self._is_in_body and self._num_fed > self._num_payload * _FRAMED + most:
            self._refuse(small_chunks())

    def _stay(self, rest: bytearray) -> None:
        """A client that would rather speak another protocol is answered in this one: the head is
        parsed again, without its wish, and so is its body, which the parser takes for the other
        protocol's."""
        lines = [(name, value) for name, value in self.headers if name != b"upgrade"]
        head = [b"%s: %s\r\n" % line for line in lines]
        first = b"%s %s HTTP/%s\r\n" % (
            self.parser.get_method(), self.url, self.parser.get_http_version().encode(),
        )  # fmt: skip
        self._unread[:0] = b"".join([first, *head, b"\r\n"]) + rest

    @property
    def _is_upgrade(self) -> bool:
        return bool(self.parser.should_upgrade())

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True
        self._num_head_bytes = self._num_head_bytes or 1

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_in_head:
            return  # after a body: nobody has asked for it
        if len(self.headers) >= _MOST_HEADERS:
            self._stop(many_headers(_MOST_HEADERS))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        # a line's colon, blank and end are its own too
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._settings.max_header_bytes:
            self._stop(head_too_large(self._settings.max_header_bytes))
        if self._is_upgrade:
            if self.parser.get_method() == b"CONNECT":
                self._stop(bad_http())
            return
        self._is_in_head, self._is_in_body, self._num_head_bytes = False, True, 0
        self._num_fed = self._num_payload = 0
        self._num_declared = _declared(self.headers)
        super().on_headers_complete()
        assert self.cycle is not None
        self.cycle.transport = _Writer(self._write, self._end, self._is_closing)  # type: ignore[assignment]
        if not self.pipeline:
            self._running = self.cycle

    def on_body(self, body: bytes) -> None:
        self._num_head_bytes = 0
        self._num_payload += len(body)
        super().on_body(body)
        is_answered = self._running is self.cycle and not self._is_answering
        if is_answered and self._num_payload > 2 * self._settings.max_body_bytes:
            self._end()  # it goes on and on though it has its response

    def on_message_complete(self) -> None:
        if self._is_upgrade:
            return
        self._is_in_head, self._is_in_body, self._num_head_bytes = True, False, 0
        self._num_declared = 0
        self._num_reads = self._num_read_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self._is_next_due = bool(self.pipeline)
        self.is_ahead = bool(self.pipeline or self._unread)
        self.flow.resume_reading()
        self._go_on()  # ours are the turns
        self._watch()  # and the timer

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no HTTP, or a head beyond the limit."""
        if not self._is_over:
            size = self._settings.max_header_bytes
            is_large = self._is_in_head and self._num_head_bytes > size
            self._refuse(self._error or (head_too_large(size) if is_large else bad_http()))

    # --- limits

    def abandon(self) -> None:
        """Close it without a word: it waited longest where others have no room."""
        self._leave()
        self.transport.abort()

    def _watch(self) -> None:
        """Give what it waits for now a time."""
        phase = self._current()
        if phase == self._phase or self._is_over:
            return
        self._phase = phase
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        limits = {
            "head": self._settings.header_s,
            "body": self._settings.body_s + _MARGIN_S,
            "idle": self._settings.idle_s,
            "unread": self._settings.timeout_s,
        }
        if phase in limits:
            self._timer = self.loop.call_later(limits[phase], self._expire)
        if phase in limits or phase == "turn":
            self._connections.wait(self)
        else:
            self._connections.forget(self)

    @property
    def _is_answering(self) -> bool:
        return self._running is not None and not self._running.response_complete

    def _current(self) -> str:
        if self.flow.write_paused or self.transport.is_closing():
            return "unread"  # its client does not read what it is told
        if self._is_next_due:
            return "turn"  # in which the next of its pipeline begins
        if self.pipeline or (self._is_answering and not self._is_in_body):
            return "work"  # whose time is the routes' affair
        if self._is_in_body:
            return "body"
        is_head = self._num_head_bytes or self._unread or self.cycle is None
        return "head" if is_head else "idle"

    def _expire(self) -> None:
        self._timer = None
        is_told = self._phase == "head" and self._num_head_bytes
        if is_told:
            self._refuse(slow_head(self._settings.header_s))
        elif self._phase == "body":
            self._end()
        else:
            self.abandon()

    def _stop(self, error: ApiError) -> NoReturn:
        """Stop the parser, which raises an error of its own."""
        self._error = error
        raise error

    def _refuse(self, error: ApiError) -> None:
        """Respond in OpenAI's shape and close; requests before this one are served first."""
        is_about_running = self._is_in_body and not self.pipeline
        if self._is_in_body and self.pipeline:
            self.pipeline.popleft()  # the request that it is about
        if self._is_answering and not is_about_running:
            self.cycle = self.pipeline[0][0] if self.pipeline else self._running
            assert self.cycle is not None
            self.cycle.keep_alive, self._is_deaf = False, True
            self._unread.clear()
            return
        has_begun = is_about_running and self._running and self._running.response_started
        if not (has_begun or self.transport.is_closing()):
            data = json.dumps(error.body).encode()
            headers = {
                "content-type": "application/json", "content-length": str(len(data)),
                "connection": "close", **error.headers,
            }  # fmt: skip
            lines = [f"{name}: {value}\r\n".encode() for name, value in headers.items()]
            self.transport.write(b"".join([STATUS_LINE[error.status], *lines, b"\r\n", data]))
        self._end()

    def _write(self, data: bytes) -> None:
        if not self._is_over:
            self.transport.write(data)

    def _is_closing(self) -> bool:
        return self._is_over or self.transport.is_closing()

    def _end(self) -> None:
        """Close it. A client that is sending still would be reset, and might lose its response:
        it is told that nothing more comes, and what it sends is dropped for a while."""
        if self._is_over:
            return
        is_sending = self._is_in_body or self._num_head_bytes or self._unread or self.cycle is None
        if not is_sending:
            self.transport.close()
            return
        self._is_over = True
        self._unread.clear()
        self._stop_timers()
        self._stop_running()
        try:
            self.transport.write_eof()
        except OSError:  # it is gone
            self.transport.close()
            return
        if self._is_stopped:
            self.transport.resume_reading()
        self._timer = self.loop.call_later(LINGER_S, self.transport.close)
        self._connections.wait(self)

    def _stop_running(self) -> None:
        """Tell the application that nobody waits for its response any more."""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def _leave(self) -> None:
        self._is_over = True
        self._connections.leave(self)
        self._stop_timers()

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._rest):
            if timer is not None:
                timer.cancel()
        self._timer = self._rest = None


def allow_open_files(num_connections: int) -> None:
    """Let this process hold as many connections, beside its other files, where the system does."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = num_connections + 512
        if soft != resource.RLIM_INFINITY and soft < wanted:
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _declared(headers: list[tuple[bytes, bytes]]) -> int:
    """Bytes of the body that follows a head, which the parser has found valid; 0 if it comes in
    chunks."""
    length = dict(headers).get(b"content-length", b"").strip()
    return int(length) if length.isdigit() and len(length) < 19 else 0

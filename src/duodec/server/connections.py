"""Bound what a connection may send and how long it may take, before any route sees a request.

uvicorn reads HTTP with llhttp, which joins the parts of a header line and sets no limit to them;
its only timer is that of an idle connection. Here the bytes of a head, the time for a head and
for a body, the time between requests and the number of connections are limited. A connection that
waits for its client never keeps another client out: at the limit, the one that has waited
longest is closed.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from functools import partial
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)
from uvicorn.server import ServerState

from duodec.server.errors import ApiError, bad_http, head_too_large, slow_head, unavailable
from duodec.server.settings import Settings

_MARGIN_S = 1.0  # a route that reads a body says itself, before this, that it was slow


class Connections:
    """The open connections of a server. ``protocol`` is what uvicorn makes one of."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.num_open = 0
        self._waiting: dict[Connection, None] = {}  # for their clients; the longest first

    @property
    def protocol(self) -> Any:
        return partial(Connection, self)

    def wait(self, connection: Connection) -> None:
        """It waits for its client from now on."""
        self._waiting.pop(connection, None)
        self._waiting[connection] = None

    def forget(self, connection: Connection) -> None:
        """It waits for its client no longer."""
        self._waiting.pop(connection, None)

    def has_room(self) -> bool:
        """For the connection that was just opened; makes room where others only wait."""
        if self.num_open > self.settings.max_connections and self._waiting:
            next(iter(self._waiting)).abandon()
            return True
        return self.num_open <= self.settings.max_connections


class Connection(HttpToolsProtocol):
    """uvicorn's protocol, with limits."""

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
        self._num_head_bytes = 0  # since the last head, or part of a body, was complete
        self._is_in_head = True
        self._is_in_body = False
        self._is_over = False
        self._is_deaf = False  # closed after the answer that is under way

    # --- asyncio's side

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._connections.num_open += 1
        if self._connections.has_room():
            self._watch()
        else:
            self._refuse(unavailable("the server has no room for another connection; come back"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_over or self._is_deaf or self.parser is None:
            return
        self._num_head_bytes += len(data)
        super().data_received(data)
        if self._num_head_bytes > self._settings.max_header_bytes and not self._is_over:
            self._refuse(head_too_large(self._settings.max_header_bytes))
        self._watch()

    # --- the parser's side

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_head = True

    def on_headers_complete(self) -> None:
        # a line's colon, blank and end are its own too
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self._settings.max_header_bytes:
            raise head_too_large(self._settings.max_header_bytes)
        self._is_in_head, self._is_in_body, self._num_head_bytes = False, True, 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_head_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_head, self._is_in_body, self._num_head_bytes = True, False, 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # ours is the timer
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Bytes that are no HTTP, or a head beyond the limit."""
        if not self._is_over:
            size = self._settings.max_header_bytes
            is_large = self._is_in_head and self._num_head_bytes > size
            self._refuse(head_too_large(size) if is_large else bad_http())

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
        }
        if phase in limits:
            self._timer = self.loop.call_later(limits[phase], self._expire)
            self._connections.wait(self)
        else:
            self._connections.forget(self)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _current(self) -> str:
        if self.pipeline or (self._is_answering and not self._is_in_body):
            return "work"  # whose time is the routes' affair
        if self._is_in_body:
            return "body"
        return "head" if self._num_head_bytes or self.cycle is None else "idle"

    def _expire(self) -> None:
        self._timer = None
        is_told = self._phase == "head" and self._num_head_bytes
        if is_told:
            self._refuse(slow_head(self._settings.header_s))
        else:
            self.abandon()

    def _refuse(self, error: ApiError) -> None:
        """Answer in OpenAI's shape and close; a request before this one has its answer first."""
        if self._is_answering and (self.pipeline or not self._is_in_body):
            assert self.cycle is not None
            self.cycle.keep_alive = False
            self.pipeline.clear()
            self._is_deaf = True
            return
        has_begun = self._is_answering and self.cycle is not None and self.cycle.response_started
        if not (has_begun or self.transport.is_closing()):
            data = json.dumps(error.body).encode()
            headers = {
                "content-type": "application/json", "content-length": str(len(data)),
                "connection": "close", **error.headers,
            }  # fmt: skip
            lines = [f"{name}: {value}\r\n".encode() for name, value in headers.items()]
            self.transport.write(b"".join([STATUS_LINE[error.status], *lines, b"\r\n", data]))
        self._leave()
        self.transport.close()

    def _leave(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._connections.num_open -= 1
            self._connections.forget(self)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None


def allow_open_files(num_connections: int) -> None:
    """Let this process hold as many connections, beside its other files, where the system does."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = num_connections + 512
        if soft != resource.RLIM_INFINITY and soft < wanted:
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))

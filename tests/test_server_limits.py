"""Nothing that a client sends stops the server: what it may send, and how long it may take."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from time import perf_counter
from typing import Any

import pytest
from server_fakes import Running, Slowed, engine_on_tables, running

ERROR_FIELDS = {"message", "type", "param", "code"}


def connect(server: Running) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)))
    sock.settimeout(20)
    return sock


def answer(sock: socket.socket) -> bytes:
    """All that the server says before it closes the connection."""
    found = b""
    with suppress(ConnectionError):
        while part := sock.recv(65536):
            found += part
    return found


def error_of(said: bytes, status: int) -> dict[str, Any]:
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d" % status), said
    error: dict[str, Any] = json.loads(body)["error"]
    assert set(error) == ERROR_FIELDS
    return error


# --- connections


def test_a_header_that_never_ends_is_cut_off() -> None:
    with running(max_header_bytes=4096) as server, connect(server) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nX: ")
        sent = 0
        with suppress(ConnectionError):
            while sent < 8 << 20:
                sent += sock.send(b"a" * 4096)
        assert sent < 8 << 20
        assert server.http.get("/health").status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nX: " + b"a" * 5000 + b"\r\n\r\n",
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 1000 + b"\r\n",
        b"GET /health HTTP/1.1\r\nX: " + b"a" * 5000,
    ],
)
def test_a_head_that_is_too_large_is_refused_in_openais_shape(head: bytes) -> None:
    with running(max_header_bytes=4096) as server:
        with connect(server) as sock:
            sock.sendall(head)
            assert error_of(answer(sock), 431)["code"] == "headers_too_large"
        small = {"X": "a" * 2000}
        assert server.http.get("/health", headers=small).status_code == 200


def test_a_trailer_that_never_ends_is_cut_off() -> None:
    with running(max_header_bytes=4096) as server, connect(server) as sock:
        sock.sendall(b"POST /health HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ")
        sock.recv(1)
        with suppress(ConnectionError):
            for _ in range(1000):
                sock.sendall(b"a" * 4096)
            pytest.fail("it took 4 MB")


def test_bytes_that_are_no_http_are_refused_in_openais_shape() -> None:
    with running() as server, connect(server) as sock:
        sock.sendall(b"\x00\xff\n\n")
        assert error_of(answer(sock), 400)["code"] == "invalid_http"


@pytest.mark.parametrize("sent", [b"", b"GET /he", b"GET /health HTTP/1.1\r\nX: y"])
def test_heads_have_a_time(sent: bytes) -> None:
    with running(header_s=0.2) as server, connect(server) as sock:
        sock.sendall(sent)
        said = answer(sock)
    assert not said if not sent else error_of(said, 408)["code"] == "timeout"


def test_the_time_of_a_head_does_not_begin_anew_with_each_byte() -> None:
    with running(header_s=0.3) as server, connect(server) as sock:
        sock.settimeout(0.05)
        begin_s = perf_counter()
        with suppress(ConnectionError):
            while perf_counter() - begin_s < 10:
                sock.sendall(b"G")
                with suppress(TimeoutError):
                    if sock.recv(1000):
                        break
        assert perf_counter() - begin_s < 5


def test_idle_connections_are_closed() -> None:
    with running(idle_s=0.2) as server, connect(server) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer(sock).startswith(b"HTTP/1.1 200")


def test_bodies_have_a_time() -> None:
    with running(body_s=0.2) as server:
        for path in (b"/v1/completions", b"/v1/nothing"):
            with connect(server) as sock:
                sock.sendall(b"POST %s HTTP/1.1\r\nContent-Length: 100\r\n\r\n{" % path)
                said = answer(sock)
            assert b"408" in said[:20] or b"404" in said[:20]
        assert server.chat(max_tokens=3).status_code == 200


def test_connections_that_wait_keep_nobody_out() -> None:
    with running(max_connections=20, header_s=60) as server, ExitStack() as stack:
        for _ in range(200):
            sock = stack.enter_context(connect(server))
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nX: ")
        assert server.http.get("/health").status_code == 200
        assert server.chat(max_tokens=3).status_code == 200
        assert len(server.server.server_state.connections) <= 20


def test_connections_at_work_are_not_closed_for_others() -> None:
    engine = engine_on_tables(num_context=4000)
    target = Slowed(engine.target, 0.01)
    with running(engine, target, max_connections=2) as server, ExitStack() as stack:
        lines: list[Iterator[str]] = []
        for _ in range(2):
            response = stack.enter_context(server.stream(max_tokens=3000))
            lines.append(response.iter_lines())
            next(lines[-1])
        with connect(server) as sock:
            said = answer(sock)
        assert error_of(said, 503)["code"] == "unavailable"
        assert b"Retry-After" in said
        assert all(next(line) is not None for line in lines)

"""What one connection sends is read in turns, as far as it is answered, and within bounds."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from contextlib import ExitStack, suppress
from itertools import count
from time import perf_counter, sleep
from typing import Any

import pytest
from fakes.server import Running, Slowed, engine_on_tables, running, until

from duodec.server.http import body_budget
from duodec.server.http.body_budget import BodyBudget
from duodec.server.http.connections import Connection
from duodec.server.http.reading import AHEAD_S, ReadingTurns

HOST = b"Host: localhost\r\n"
HEALTH = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"
METRICS = b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n"


def connect(server: Running, receive_bytes: int = 0) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    sock = socket.socket()
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.settimeout(20)
    sock.connect((host, int(port)))
    return sock


def said(sock: socket.socket, num_answers: int = 10_000) -> bytes:
    """Until the server closes, or has begun so many answers."""
    found = b""
    with suppress(ConnectionError):
        while found.count(b"HTTP/1.1 ") < num_answers and (part := sock.recv(1 << 16)):
            found += part
    return found


def post(body: bytes, lines: bytes = b"", path: bytes = b"/v1/completions") -> bytes:
    head = b"POST %s HTTP/1.1\r\n%sContent-Length: %d\r\n%s\r\n"
    return head % (path, HOST, len(body), lines) + body


def asked(**fields: Any) -> bytes:
    return json.dumps({"prompt": "hi", "max_tokens": 2, **fields}).encode()


def chunked(size: int, num: int, extension: bytes = b"", trailer: bytes = b"") -> bytes:
    head = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    blank = b"%x%s\r\n%s\r\n" % (size, extension, b" " * size)
    data = asked()
    return head + blank * num + b"%x\r\n%s\r\n0\r\n%s\r\n" % (len(data), data, trailer)


def test_a_body_whose_length_is_known_takes_few_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in chunks is parsed in small slices, since each may hold thousands of chunks."""
    slices: list[int] = []
    parse = Connection._parse

    def parsed(self: Connection, part: bytearray) -> None:
        slices.append(len(part))
        parse(self, part)

    monkeypatch.setattr(Connection, "_parse", parsed)
    body = asked(prompt="a" * (1 << 19))
    in_chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    chunked = b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    with running() as server:
        statuses = []
        for request in (post(body) + HEALTH, chunked + in_chunks + HEALTH):
            slices.append(0)
            with connect(server) as sock:
                sock.sendall(request)
                statuses.append(re.findall(rb"HTTP/1\.1 (\d+)", said(sock, 2)))
    whole, small = slices[1 : slices.index(0, 1)], slices[slices.index(0, 1) + 1 :]
    assert (
        statuses == [[b"400", b"200"]] * 2
    )  # it is too long for the context; the next one is served
    assert max(whole) > 1 << 14
    assert max(small) == 1 << 10


def test_where_many_large_bodies_are_received_all_are_read_slowly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    budget = BodyBudget(1 << 20)

    async def run() -> None:
        with ExitStack() as stack:
            held = [stack.enter_context(budget.hold()) for _ in range(10)]
            begin_s = perf_counter()
            for body in held[:7]:
                await body.grow(1 << 20)
            assert budget.pause_s(1 << 20) == 0.0
            budget.grow(held[7], 1 << 20)  # half of all that is held at once
            with monkeypatch.context() as at_once:  # differences of a late clock are rounded
                at_once.setattr(body_budget, "perf_counter", lambda: 0.0)
                first_s, second_s = budget.pause_s(16_000), budget.pause_s(16_000)
            assert 0.0 < first_s <= 0.001 < second_s <= 0.002
            begin_s = perf_counter()
            await held[8].grow(1 << 20)
            assert perf_counter() - begin_s > 0.05
        assert budget.num_bytes == 0

    asyncio.run(run())


# --- pipelines


class Connected:
    """A connection with so many requests left."""

    def __init__(self, name: str, num_left: int, begun: list[str], *, is_ahead: bool) -> None:
        self.name, self.num_left, self.begun, self.is_ahead = name, num_left, begun, is_ahead

    @property
    def can_read_on(self) -> bool:
        return self.num_left > 0

    def read_on(self) -> int:
        self.num_left -= 1
        self.begun.append(self.name)
        return 1


def test_pipelines_come_after_others_and_leave_the_loop_idle_between_their_requests() -> None:
    begun: list[str] = []

    async def run() -> float:
        turns = ReadingTurns()
        for i in range(3):
            turns.add(Connected(f"pipeline {i}", 2, begun, is_ahead=True))
        for i in range(5):
            turns.add(Connected(f"single {i}", 1, begun, is_ahead=False))
        start_s = perf_counter()
        while len(begun) < 11:
            await asyncio.sleep(0)
        return perf_counter() - start_s

    assert asyncio.run(run()) > 5 * AHEAD_S
    assert begun[:5] == [f"single {i}" for i in range(5)]
    assert begun[5:] == [f"pipeline {i}" for i in range(3)] * 2


@pytest.mark.slow
def test_a_pipeline_is_parsed_as_it_is_answered() -> None:
    number = 500
    with running() as server, connect(server) as sock:
        sock.sendall(METRICS * number)
        until(lambda: server.server.server_state.total_requests > 0)
        seen: list[int] = []
        found = b""
        while found.count(b"HTTP/1.1 200") < number:
            found += sock.recv(1 << 16)
            seen += [len(c.pipeline) for c in list(server.server.server_state.connections)]
        assert max(seen) <= 64
        assert server.http.get("/health").status_code == 200


@pytest.mark.slow
def test_a_pipeline_whose_answers_nobody_reads_waits_for_them() -> None:
    with running() as server, connect(server, 2048) as sock:
        sock.settimeout(1)
        with suppress(TimeoutError):
            while True:
                sock.sendall(METRICS * 1000)
        connections = server.server.server_state.connections
        until(lambda: any(c.flow.write_paused for c in list(connections)), 20)
        before = server.server.server_state.total_requests
        sleep(0.3)
        assert server.server.server_state.total_requests == before
        (held,) = [c for c in connections if c.flow.write_paused]
        assert isinstance(held, Connection)
        assert len(held._unread) < 1 << 19
        sock.settimeout(20)
        assert said(sock, 500).count(b"HTTP/1.1 200") >= 500
        assert server.http.get("/health").status_code == 200


def test_connections_whose_answers_nobody_reads_keep_nobody_out() -> None:
    with running(max_connections=3) as server, ExitStack() as stack:
        for _ in range(3):
            sock = stack.enter_context(connect(server, 2048))
            sock.settimeout(0.5)
            with suppress(TimeoutError):
                while True:
                    sock.sendall(METRICS * 1000)
        assert server.chat(max_tokens=2).status_code == 200


def test_requests_before_bytes_that_are_no_http_have_their_answers_and_then_it_closes() -> None:
    with running() as server, connect(server) as sock:
        sock.sendall(HEALTH * 3 + b"\x00garbage\r\n\r\n" + HEALTH)
        assert said(sock).count(b"HTTP/1.1 200") == 3


def test_requests_before_one_whose_body_is_broken_have_their_answers() -> None:
    with running() as server, connect(server) as sock:
        broken = chunked(1, 1).partition(b"\r\n\r\n")[0] + b"\r\n\r\nQQ\r\n"
        sock.sendall(HEALTH * 3 + broken + HEALTH)
        found = said(sock)
        assert found.count(b"HTTP/1.1 200") == 3


def test_others_are_admitted_between_the_requests_of_a_pipeline() -> None:
    """One of them is with the scheduler at a time, and its completions leave a slot."""
    engine = engine_on_tables()
    seen: list[list[int]] = []
    target = Slowed(
        engine.loaded.target, 0.01, lambda queries: seen.append([int(q.text[0]) for q in queries])
    )
    with running(engine, target, num_slots=3) as server, connect(server) as sock:
        first = engine.tokens_of("aa")[0]
        plain = {"method": "ar"}
        several = asked(prompt="aa", n=8, max_tokens=4, speculation=plain)
        sock.sendall(post(several) * 4)
        until(lambda: len(seen) > 2)
        begin = len(seen)
        assert server.complete("bb", max_tokens=6, speculation=plain).status_code == 200
        widths = [texts.count(first) for texts in seen]
        assert said(sock, 4).count(b"HTTP/1.1 200") == 4
    assert max(widths) == 2
    waited = next(i for i, texts in enumerate(seen[begin:]) if len(set(texts)) == 2)
    assert waited <= 2, "of the passes under way"


def test_who_leaves_with_more_in_the_pipeline_is_gone() -> None:
    engine = engine_on_tables(num_context=4000)
    target = Slowed(engine.loaded.target, 0.1)
    with running(engine, target, num_slots=1) as server:
        with connect(server) as sock:
            sock.sendall(post(asked(max_tokens=3000)) + HEALTH)
            until(lambda: server.counter("duodec:num_requests_running") == 1)
        until(lambda: server.counter("duodec:num_requests_running") == 0, 5)


# --- bodies and heads


@pytest.mark.parametrize("body", [chunked(1, 200_000), chunked(1, 100, b";" + b"x" * 2000)])
def test_bodies_of_framing_are_refused(body: bytes) -> None:
    with running() as server, connect(server) as sock:
        with suppress(ConnectionError):
            sock.sendall(body)
        found = said(sock)
        assert found.startswith(b"HTTP/1.1 400")
        assert json.loads(found.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"
        assert server.chat(max_tokens=2).status_code == 200


@pytest.mark.parametrize("body", [chunked(1, 5_000), chunked(100, 10_000)])
def test_bodies_in_many_chunks_are_read(body: bytes) -> None:
    with running() as server, connect(server) as sock:
        sock.sendall(body)
        assert said(sock, 1).startswith(b"HTTP/1.1 200")


def test_a_head_has_so_many_lines_at_most() -> None:
    for number, status in ((99, b"200"), (100, b"431"), (5000, b"431")):
        with running() as server, connect(server) as sock:
            sock.sendall(HEALTH[:-2] + b"a:\r\n" * number + b"\r\n")
            assert said(sock, 1).startswith(b"HTTP/1.1 " + status)


def test_what_follows_a_body_is_no_header_of_it() -> None:
    with running(api_keys=("key",)) as server, connect(server) as sock:
        sock.sendall(chunked(10, 1, trailer=b"Authorization: Bearer key\r\n"))
        assert said(sock, 1).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("other", [b"h2c", b"websocket"])
def test_a_wish_for_another_protocol_is_ignored(other: bytes) -> None:
    """As Java's client has it, which sends its body all the same."""
    wish = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\nHTTP2-Settings: x\r\n" % other
    request = post(asked(), wish)
    with running() as server:
        for at in (20, len(request) - 10, len(request)):
            with connect(server) as sock:
                sock.sendall(request[:at])
                sleep(0.05)
                sock.sendall(request[at:] + HEALTH[:-2] + wish + b"\r\n" + HEALTH)
                found = said(sock, 3)
                assert found.count(b"HTTP/1.1 200") == 3, found
                assert b'"text"' in found
        with connect(server) as sock:
            sock.sendall(b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n" + HEALTH)
            assert said(sock).startswith(b"HTTP/1.1 400")


_EXPECT = b"Expect: 100-continue\r\n"
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def test_who_expects_to_be_told_to_go_on_is_told_and_answered() -> None:
    """As curl does by itself for bodies above 1 MB: it sends the body when it is told to."""
    head, _, body = post(asked(), _EXPECT).partition(b"\r\n\r\n")
    with running(max_body_bytes=1 << 20) as server, connect(server) as sock:
        for _ in range(2):
            sock.sendall(head + b"\r\n\r\n")
            assert sock.recv(1 << 16) == _CONTINUE
            sock.sendall(body + HEALTH[:-2] + _EXPECT + b"\r\n")
            found = b""
            while not found.endswith(b'{"status":"ok"}'):
                found += sock.recv(1 << 16)
            assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"200"] * 2  # GET: nothing to go on
        sock.sendall(post(b" " * (2 << 20), _EXPECT)[:200])
        assert said(sock).startswith(b"HTTP/1.1 413")


def test_who_does_not_wait_to_be_told_to_go_on_is_answered_too() -> None:
    with running() as server, connect(server) as sock:
        sock.sendall(post(asked(), _EXPECT) * 3 + HEALTH)
        found = said(sock, 7)
        assert found.replace(_CONTINUE, b"").count(b"HTTP/1.1 200") == 4, found


def test_a_body_that_goes_on_after_its_answer_is_cut_off() -> None:
    with running(max_body_bytes=1 << 20, body_s=60) as server, connect(server) as sock:
        sock.sendall(HEALTH[:-2] + b"Content-Length: 1000000000\r\n\r\n")
        sent = 0
        with suppress(ConnectionError):
            while sent < 200 << 20:
                sent += sock.send(b" " * (1 << 16))
        assert sent < 100 << 20
        assert server.http.get("/health").status_code == 200


def test_a_body_that_comes_byte_by_byte_is_read_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads, read = count(), Connection.data_received

    def counted(self: Connection, data: bytes) -> None:
        next(reads)
        read(self, data)

    monkeypatch.setattr(Connection, "data_received", counted)
    with running() as server, connect(server) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request = post(b" " * 3000 + asked())
        begin_s = perf_counter()
        for i in range(len(request)):
            sock.sendall(request[i : i + 1])
            if i % 10 == 0:
                sleep(0.001)
        assert said(sock, 1).startswith(b"HTTP/1.1 200")
        assert next(reads) < 100 + (perf_counter() - begin_s) / 0.05

"""Nothing that a client sends stops the server: what it may send, and how long it may take."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from select import select
from threading import Event, Thread, current_thread
from time import perf_counter, sleep, thread_time
from typing import Any

import httpx
import pytest
from fakes.decoding import Letters
from fakes.schemas import explosive
from fakes.server import MODEL, Running, Slowed, engine_on_tables, running, until
from hypothesis import given, settings
from hypothesis import strategies as st
from stress.grammar_shapes import SHAPES, chain

from duodec.backends.grammar.library import Words
from duodec.backends.grammar.llguidance import Masks
from duodec.backends.grammar.trial import GrammarTrial
from duodec.core.sampling.grammar import Grammar
from duodec.core.sampling.parameters import fields_of
from duodec.errors import BadOption
from duodec.machine.cores import CoreSharing
from duodec.server import service
from duodec.server.api.bodies import Body
from duodec.server.api.formats import gbnf, text
from duodec.server.api.tools.chat_format import ChatFormat
from duodec.server.http import connections, intake, json_limits
from duodec.server.http.connections import allow_open_files
from duodec.server.metrics import Watchdog
from duodec.server.settings import Settings
from duodec.testing import TableTarget

CHAT, HI = "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}
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
                sleep(0.002)  # or the system takes all before the server reads any
            pytest.fail("it took 4 MB")


_POST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
)


@pytest.mark.parametrize(
    "sent", [b"\x00\xff\n\n", _POST + b"ZZ\r\n{}\r\n", _POST + b"2\r\n{}\r\nQQ\r\n"]
)
def test_bytes_that_are_no_http_are_refused_in_openais_shape(sent: bytes) -> None:
    with running() as server, connect(server) as sock:
        sock.sendall(sent)
        assert error_of(answer(sock), 400)["code"] == "invalid_http"


def test_a_request_before_bytes_that_are_no_http_has_its_answer() -> None:
    with running() as server, connect(server) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n\x00garbage\r\n\r\n")
        said = answer(sock)  # until the server closes
    assert said.startswith(b"HTTP/1.1 200")
    assert said.count(b"HTTP/1.1") == 1


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


@pytest.mark.slow
def test_bodies_have_a_time() -> None:
    with running(body_s=0.2) as server:
        for path in (b"/v1/completions", b"/v1/nothing"):
            with connect(server) as sock:
                sock.sendall(b"POST %s HTTP/1.1\r\nContent-Length: 100\r\n\r\n{" % path)
                said = answer(sock)
            assert b"408" in said[:20] or b"404" in said[:20]
        assert server.chat(max_tokens=3).status_code == 200


_CHUNKED, _SIZED = b"Transfer-Encoding: chunked\r\n", b"Content-Length: 100000\r\n"
_CLOSE = b"Connection: close\r\n"
_PART = b"64\r\n" + b"x" * 100 + b"\r\n"


_REFUSED = (
    (_CHUNKED, b"", 413),
    (_CHUNKED + _CLOSE, b"", 413),
    (_SIZED, b"", 413),
    (_SIZED + _CLOSE, b"", 413),
    (_SIZED + b"Authorization: Bearer wrong\r\n" + _CLOSE, b"", 401),
    (_CHUNKED + b"Host: two\r\n" + _CLOSE, b"", 400),
    (_CHUNKED, b"ZZ\r\n", 400),
    (_CHUNKED, b"1\r\n \r\n" * 20_000, 400),
    (_CHUNKED + b"X: " + b"a" * 5000 + b"\r\n", b"", 431),
    (_CHUNKED + b"a: b\r\n" * 101, b"", 431),
)


def test_who_is_refused_while_sending_may_send_on_and_is_told() -> None:
    """Closed with bytes on their way, a connection is reset, and its response may be lost."""
    limits = {"max_body_bytes": 1000, "max_header_bytes": 4096, "api_keys": ("right",)}
    with running(**limits) as server:
        for head, body, status in _REFUSED:
            key = b"" if b"Authorization" in head else b"Authorization: Bearer right\r\n"
            with connect(server) as sock:
                sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + key + head)
                sock.sendall(b"\r\n" + body)
                while not select([sock], [], [], 0.001)[0]:  # until the server has said its word
                    sock.sendall(_PART)
                for _ in range(100):
                    sock.sendall(_PART)
                    sleep(0.0005)  # a reset comes before the last
                sock.shutdown(socket.SHUT_WR)
                error_of(answer(sock), status)
        assert server.http.get("/health").status_code == 200


def test_who_never_ends_though_it_is_refused_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "LINGER_S", 0.1)

    def send_on(sock: socket.socket) -> None:
        while True:
            sock.sendall(_PART)
            sleep(0.001)

    with running(max_body_bytes=1000, max_connections=2) as server, ExitStack() as stack:
        for _ in range(3):  # who lingers keeps nobody out
            sock = stack.enter_context(connect(server))
            sock.sendall(_POST.replace(_CHUNKED, _CHUNKED + _CLOSE) + _PART * 20)
            error_of(answer(sock), 413)
        with pytest.raises(ConnectionError):
            send_on(sock)
        assert server.http.get("/health").status_code == 200


def test_connections_that_wait_keep_nobody_out() -> None:
    with running(max_connections=20, header_s=60) as server, ExitStack() as stack:
        for _ in range(200):
            sock = stack.enter_context(connect(server))
            sock.sendall(b"POST /v1/completions HTTP/1.1\r\nX: ")
        assert server.http.get("/health").status_code == 200
        assert server.chat(max_tokens=3).status_code == 200
        assert len(server.server.server_state.connections) <= 20


@pytest.mark.slow
def test_a_thousand_slow_clients_keep_nobody_out() -> None:
    """By default 512 connections may be open; the others send a byte of a header now and then."""
    with running() as server, ExitStack() as stack:
        allow_open_files(1000 + server.service.settings.max_connections)
        lorises = [stack.enter_context(connect(server)) for _ in range(1000)]
        for i in range(20):
            for loris in lorises:
                with suppress(OSError):  # those that made room
                    loris.sendall(b"POST / HTTP/1.1\r\nX: " if not i else b"a")
            begin_s = perf_counter()
            with connect(server) as sock:
                sock.sendall(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
                assert answer(sock).startswith(b"HTTP/1.1 200")
            assert perf_counter() - begin_s < 5
            assert server.chat(max_tokens=2).status_code == 200
        assert len(server.server.server_state.connections) <= 512


def test_connections_at_work_are_not_closed_for_others() -> None:
    engine = engine_on_tables(num_context=4000)
    target = Slowed(engine.loaded.target, 0.01)
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


# --- before the scheduler


@dataclass(frozen=True)
class SlowLetters(Letters):
    """Letters that take a while where there are many, as a tokenizer that cannot be interrupted."""

    seconds: float = 0.0
    num_free: int = 30  # letters that take no time
    seen: list[int] = field(default_factory=list)  # lengths of what was tokenised

    def tokenize(self, text: str, *, is_templated: bool) -> list[int]:
        self.seen.append(len(text))
        if len(text) > self.num_free:
            sleep(self.seconds)
        return super().tokenize(text, is_templated=is_templated)


LONG = "a" * 20_000  # a body that is not small


def test_prompts_that_cannot_fit_are_refused_before_they_are_tokenised() -> None:
    tokenizer = SlowLetters()
    with running(engine_on_tables(tokenizer=tokenizer)) as server:
        tokenizer.seen.clear()
        messages = [{"role": "user", "content": ""}] * 10_000
        for response in (server.chat(LONG), server.complete(LONG), server.complete([1] * 5000),
                         server.chat(messages=messages)):  # fmt: skip
            assert response.status_code == 400
            assert response.json()["error"]["code"] == "context_length_exceeded"
        assert tokenizer.seen == []
        assert server.chat(messages=messages * 10).status_code == 400


def test_prompts_that_a_long_token_could_hold_are_counted_in_parts() -> None:
    """60 KB of control tokens, of which a tokenizer makes each in time that grows with all."""

    class Blanks(SlowLetters):
        def piece(self, token: int) -> bytes:
            return b" " * 1000 if token == 0 else super().piece(token)

    tokenizer = Blanks()
    with running(engine_on_tables(tokenizer=tokenizer, num_context=1000)) as server:
        tokenizer.seen.clear()
        response = server.chat("b" * 60_000)
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert 0 < max(tokenizer.seen) <= 8192
        assert len(tokenizer.seen) < 3
        tokenizer.seen.clear()
        response = server.chat("b" * 600_000)  # more than such a context could ever hold
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert tokenizer.seen == []


@pytest.mark.slow
def test_work_whose_clients_left_holds_nobody_up() -> None:
    tokenizer = SlowLetters(seconds=6.0)
    engine = engine_on_tables(tokenizer=tokenizer, num_context=100_000)
    with running(engine) as server:
        with ExitStack() as stack:
            for _ in range(40):
                sock = stack.enter_context(connect(server))
                body = json.dumps({"prompt": LONG, "max_tokens": 1}).encode()
                head = b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
                sock.sendall(head + body)
            until(lambda: len(tokenizer.seen) > 1)
            begin_s = perf_counter()
            assert server.chat("hi", max_tokens=2).status_code == 200
            assert perf_counter() - begin_s < 3
        until(lambda: server.service.intake.num_preparing == 0)
        assert len(tokenizer.seen) < 8


def test_what_takes_long_begins_after_a_forward_pass_on_all_cores() -> None:
    """A small request is prepared at once, and nothing waits for ever."""
    is_taken, begun = Event(), list[str]()
    is_taken.set()
    own = intake.Intake(Settings(MODEL), is_taken.is_set)

    async def run() -> None:
        calls = [own.compile(begun.append, "grammar"), own.run_quick(begun.append, "rules")]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await own.run(begun.append, "small")
        until(lambda: own.is_computing_long)  # so that the next forward pass leaves cores
        assert begun == ["small"]
        is_taken.clear()
        await asyncio.gather(*tasks)
        assert sorted(begun) == ["grammar", "rules", "small"]
        is_taken.set()
        await own.compile(begun.append, "at last")

    asyncio.run(run())
    assert begun[-1] == "at last"


@pytest.mark.parametrize("shares_cores", [True, False])
def test_a_target_on_a_device_takes_no_cores_from_what_takes_long(
    shares_cores: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_on_tables()
    engine.loaded = replace(engine.loaded, cores=CoreSharing(is_shared=shares_cores))
    with running(engine) as server:
        (model,) = server.service.models.loaded
        assert not model.computes_on_all_cores
        seen: list[bool] = []
        score = TableTarget.score

        def scored(self: TableTarget, queries: Any) -> Any:
            seen.append(server.service.intake._are_cores_taken())
            return score(self, queries)

        monkeypatch.setattr(TableTarget, "score", scored)
        assert server.chat("hi", speculation={"method": "ar"}).status_code == 200
        assert set(seen) == {shares_cores}
        assert not model.computes_on_all_cores


@pytest.mark.slow
@pytest.mark.parametrize("shares_cores", [True, False])
def test_a_target_leaves_cores_to_large_requests_that_are_prepared(shares_cores: bool) -> None:
    tokenizer = SlowLetters(seconds=4.0)
    engine = engine_on_tables(tokenizer=tokenizer, num_context=100_000)
    shared: list[bool] = []
    engine.loaded = replace(
        engine.loaded, cores=CoreSharing(is_shared=shares_cores, prepare=shared.append)
    )
    with running(engine) as server, ThreadPoolExecutor(1) as clients:
        shared.clear()
        text = server.chat("hi", speculation={"method": "ar"}).json()["choices"]
        assert True not in shared
        large = clients.submit(server.complete, LONG, max_tokens=1)
        until(lambda: server.service.intake.is_computing_long)
        assert server.chat("hi", speculation={"method": "ar"}).json()["choices"] == text
        assert server.service.intake.is_computing_long
        assert (True in shared) == shares_cores
        assert large.result().status_code == 200
        shared.clear()
        assert server.chat("hi", speculation={"method": "ar"}).json()["choices"] == text
        assert True not in shared


@pytest.mark.slow
def test_more_than_the_queue_holds_are_not_prepared() -> None:
    engine = engine_on_tables(tokenizer=SlowLetters(seconds=1.5), num_context=100_000)
    with (
        running(engine, num_slots=1, num_queued=3) as server,
        ThreadPoolExecutor(8) as clients,
    ):
        found = list(clients.map(lambda _: server.complete(LONG, max_tokens=1), range(8)))
        statuses = sorted(response.status_code for response in found)
        assert statuses == [200] * 4 + [429] * 4
        assert all(r.headers["retry-after"] for r in found if r.status_code == 429)


def _unfinished(size: int, left: int = 1) -> bytes:
    """A request of a body of so many bytes, without its last ones."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    return head % size + b" " * (size - left)


def test_bodies_that_do_not_end_make_room_for_others() -> None:
    size = 1 << 20
    with running(max_body_bytes=size, body_s=60) as server, ExitStack() as stack:
        budget = server.service.intake.bodies
        sockets = [stack.enter_context(connect(server)) for _ in range(24)]
        for sock in sockets:
            sock.sendall(_unfinished(size))
        until(lambda: budget.num_bytes > 15 * size)
        told = error_of(answer(sockets[0]), 429)
        assert told["code"] == "server_busy"
        large = {"prompt": "hi" + " " * (size // 2), "max_tokens": 1}
        assert server.post("/v1/chat/completions", large).status_code == 400  # and not 429
        assert server.complete("hi", max_tokens=1).status_code == 200
        assert 0 < budget.num_bytes <= budget.most_bytes == 16 * size
    until(lambda: budget.num_bytes == 0)


def test_who_finishes_a_large_body_in_time_is_answered() -> None:
    size = 100_000
    data = json.dumps({"prompt": "hi", "max_tokens": 1}).encode()
    with running(max_body_bytes=size) as server, ExitStack() as stack:
        sockets = [stack.enter_context(connect(server)) for _ in range(20)]
        for sock in sockets:
            sock.sendall(_unfinished(size, len(data)))
            sleep(0.02)
        for sock in sockets[-10:]:
            sock.sendall(data)
            assert b"200 OK" in sock.recv(1 << 16)
        assert error_of(answer(sockets[0]), 429)["code"] == "server_busy"


def test_small_bodies_have_room_whoever_sends_large_ones() -> None:
    with running(max_body_bytes=1 << 16) as server, ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(connect(server)).sendall(_unfinished(1 << 16))
        assert server.complete("hi", max_tokens=1).status_code == 200
        assert server.service.intake.bodies.num_bytes == 0


def test_a_request_that_was_begun_goes_on_before_others_begin() -> None:
    """What was parsed takes many times as much memory as its text."""
    made: list[str] = []
    workers = intake.Workers("test", 1)

    async def request(name: str) -> None:
        for step in range(3):
            await workers.run(lambda step=step: (sleep(0.05), made.append(f"{name}{step}")))

    async def all_requests() -> None:
        await asyncio.gather(*map(request, "abc"))

    asyncio.run(all_requests())
    assert made.index("c0") > made.index("a1")
    assert sorted(made) == [f"{name}{step}" for name in "abc" for step in range(3)]


def test_the_time_of_a_request_begins_when_its_body_has_come() -> None:
    engine = engine_on_tables(tokenizer=SlowLetters(seconds=8.0), num_context=100_000)
    with running(engine, timeout_s=0.3) as server:
        begin_s = perf_counter()
        response = server.complete(LONG)
        assert (response.status_code, response.json()["error"]["code"]) == (408, "timeout")
        assert perf_counter() - begin_s < 7


def test_the_end_does_not_wait_for_what_cannot_be_interrupted() -> None:
    engine = engine_on_tables(tokenizer=SlowLetters(seconds=30.0), num_context=100_000)
    with running(engine, grace_s=0.2) as server, connect(server) as sock:
        body = json.dumps({"prompt": LONG}).encode()
        sock.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body))
        sock.sendall(body)
        until(lambda: server.service.intake.is_busy)
        begin_s = perf_counter()
        server.server.should_exit = True
        assert error_of(answer(sock), 503)["code"] == "unavailable"
    assert perf_counter() - begin_s < 10


def test_what_a_template_makes_of_a_few_words_is_bounded() -> None:
    lengths: list[int] = []

    class Counting(Letters):
        def tokenize(self, text: str, *, is_templated: bool) -> list[int]:
            lengths.append(len(text))
            return super().tokenize(text, is_templated=is_templated)

    many = "{% for i in range(9999) %}{{ messages[0].content }}{% endfor %}"
    engine = engine_on_tables(tokenizer=Counting(chat_template=many))
    with running(engine) as server:
        lengths.clear()
        response = server.chat("a" * 300)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert sum(lengths) < 100_000


# --- grammars


def test_a_schema_that_explodes_is_refused_and_holds_nobody_up() -> None:
    engine = engine_on_tables(tokenizer=Letters(ends=True))
    engine.grammars.trial = GrammarTrial(num_bytes=64 << 20)
    with (
        running(engine) as server,
        ThreadPoolExecutor(4) as clients,
    ):
        attacks = [
            clients.submit(server.chat, structured_outputs={"json": explosive(24 + i)})
            for i in range(2)
        ]
        assert server.chat(structured_outputs={"regex": "ab+"}, max_tokens=3).status_code == 200
        for attack in attacks:
            response = attack.result()
            assert response.status_code == 400
            assert "to compile" in response.json()["error"]["message"]


@pytest.mark.slow
def test_a_schema_that_hides_another_holds_nobody_up() -> None:
    """Names that look like control tokens: what is compiled is what was tried."""
    engine = engine_on_tables(tokenizer=Letters(ends=True))
    engine.grammars.trial = GrammarTrial(seconds=1.0)
    slow = {"type": "array", "items": explosive()}
    hidden = {"type": "object", "properties": {"<[0]>": slow, "<[1]>": True}}
    with running(engine) as server, ThreadPoolExecutor(4) as clients:
        attacks = [
            clients.submit(server.chat, structured_outputs={"json": {**hidden, "title": str(i)}})
            for i in range(3)
        ]
        for _ in range(3):
            begin_s = perf_counter()
            assert server.chat(max_tokens=3).status_code == 200
            assert perf_counter() - begin_s < 5
        for attack in attacks:
            assert attack.result().status_code == 400


@pytest.mark.slow
def test_grammars_that_others_use_leave_no_memory_for_one_more() -> None:
    letters = Letters(ends=True)
    engine = engine_on_tables(tokenizer=letters)
    engine.grammars.masks = Masks(letters, 1)
    target = Slowed(engine.loaded.target, 0.2)
    with running(engine, target, num_slots=2) as server, ThreadPoolExecutor(1) as clients:
        long = {"structured_outputs": {"regex": "[a-z]{30}"}, "max_tokens": 30}
        first = clients.submit(server.chat, **long)
        until(lambda: server.service.models.get(MODEL).scheduler.num_running > 0)
        other = {"structured_outputs": {"regex": "b+"}, "max_tokens": 2}
        assert error_of_response(server.chat(**other)) == (429, "server_busy")
        assert server.chat(max_tokens=2).status_code == 200, "without a grammar it is served"
        assert first.result().status_code == 200
        gc.disable()  # what ended is free at once
        try:
            until(lambda: server.chat(**other).status_code == 200, 3.0)
        finally:
            gc.enable()


def error_of_response(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_who_brings_a_known_or_a_quick_grammar_waits_for_nobodys_new_one() -> None:
    engine = engine_on_tables(tokenizer=Letters(ends=True))
    tried, may_end = list[Grammar](), Event()

    class Holding(GrammarTrial):
        def is_quick(self, grammar: Grammar, words: Words) -> bool:
            return grammar.source != "a+"

        def __call__(self, grammar: Grammar, words: Words) -> int:
            if grammar.source == "a+":
                tried.append(grammar)
                may_end.wait(30)
            return 1

    engine.grammars.trial = Holding()
    with running(engine) as server, ThreadPoolExecutor(3) as clients:
        known = {"structured_outputs": {"regex": "ab+"}, "max_tokens": 3}
        assert server.chat(**known).status_code == 200
        try:
            for _ in range(3):
                clients.submit(server.chat, structured_outputs={"regex": "a+"}, max_tokens=3)
            until(lambda: len(tried) == 2)  # every thread that compiles what takes long
            assert server.chat(**known).status_code == 200
            new = {"structured_outputs": {"regex": "(a|b)c"}, "max_tokens": 3}
            assert server.chat(**new).status_code == 200, "a quick one waits for none of them"
        finally:
            may_end.set()


WORDS = Masks(Letters(ends=True)).words


def test_a_schema_that_takes_too_long_is_refused() -> None:
    trial = GrammarTrial(0.05, 1 << 30)
    grammar = Grammar("json_schema", json.dumps(explosive()))
    for _ in range(2):
        with pytest.raises(BadOption, match=r"longer than 0\.05 s"):
            trial(grammar, WORDS)
    GrammarTrial(5.0, 256 << 20)(Grammar("json_schema", '{"type": "integer"}'), WORDS)


def test_a_glance_tells_quick_grammars_from_slow_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = GrammarTrial()
    slow, wrong = Grammar("json_schema", json.dumps(explosive())), Grammar("regex", "(")
    assert not trial.is_quick(slow, WORDS)
    assert trial.is_quick(Grammar("regex", "ab+"), WORDS)
    assert trial.is_quick(wrong, WORDS)
    monkeypatch.setattr(trial, "ended", lambda *arguments: pytest.fail("it is known"))
    trial(Grammar("regex", "ab+"), WORDS)
    with pytest.raises(BadOption):
        trial(wrong, WORDS)


LARGE = "a" * (3 << 20)
LARGE_SCHEMA = json.dumps({"enum": [LARGE]})
LARGE_FIELDS: list[dict[str, Any]] = [
    {"structured_outputs": {"regex": LARGE}},
    {"structured_outputs": {"grammar": f'root ::= "{LARGE}"'}},
    {"structured_outputs": {"grammar": f'start: "{LARGE}"'}},
    {"structured_outputs": {"choice": [LARGE]}},
    {"structured_outputs": {"choice": ["a" * 20] * 20_000}},
    {"structured_outputs": {"json": LARGE_SCHEMA}},
    {"guided_regex": LARGE},
    {"guided_choice": [LARGE]},
    {"guided_grammar": LARGE},
    {"guided_json": LARGE_SCHEMA},
    {"grammar": chain(1 << 20)},
    {"json_schema": LARGE_SCHEMA},
]


def test_grammars_are_measured_before_anything_is_made_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("in_lark", "parse", "_escaped"):
        monkeypatch.setattr(text, name, lambda value: pytest.fail("it is read"))
    with running() as server:
        for fields in LARGE_FIELDS:
            for path, prompt in (("/v1/completions", {"prompt": "hi"}), (CHAT, HI)):
                response = server.post(path, {**prompt, "max_tokens": 1, **fields})
                assert response.status_code == 400
                error = response.json()["error"]
                assert "KB and 256 KB is the most" in error["message"]
                assert len(error["message"]) < 200


@pytest.mark.parametrize("shape", SHAPES)
def test_the_time_of_a_check_is_linear(shape: str) -> None:
    """Rules of eight times the size: eight times the time, 64 times it where it is quadratic."""

    def taken_s(size: int) -> float:
        rules, begin_s = SHAPES[shape](size), thread_time()
        with suppress(ValueError):
            gbnf.in_lark(rules)
        return thread_time() - begin_s

    large = min(taken_s(1 << 17) for _ in range(2))
    assert large < 24 * max(0.005, min(taken_s(1 << 14) for _ in range(3)))


@pytest.mark.parametrize("rules", ["root ::= " + "a" * 200_000, "a" * 200_000,
                                   'root ::= "a"{' + " " * 200_000 + "9999}"])  # fmt: skip
def test_what_is_wrong_with_rules_is_told_in_a_line(rules: str) -> None:
    with running() as server:
        response = server.chat("hi", structured_outputs={"grammar": f"{rules}\nx ::="})
        assert response.status_code == 400
        assert len(response.json()["error"]["message"]) < 1000


@pytest.mark.slow
def test_grammars_of_each_shape_and_size_are_refused_or_served() -> None:
    with running() as server:
        for shape, size in product(SHAPES.values(), (1 << 14, 1 << 18)):
            fields = {"structured_outputs": {"grammar": shape(size)}, "max_tokens": 1}
            assert server.chat("hi", **fields).status_code in (200, 400)


def test_a_grammar_is_compiled_outside_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = Masks(Letters(ends=True))
    begun, may_end = Event(), Event()
    compiled = Masks.compile

    def wait(self: Masks, grammar: Grammar) -> Any:
        if grammar.source == "a+":
            begun.set()
            may_end.wait(20)
        return compiled(self, grammar)

    monkeypatch.setattr(Masks, "compile", wait)
    slow = Thread(target=masks.mask, args=(Grammar("regex", "a+"),))
    slow.start()
    try:
        assert begun.wait(20)
        other = Thread(target=masks.mask, args=(Grammar("regex", "b+"),))
        other.start()
        other.join(5)
        assert not other.is_alive()
    finally:
        may_end.set()
        slow.join()


# --- the event loop


def test_any_thread_may_ask_whether_workers_are_busy() -> None:
    """As the scheduler does before each forward pass, while calls begin and end."""
    workers = intake.Workers("test", 2)
    faults: list[BaseException] = []
    is_over = Event()

    def ask() -> None:
        try:
            while not is_over.is_set():
                assert workers.is_busy in (True, False)
        except BaseException as error:  # noqa: BLE001  shown below
            faults.append(error)

    async def call() -> None:
        for _ in range(40):
            await asyncio.gather(*(workers.run(int) for _ in range(100)))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    asking = Thread(target=ask)
    asking.start()
    try:
        asyncio.run(call())
    finally:
        sys.setswitchinterval(before)
        is_over.set()
        asking.join()
    assert not faults


def test_bodies_are_parsed_rendered_and_understood_in_other_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: dict[str, set[str]] = {}

    def watched(owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            threads.setdefault(name, set()).add(current_thread().name)
            return plain(*args, **options)

        monkeypatch.setattr(owner, name, call)

    watched(json_limits, "parse")
    watched(service, "validated")
    watched(ChatFormat, "prompt")
    watched(ChatFormat, "grammar")
    watched(service, "expected_of")
    watched(service, "text_grammar")
    watched(Body, "sampling")
    with running() as server:
        assert server.chat("hi", max_tokens=2).status_code == 200
        assert server.chat("b" * 20_000, max_tokens=2).status_code == 400
        for path in ("/v1/completions", "/api/generate"):
            assert server.post(path, {"prompt": "hi", "raw": True} if "api" in path else
                               {"prompt": "hi", "max_tokens": 2}).status_code == 200  # fmt: skip
    assert set(threads) == {
        "parse", "validated", "prompt", "grammar", "expected_of", "text_grammar", "sampling",
    }  # fmt: skip
    assert all(name.startswith("duodec-prepare") for name in set().union(*threads.values()))


def test_the_delay_of_the_event_loop_is_on_metrics() -> None:
    with running() as server:
        server.service.meters.watchdog.note(3.5)
        assert server.counter("duodec:event_loop_delay_max_seconds") >= 3.5
        until(lambda: server.counter("duodec:event_loop_delay_seconds_count") > 2)


def test_the_longest_delay_is_that_of_the_last_minute() -> None:
    now_s, seen = [0.0], list[float]()
    watchdog = Watchdog(seen.append, lambda: now_s[0])
    assert watchdog.longest_s == 0
    for second, delay_s in ((0, 0.5), (10, 0.2), (20, 0.3), (30, 0.1)):
        now_s[0] = second
        watchdog.note(delay_s)
    assert seen == [0.5, 0.2, 0.3, 0.1]
    found = dict.fromkeys((59, 61, 81, 91), 0.0)
    for second in found:
        now_s[0] = second
        found[second] = watchdog.longest_s
    assert found == {59: 0.5, 61: 0.3, 81: 0.1, 91: 0.0}


# --- values


def called_with(arguments: str) -> list[dict[str, Any]]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [{"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "x"}]


def test_values_that_are_nested_too_deeply_are_the_clients_fault() -> None:
    deep: Any = {}
    for _ in range(150):
        deep = {"properties": {"a": deep}}
    with running() as server:
        for response in (
            server.chat(messages=called_with("[" * 100_000)),
            server.chat(messages=called_with("[" * 150 + "]" * 150)),
            server.chat(structured_outputs={"json": deep}),
            server.chat(structured_outputs={"json": "[" * 100_000}),
            server.chat(metadata=deep),
        ):
            assert response.status_code == 400, response.text
            assert "nested too deeply" in response.json()["error"]["message"]
        assert server.chat(messages=called_with("[[1]]")).status_code == 200


def test_bodies_of_very_many_values_are_refused() -> None:
    with running() as server:
        many = b",".join([b"1"] * 400_000)
        for value, words in (
            (b"[" + many + b"]", "more than 300000 values"),
            (b"[" + b"[]," * 60_000 + b"0]", "more than 50000 fields, arrays and objects"),
            (b'{"logit_bias": {' + b'"1":1,' * 60_000 + b'"2":1}}', "more than 50000 fields"),
            (b"9" * 5000, "(a whole number has more than 4300 digits)"),
        ):
            data = b'{"x": ' + value + b"}"
            response = server.http.post("/v1/completions", content=data)
            assert response.status_code == 400
            assert words in response.json()["error"]["message"]
        text = json.dumps({"prompt": "hi", "user": '[],{}"\\' * 200_000, "max_tokens": 1}).encode()
        assert server.http.post("/v1/completions", content=text).status_code == 200


@settings(max_examples=200, deadline=None)
@given(st.recursive(st.none() | st.text('a",[]{}\\\\\n', max_size=6), lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(st.text('"[\\', max_size=3), inner, max_size=3)
), max_leaves=20))  # fmt: skip
def test_depth_and_number_are_counted_outside_of_texts(value: Any) -> None:
    def depth(item: Any) -> int:
        inner = item.values() if isinstance(item, dict) else item
        return 1 + max(map(depth, inner), default=0) if isinstance(item, dict | list) else 0

    data = json.dumps(value).encode()
    assert json_limits.parse(data) == value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_limits, "PART_BYTES", 3)
        patch.setattr(json_limits, "MAX_DEPTH", depth(value))
        json_limits.parse(data)
        patch.setattr(json_limits, "MAX_DEPTH", depth(value) - 1)
        if depth(value):
            with pytest.raises(ValueError, match="deeply"):
                json_limits.parse(data)


def test_a_bias_has_so_many_tokens_at_most() -> None:
    with running() as server:
        response = server.chat(logit_bias={str(i): 1 for i in range(1025)})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "logit_bias"


_SAID = [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a", "stop": ...}),
        ("/v1/responses", {"input": "a", "stop": ...}),
        ("/v1/messages", {"messages": _SAID, "max_tokens": 9, "stop_sequences": ...}),
        ("/api/generate", {"prompt": "a", "stream": False, "options": {"stop": ...}}),
    ],
)
def test_a_stop_text_has_so_many_characters_at_most(path: str, body: dict[str, Any]) -> None:
    written = json.dumps(body, default=lambda _: ["x", "STOP"])
    with running() as server:
        for length, status in ((1024, 200), (1025, 400)):
            response = server.http.post(path, content=written.replace("STOP", "z" * length))
            assert response.status_code == status, response.text
    assert "1025 characters" in response.text


@pytest.mark.parametrize("key", ["schlüssel", "a b", "a\n", ""])
def test_keys_that_no_client_can_send_are_refused_at_the_start(key: str) -> None:
    with pytest.raises(BadOption, match="API key"):
        Settings("m", api_keys=("good", key))


def test_every_limit_is_in_the_table_of_the_docs_with_its_default() -> None:
    table = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    units = {"": 1, "s": 1, "MiB": 1 << 20}
    for name, found in fields_of(Settings).items():
        if found.parameter.panel == "Limits":
            row = re.search(rf"^\| `{found.flags[0]}` \| ([\d,]+) ?(\w*) \|", table, re.MULTILINE)
            assert row, f"{found.flags[0]} is not there"
            assert float(row[1].replace(",", "")) * units[row[2]] == getattr(Settings(), name), name

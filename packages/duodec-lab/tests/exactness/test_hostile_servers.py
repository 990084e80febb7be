"""`duodec verify` trusts nothing that a server sends: bytes, time, depth, shapes."""

from __future__ import annotations

import json
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import repeat
from threading import Event, Thread
from time import perf_counter
from typing import Any

import pytest

from duodec.cli.app import run
from duodec.server.http import limited_http
from duodec_lab.exactness import checks, endpoint
from duodec_lab.exactness.endpoint import Call, Case, Endpoint, Reply, Trouble, opened
from duodec_lab.exactness.judging import WRONG, Response, _last_blank

CASE = Case("case", "completions", {"prompt": "P", "max_tokens": 20})
MODELS = {"data": [{"id": "m"}]}
_DRIP_S = 0.02  # between two bytes


class Hostile:
    """A server that sends these parts whatever it is asked for, and then waits or closes."""

    def __init__(self, parts: Callable[[str], Iterator[bytes]]) -> None:
        self._parts = parts
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._is_over = Event()
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                Thread(target=self._answer, args=[client], daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            path = client.recv(1 << 16).split(b" ")[1].decode()
            for part in self._parts(path):
                client.sendall(part)
                if self._is_over.is_set():
                    return

    def wait(self, seconds: float) -> None:
        self._is_over.wait(seconds)

    def close(self) -> None:
        self._is_over.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@contextmanager
def hostile(parts: Callable[[str], Iterator[bytes]]) -> Iterator[Hostile]:
    server = Hostile(parts)
    try:
        yield server
    finally:
        server.close()


def head(*lines: str) -> bytes:
    return "\r\n".join(["HTTP/1.1 200 OK", *lines, "", ""]).encode()


def whole(body: bytes) -> bytes:
    return head(f"Content-Length: {len(body)}") + body


CLOSED, CHUNKED = head("Connection: close"), head("Transfer-Encoding: chunked")
ENDLESS: dict[str, tuple[bytes, bytes]] = {  # what comes first, and what comes again and again
    "body": (CLOSED, b" " * 65536),
    "chunks": (CHUNKED, b"10000\r\n" + b" " * 65536 + b"\r\n"),
    "chunk of negative length": (CHUNKED + b"-1\r\n", b" " * 65536),
    "line of a stream": (CLOSED + b"data: ", b"x" * 65536),
    "events": (CLOSED, b'data: {"choices":[{"text":"%s"}]}\n\n' % (b"x" * 500) * 100),
    "trailers": (CHUNKED + b"0\r\n", b"a: b\r\n" * 10_000),
    "headers before the response": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 2000),
    "refusal": (b"HTTP/1.1 400 Bad\r\nConnection: close\r\n\r\n", b"x" * 65536),
}


@pytest.mark.parametrize("kind", ENDLESS)
@pytest.mark.parametrize("method", ["send", "stream"])
def test_what_does_not_end_is_ended(
    kind: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limited_http, "MOST_BYTES", 1 << 18)
    first, more = ENDLESS[kind]
    with hostile(lambda path: iter([first, *[more] * 3000])) as server:
        end = Endpoint("A", server.url, "m")
        tracemalloc.start()
        begin_s = perf_counter()
        try:
            with pytest.raises(Trouble) as trouble:
                getattr(end, method)(CASE, 10.0)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert perf_counter() - begin_s < 9.0
    assert most < 16 << 20
    words = str(trouble.value)
    assert "status 400" in words if kind == "refusal" else words, words
    assert len(words) < 500


DRIPS = {
    "status line": b"HTTP/1.1 200 " + b"x" * 10_000,
    "headers": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10_000,
    "body": head("Content-Length: 10000") + b" " * 10_000,
    "stream": CLOSED + b": ping\n\n" * 1000,
}


@pytest.mark.parametrize("kind", DRIPS)
@pytest.mark.parametrize("method", ["send", "stream"])
def test_bytes_that_drip_do_not_prolong_a_request(kind: str, method: str) -> None:
    def parts(path: str) -> Iterator[bytes]:
        for byte in DRIPS[kind]:
            yield bytes([byte])
            server.wait(_DRIP_S)

    with hostile(parts) as server:
        begin_s = perf_counter()
        with pytest.raises(Trouble, match="no response in time"):
            getattr(Endpoint("A", server.url, "m"), method)(CASE, 0.5)
        assert perf_counter() - begin_s < 2.0


def of_chat(message: Any, **fields: Any) -> Any:
    return {"choices": [{"message": message, **fields}]}


def call(arguments: Any, name: Any = "get_weather") -> Any:
    return {"content": None, "tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


DEEP = "[" * 100_000 + "]" * 100_000
SHAPES: dict[str, Any] = {
    "deep": f'{{"choices": {DEEP}}}',
    "no object": "[]",
    "no choices": '{"choices": []}',
    "text that is none": json.dumps(of_chat({"content": [1]})),
    "arguments that are none": json.dumps(of_chat(call({"city": "Oslo"}))),
    "a name that is none": json.dumps(of_chat(call("{}", 7))),
    "logprobs that are none": json.dumps(of_chat({"content": "x"}, logprobs={"content": [
        {"token": "x", "logprob": "high", "top_logprobs": []}]})),
    "tokens that are none": json.dumps(of_chat({"content": "x"}, logprobs={"content": [
        {"token": 5, "logprob": -1, "top_logprobs": []}]})),
    "numbers that are none": '{"choices": [{"text": "x", "logprobs": {"tokens": ["x"], '
    '"token_logprobs": [NaN], "top_logprobs": [{}]}}]}',
    "a number too large": json.dumps(of_chat({"content": "x"}, logprobs={"content": [
        {"token": "x", "logprob": 10**400, "top_logprobs": []}]})),
    "no UTF-8": b"\xff\xfe",
}  # fmt: skip


@pytest.mark.parametrize("kind", SHAPES)
def test_other_shapes_are_one_line(kind: str) -> None:
    shape = SHAPES[kind]
    data = shape if isinstance(shape, bytes) else shape.encode()
    with hostile(lambda path: iter([whole(data)])) as server, pytest.raises(Trouble) as trouble:
        Endpoint("A", server.url, "m").send(CASE, 10.0)
    assert "\n" not in str(trouble.value)
    assert len(str(trouble.value)) < 500


def events(*values: Any) -> bytes:
    lines = [value if isinstance(value, str) else json.dumps(value) for value in values]
    return CLOSED + "".join(f"data: {line}\n\n" for line in (*lines, "[DONE]")).encode()


def piece(**delta: Any) -> Any:
    return {"choices": [{"delta": delta}]}


@pytest.mark.parametrize(
    "event",
    [
        DEEP, 7, [], {"choices": 7}, {"choices": [7]}, piece(content=7), piece(tool_calls=7),
        piece(tool_calls=[{"index": "x"}]), piece(tool_calls=[{"index": [1]}]),
        piece(tool_calls=[{"index": 0, "function": {"arguments": {}}}]),
        {"choices": [{"delta": {}, "finish_reason": 7}]}, {"error": "\x1b[2J" * 10_000},
    ],
)  # fmt: skip
def test_other_shapes_of_events_are_one_line(event: Any) -> None:
    data = events(event)
    with hostile(lambda path: iter([data])) as server, pytest.raises(Trouble) as trouble:
        Endpoint("A", server.url, "m").stream(CASE, 10.0)
    assert str(trouble.value).isprintable()
    assert len(str(trouble.value)) < 500


def test_calls_of_any_number_take_the_memory_of_what_was_sent() -> None:
    part = {"index": 2_000_000_000, "function": {"name": "x", "arguments": "{}"}}
    data = events(piece(tool_calls=[part]), piece(tool_calls=[{**part, "index": 3}]))
    with hostile(lambda path: iter([data])) as server:
        tracemalloc.start()
        try:
            reply = Endpoint("A", server.url, "m").stream(CASE, 10.0)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert reply.calls == (Call("x", "{}"), Call("x", "{}"))
    assert most < 4 << 20


def test_arguments_that_are_nested_are_a_fault() -> None:
    for arguments in (DEEP, '{"city": ' + DEEP + "}"):
        reply = Reply("", (Call("get_weather", arguments),) * 1000)
        found = checks._valid(CASE, Response(Endpoint("A", "", "m"), "alone", reply), None)
        assert found.verdict == WRONG
        assert "nested too deeply" in found.words
        assert len(found.words) < 1000


def test_halves_of_characters_are_text_that_can_be_written() -> None:
    data = b'{"choices": [{"text": "\\ud800"}]}'
    with hostile(lambda path: iter([whole(data)])) as server:
        reply = Endpoint("A", server.url, "m").send(CASE, 10.0)
    assert reply.text.encode("utf-8")


@pytest.mark.parametrize(
    "models",
    [
        b"[" * 100_000, b'{"data": [{"id": ["x"]}]}', b'{"data": 7}', b"{}",
        json.dumps({"data": [{"id": f"\x1b[2J{i}"} for i in range(100_000)]}).encode(),
    ],
)  # fmt: skip
def test_a_list_of_models_is_one_line(models: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    with hostile(lambda path: iter([whole(models)])) as server:
        assert run(["verify", server.url, "--model", "other"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.strip().isprintable()
    assert len(error) < 1000


def test_a_list_of_models_that_does_not_come_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(endpoint, "CONNECT_S", 0.3)
    with hostile(lambda path: iter([head("Content-Length: 10000")])) as server:
        assert run(["verify", server.url]) == 2
        with hostile(lambda path: _dripped(server)) as dripping:
            assert run(["verify", dripping.url]) == 2
    assert capsys.readouterr().err.count("\n") == 2


def _dripped(server: Hostile) -> Iterator[bytes]:
    yield head("Content-Length: 10000")
    for byte in repeat(b" ", 1000):
        yield byte
        server.wait(_DRIP_S)


def test_an_audit_of_a_server_that_sends_anything_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever comes to each request in its turn."""
    bodies = [shape if isinstance(shape, bytes) else shape.encode() for shape in SHAPES.values()]
    number = iter(range(10**9))

    def parts(path: str) -> Iterator[bytes]:
        if path.endswith("/models"):
            yield whole(json.dumps(MODELS).encode())
        else:
            yield whole(bodies[next(number) % len(bodies)])

    with hostile(parts) as server:
        assert run(["verify", server.url, "--prompts", "2", "-n", "4", "--quiet"]) == 1
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    assert "failed" in told.out


def test_the_last_blank_is_found_in_linear_time() -> None:
    for text, place in (("the black", 3), ("the black ", 9), ("", 0), ("  ", 0), ("cat", 0)):
        assert _last_blank(text, len(text)) == place
    begin_s = perf_counter()
    _last_blank(" " * 300_000 + "x" + " " * 300_000 + "x", 600_001)
    assert perf_counter() - begin_s < 1.0


def test_a_sound_server_is_opened() -> None:
    with hostile(lambda path: iter([whole(json.dumps(MODELS).encode())])) as server:
        assert opened("A", server.url, None, None).model == "m"

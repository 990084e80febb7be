"""Send the server what nobody would send: no 500, no silence, every refusal in OpenAI's shape.

Structured bodies, of which any field may hold anything, go to the application in this process;
requests whose bytes were changed go to a server over sockets. The target is a table, so it is the
server that works.

    python -m benchmarks.fuzz_server --num-bodies 100000 --num-raw 10000

What a number stands for is made again with ``--first-seed`` and ``--num-bodies 1000``, or
``--first-raw`` and ``--num-raw 1``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import socket
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from hypothesis import HealthCheck, Phase, given, seed, settings

from benchmarks import RESULTS
from duodec.bench.card import environment
from duodec.server.app import make_app
from duodec.server.service import Service
from duodec.server.settings import Settings

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from fakes.bodies import bodies  # type: ignore[import-not-found]
from fakes.decoding import Letters  # type: ignore[import-not-found]
from fakes.server import (  # type: ignore[import-not-found]
    engine_on_tables,
    running,
    start,
)

_SLOW_S = 10.0  # after which a request is called hung
_PER_SEED = 1000
_FIELDS = {"message", "type", "param", "code"}
_CLEAN = {200, 204, 400, 401, 403, 404, 405, 408, 413, 429, 431}
_SERVER = {"header_s": 0.3, "body_s": 0.3, "idle_s": 0.3, "max_header_bytes": 8192}


@dataclass
class Findings:
    """What became of the requests of one kind."""

    name: str
    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    seconds: float = 0.0

    @property
    def num_requests(self) -> int:
        return sum(self.statuses.values())

    def note(self, which: str, status: str, problem: str, seconds: float) -> None:
        self.statuses[status] += 1
        self.slowest_s = max(self.slowest_s, seconds)
        if not problem and seconds > _SLOW_S:
            problem = f"took {seconds:.1f} s"
        if problem:
            self.failures.append(f"{which}: {problem}")
            print("FAILED", self.failures[-1], flush=True)

    def facts(self) -> dict[str, Any]:
        return {
            "num_requests": self.num_requests, "statuses": dict(sorted(self.statuses.items())),
            "slowest_s": round(self.slowest_s, 2), "seconds": round(self.seconds, 1),
            "failures": self.failures,
        }  # fmt: skip


def problem_of(status: int, body: bytes) -> str:
    """What is wrong with an answer, or ""."""
    if status not in _CLEAN:
        return f"{status} {body[:500]!r}"
    if body.startswith(b"data: "):
        chunks = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
        if chunks[-1] != b"[DONE]":
            return f"a stream ends with {chunks[-1]!r}"
        values = [json.loads(chunk) for chunk in chunks[:-1]]
    elif status < 300:
        return ""
    else:
        try:
            values = [json.loads(body)]
        except ValueError:
            return f"{status} with {body[:200]!r}"
    for value in values:
        error = value.get("error")
        if error is not None and (set(error) != _FIELDS or error["type"] == "server_error"):
            return f"{status} {error}"
        if status != 200 and error is None:
            return f"{status} without an error"
    return ""


# --- structured bodies


def fuzz_bodies(first_seed: int, number: int) -> Findings:
    """``number`` bodies, a thousand for each seed."""
    found = Findings("bodies")
    service = Service(Settings("tables", port=0, num_slots=8))
    start(service, engine_on_tables(tokenizer=Letters(), num_context=90))
    app = make_app(service)
    loop = asyncio.new_event_loop()
    begin_s = perf_counter()
    for number_of_seed in range(first_seed, first_seed + -(-number // _PER_SEED)):

        @seed(number_of_seed)
        @settings(
            max_examples=min(_PER_SEED, number), deadline=None, database=None,
            suppress_health_check=list(HealthCheck), phases=[Phase.generate],
        )  # fmt: skip
        @given(bodies)
        def run(request: tuple[str, dict[str, Any]]) -> None:
            path, body = request
            sent_s = perf_counter()
            try:
                status, answer = loop.run_until_complete(
                    asyncio.wait_for(_asked(app, path, json.dumps(body).encode()), 3 * _SLOW_S)
                )
                problem = problem_of(status, answer)
            except Exception as error:  # noqa: BLE001  it is what we look for
                status, problem = 0, repr(error)
            which = f"seed {found.num_requests // _PER_SEED}: {path} {json.dumps(body)[:2000]}"
            found.note(which, str(status), problem, perf_counter() - sent_s)

        run()
        print(f"seed {number_of_seed}: {found.num_requests} bodies", flush=True)
    found.seconds = perf_counter() - begin_s
    service.close()
    loop.close()
    return found


async def _asked(app: Callable[..., Any], path: str, body: bytes) -> tuple[int, bytes]:
    """What the application answers."""
    status, parts = 0, []
    has_sent = False

    async def receive() -> dict[str, Any]:
        nonlocal has_sent
        if has_sent:
            await asyncio.Event().wait()  # the client stays
        has_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "headers": [(b"host", b"localhost")], "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }  # fmt: skip
    await app(scope, receive, send)
    return status, b"".join(parts)


# --- bytes


def _requests() -> list[bytes]:
    """Sound ones, from which the others are made."""
    chat = json.dumps(
        {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "seed": 1}
    ).encode()
    stream = json.dumps({"prompt": "hello", "max_tokens": 3, "stream": True}).encode()
    head = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return [
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer x\r\n\r\n",
        b"OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n"
        b"Access-Control-Request-Method: POST\r\n\r\n",
        head % b"/v1/chat/completions" + b"Content-Length: %d\r\n\r\n" % len(chat) + chat,
        head % b"/v1/completions" + b"Content-Length: %d\r\n\r\n" % len(stream) + stream,
        head % b"/v1/completions" + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"%x\r\n%s\r\n0\r\n\r\n" % (len(stream), stream),
        head % b"/v1/completions" + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    ]  # fmt: skip


_WORDS = (
    b"\r\n", b"\n", b"\r", b"\x00", b" ", b":", b"\r\n\r\n", b"\xff" * 8, b"%00", b"..", b"//",
    b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n",
    b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n",
    b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: websocket\r\n", b"HTTP/1.0",
    b"HTTP/9.9", b"ffffffffffffffff\r\n", b"0\r\n\r\n", b"X: " + b"a" * 9000 + b"\r\n",
    b"a: b\r\n" * 200, b"{", b"[" * 200, b'"', b"\\", b"\\ud800", b"NaN", b"1e999", b"GET ",
)  # fmt: skip


def mutated(number: int) -> list[bytes]:
    """The request of this number, in the parts in which it is sent."""
    dice = random.Random(number)
    data = bytearray(dice.choice(_requests()))
    for _ in range(dice.choice((0, 1, 1, 2, 3, 8))):
        at = dice.randrange(len(data) + 1)
        size = dice.choice((0, 1, 1, 2, 16))
        change = dice.choice(("put", "flip", "drop", "double", "cut"))
        if change == "put":
            data[at : at + size] = dice.choice(_WORDS)
        elif change == "flip":
            data[at : at + 1] = bytes([dice.randrange(256)])
        elif change == "drop":
            del data[at : at + 4 * size]
        elif change == "double":
            data[at:at] = data[max(0, at - 40) :]
        else:
            del data[max(1, at) :]
    cuts = sorted(dice.randrange(len(data) + 1) for _ in range(dice.choice((0, 0, 1, 3))))
    return [bytes(data[a:b]) for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def fuzz_raw(first: int, number: int, *, num_clients: int = 16) -> Findings:
    """``number`` requests over sockets."""
    found = Findings("raw")
    engine = engine_on_tables(tokenizer=Letters(), num_context=90)
    begin_s = perf_counter()
    with (
        running(engine, num_slots=8, **_SERVER) as server,
        ThreadPoolExecutor(num_clients) as clients,
    ):
        host, _, port = server.url.removeprefix("http://").partition(":")

        def one(index: int) -> tuple[int, bytes, float]:
            sent_s = perf_counter()
            said = _said((host, int(port)), mutated(index))
            return index, said, perf_counter() - sent_s

        for index, said, seconds in clients.map(one, range(first, first + number)):
            statuses, problem = [], ""
            try:
                for status, body in answers(said):
                    statuses.append(str(status))
                    problem = problem or (problem_of(status, body) if status != 100 else "")
            except ValueError as error:
                problem = f"{error}: {said[:300]!r}"
            found.note(f"raw {index}", " ".join(statuses[:2]) or "closed", problem, seconds)
            if index % 1000 == 999:
                print(f"{index + 1 - first} raw requests", flush=True)
                assert server.http.get("/health").status_code == 200
        assert server.chat(max_tokens=3).status_code == 200
    found.seconds = perf_counter() - begin_s
    return found


def _said(address: tuple[str, int], parts: list[bytes]) -> bytes:
    """All that the server says to it until it closes the connection."""
    found = b""
    with socket.create_connection(address) as sock, suppress(ConnectionError):
        sock.settimeout(3 * _SLOW_S)
        for part in parts:
            sock.sendall(part)
        while more := sock.recv(1 << 16):
            found += more
    return found


def answers(said: bytes) -> Iterator[tuple[int, bytes]]:
    """The answers on a connection: status and body. Raises ValueError of what is none."""
    while said:
        head, end, rest = said.partition(b"\r\n\r\n")
        if not (head.startswith(b"HTTP/1.") and end):
            raise ValueError("no HTTP")
        status = int(head[9:12])
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if status in (100, 204):
            body, said = b"", rest
        elif fields.get(b"transfer-encoding") == b"chunked":
            body, said = _dechunked(rest)
        else:
            size = int(fields.get(b"content-length", len(rest)))
            body, said = rest[:size], rest[size:]
        yield status, body


def _dechunked(rest: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, end, rest = rest.partition(b"\r\n")
        if not end:
            raise ValueError("a chunk that does not begin")
        number = int(size, 16)
        body, rest = body + rest[:number], rest[number + 2 :]
        if not number:
            return body, rest


def main(
    num_bodies: Annotated[int, typer.Option()] = 100_000,
    first_seed: Annotated[int, typer.Option(help="Of a thousand bodies each.")] = 0,
    num_raw: Annotated[int, typer.Option()] = 10_000,
    first_raw: Annotated[int, typer.Option()] = 0,
    output: Annotated[str, typer.Option(help="Name of the results.")] = "fuzz_server",
) -> None:
    """Print what became of them; status 1 if anything is wrong."""
    warnings.simplefilter("ignore")
    logging.disable()  # thousands of lines
    parts = []
    if num_raw:
        parts.append(fuzz_raw(first_raw, num_raw))
    if num_bodies:
        parts.append(fuzz_bodies(first_seed, num_bodies))
    found = {
        "environment": environment(),
        "seeds": {"bodies": [first_seed, -(-num_bodies // _PER_SEED)],
                  "raw": [first_raw, num_raw]},
        **{part.name: part.facts() for part in parts},
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{output}.json").write_text(json.dumps(found, indent=1))
    print(json.dumps({part.name: part.facts() for part in parts}, indent=1))
    if any(part.failures for part in parts):
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)

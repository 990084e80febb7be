"""Send requests to a server with OpenAI's interface, through the standard library alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from duodec.errors import BadOption

_OURS = "duodec"  # who owns a model of our server
_NOT_SERVED = (400, 404, 405, 415, 422, 501)
_CONNECT_S = 20.0
NUM_TOPS = 5


@dataclass(frozen=True)
class Case:
    """A request that is sent in several ways, and always has the same text."""

    name: str
    path: str  # after /v1/
    body: Mapping[str, Any]

    def within(self, max_tokens: int) -> Case:
        """The same with a completion of at most so many tokens."""
        return Case(self.name, self.path, {**self.body, "max_tokens": max_tokens})


@dataclass(frozen=True)
class Step:
    """A token of a completion, and the likeliest tokens at its place with their logprobs."""

    text: str
    logprob: float
    tops: Mapping[str, float]


@dataclass(frozen=True)
class Call:
    """A call of a tool, as the server wrote it."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """A completion. Its text ends with the calls of tools, a line each."""

    text: str
    calls: tuple[Call, ...] = ()
    steps: tuple[Step, ...] = ()  # where logprobs were requested
    finish: str = ""  # why it ended


class Trouble(Exception):
    """No completion came. ``is_refusal``: the server says that it does not serve such a request."""

    def __init__(self, words: str, *, is_refusal: bool = False) -> None:
        super().__init__(words)
        self.is_refusal = is_refusal


@dataclass(frozen=True)
class Endpoint:
    """A model of a server. ``extra`` are fields that each of its requests has."""

    name: str  # in the report
    url: str  # without /v1
    model: str
    key: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    is_ours: bool = False

    def send(self, case: Case, timeout_s: float, **fields: Any) -> Reply:
        """The whole completion. Raises Trouble."""
        with self._response(case, timeout_s, fields) as response:
            found = _parsed(response.read())
        reply: Reply = _translated(lambda: _whole(found["choices"][0]))
        return reply

    def stream(
        self, case: Case, timeout_s: float, most_events: int | None = None, **fields: Any
    ) -> Reply:
        """The completion as a stream brings it. After ``most_events`` the client is gone: it closes
        the connection without another word. Raises Trouble."""
        text, finish, calls = "", "", list[dict[str, str]]()
        with self._response(case, timeout_s, {**fields, "stream": True}) as response:
            for number, event in enumerate(_events(response)):
                if number == most_events:
                    break
                if "error" in event:
                    raise Trouble(f"the stream ended with an error: {event['error']}")
                for choice in event.get("choices") or ():
                    text += _translated(partial(_add, choice, calls))
                    finish = choice.get("finish_reason") or finish
        return _reply(text, [Call(call["name"], call["arguments"]) for call in calls], (), finish)

    @contextmanager
    def _response(
        self, case: Case, timeout_s: float, fields: Mapping[str, Any]
    ) -> Iterator[HTTPResponse]:
        body = {"model": self.model, **case.body, **self.extra, **fields}
        with _connection(self.url, timeout_s) as connection:
            response = _request(
                connection, "POST", f"{_prefix(self.url)}/v1/{case.path}", self.key, body
            )
            try:
                yield response
            except (OSError, HTTPException) as error:
                raise Trouble(f"the connection broke ({error!r})") from error


def opened(
    name: str, url: str, key: str | None, model: str | None, extra: Mapping[str, Any] | None = None
) -> Endpoint:
    """The endpoint at an address; ``model`` None: the first that it lists. Raises BadOption."""
    base = url.rstrip("/").removesuffix("/v1")
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadOption(f"'{url}' is no address of a server; write http://HOST:PORT")
    try:
        with _connection(base, _CONNECT_S) as connection:
            found = _parsed(_request(connection, "GET", f"{_prefix(base)}/v1/models", key).read())
        listed = _translated(lambda: {m["id"]: m.get("owned_by") for m in found["data"]})
    except Trouble as error:
        raise BadOption(f"{url} does not list its models: {error}; is a server there?") from error
    chosen = model or next(iter(listed), None)
    if chosen is None or (model is not None and model not in listed):
        raise BadOption(f"{url} has no model '{model or ''}'; it lists: {', '.join(listed)}")
    return Endpoint(name, base, chosen, key, extra or {}, listed[chosen] == _OURS)


@contextmanager
def _connection(url: str, timeout_s: float) -> Iterator[HTTPConnection]:
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        yield connection
    finally:
        connection.close()


def _prefix(url: str) -> str:
    return urlsplit(url).path


def _request(
    connection: HTTPConnection, method: str, path: str, key: str | None,
    body: Mapping[str, Any] | None = None,
) -> HTTPResponse:  # fmt: skip
    """Raises Trouble."""
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    try:
        connection.request(method, path, json.dumps(body) if body else None, headers)
        response = connection.getresponse()
        if response.status == 200:
            return response
        words = response.read().decode("utf-8", "replace")
    except TimeoutError as error:
        raise Trouble("no response in time") from error
    except (OSError, HTTPException) as error:
        raise Trouble(f"it cannot be reached ({error!r})") from error
    raise Trouble(
        f"status {response.status}: {' '.join(words.split())[:300]}",
        is_refusal=response.status in _NOT_SERVED,
    )


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise Trouble(f"the response is no JSON: {data[:100]!r}") from error


def _translated(read: Callable[[], Any]) -> Any:
    """What is read from a response. Raises Trouble where it has another shape."""
    try:
        return read()
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise Trouble(f"the response has not OpenAI's shape ({error!r})") from error


def _events(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            yield _parsed(data)
    raise Trouble("the stream ended without [DONE]")


def _add(choice: dict[str, Any], calls: list[dict[str, str]]) -> str:
    """The text of a piece of a stream; calls grow by its parts."""
    delta = choice.get("delta")
    if delta is None:
        return choice.get("text") or ""
    for part in delta.get("tool_calls") or ():
        while len(calls) <= part.get("index", 0):
            calls.append({"name": "", "arguments": ""})
        call, function = calls[part.get("index", 0)], part.get("function") or {}
        call["name"] += function.get("name") or ""
        call["arguments"] += function.get("arguments") or ""
    return (delta.get("reasoning_content") or "") + (delta.get("content") or "")


def _whole(choice: dict[str, Any]) -> Reply:
    message = choice.get("message") or {"content": choice.get("text")}
    text = (message.get("reasoning_content") or "") + (message.get("content") or "")
    calls = [
        Call(call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]
    steps = tuple(_steps(choice.get("logprobs") or {}))
    return _reply(text, calls, steps, choice.get("finish_reason") or "")


def _reply(text: str, calls: Sequence[Call], steps: tuple[Step, ...], finish: str) -> Reply:
    lines = "".join(f"\n{call.name}({call.arguments})" for call in calls)
    return Reply(text + lines, tuple(calls), steps, finish)


def _steps(logprobs: dict[str, Any]) -> Iterator[Step]:
    """Those of chats, which llama.cpp gives for completions, too; or those of completions."""
    for entry in logprobs.get("content") or ():
        tops = {top["token"]: top["logprob"] for top in entry["top_logprobs"]}
        yield Step(entry["token"], entry["logprob"], tops)
    if logprobs.get("tokens"):
        yield from map(
            Step, logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]
        )


def with_logprobs(case: Case) -> dict[str, Any]:
    """The fields of a request for the logprobs of its completion."""
    if case.path == "completions":
        return {"logprobs": NUM_TOPS}
    return {"logprobs": True, "top_logprobs": NUM_TOPS}

"""Send requests to a server with OpenAI's interface, and trust nothing that it sends."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException, HTTPResponse
from typing import Any, TypeVar
from urllib.parse import urlsplit

from duodec.errors import BadOption
from duodec.server.http.json_limits import Size, parse
from duodec.server.http.limited_http import TooLarge, connected

_T = TypeVar("_T")
_OURS = "duodec"  # who owns a model of our server
_NOT_SERVED = (400, 404, 405, 415, 422, 501)
CONNECT_S = 20.0
_MOST = Size(num_values=2_000_000, num_names=500_000)  # of a response: logprobs of 16,000 tokens
_MOST_WORDS = 400  # characters that are told of what a server says
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
    """No completion came, for a reason of one short line. ``is_refusal``: the server says that it
    does not serve such a request."""

    def __init__(self, words: str, *, is_refusal: bool = False) -> None:
        super().__init__(_one_line(words))
        self.is_refusal = is_refusal


def _one_line(words: str) -> str:
    """Words that may be a server's, without what moves a terminal's cursor."""
    shown = "".join(c if c.isprintable() else " " for c in words[:_MOST_WORDS])
    return " ".join(shown.split())


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
        return _translated(lambda: _whole(found["choices"][0]))

    def stream(
        self, case: Case, timeout_s: float, most_events: int | None = None, **fields: Any
    ) -> Reply:
        """The completion as a stream brings it. After ``most_events`` the client is gone: it closes
        the connection without another word. Raises Trouble."""
        growing = _Growing()
        with self._response(case, timeout_s, {**fields, "stream": True}) as response:
            for number, event in enumerate(_events(response)):
                if number == most_events:
                    break
                _translated(partial(growing.add, event))
        return growing.reply()

    def _response(
        self, case: Case, timeout_s: float, fields: Mapping[str, Any]
    ) -> AbstractContextManager[HTTPResponse]:
        body = {"model": self.model, **case.body, **self.extra, **fields}
        return _responding(self.url, timeout_s, "POST", case.path, self.key, body)


def opened(
    name: str, url: str, key: str | None, model: str | None, extra: Mapping[str, Any] | None = None
) -> Endpoint:
    """The endpoint at an address; ``model`` None: the first that it lists. Raises BadOption."""
    base = url.rstrip("/").removesuffix("/v1")
    if not _is_address(base):
        raise BadOption(f"'{url}' is no address of a server; write http://HOST:PORT")
    try:
        with _responding(base, CONNECT_S, "GET", "models", key) as response:
            found = _parsed(response.read())
        listed = _translated(lambda: {_text(m["id"]): m.get("owned_by") for m in found["data"]})
    except Trouble as error:
        raise BadOption(f"{url} does not list its models: {error}; is a server there?") from error
    chosen = model or next(iter(listed), None)
    if chosen is None or (model is not None and model not in listed):
        names = _one_line(", ".join(listed))
        raise BadOption(f"{url} has no model '{model or ''}'; it lists: {names}")
    return Endpoint(name, base, chosen, key, extra or {}, listed[chosen] == _OURS)


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bracket without its other one, a port beyond 65535
        return False


@contextmanager
def _responding(
    url: str, timeout_s: float, method: str, path: str, key: str | None,
    body: Mapping[str, Any] | None = None,
) -> Iterator[HTTPResponse]:  # fmt: skip
    """A response, to be read within this context. Raises Trouble."""
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    has_begun = False
    try:
        with connected(url, timeout_s) as connection:
            data = json.dumps(body) if body else None
            connection.request(method, f"{urlsplit(url).path}/v1/{path}", data, headers)
            with closing(connection.getresponse()) as response:
                if response.status != 200:
                    raise _refusal(response)
                has_begun = True
                yield response
    except TimeoutError as error:
        raise Trouble("no response in time") from error
    except TooLarge as error:
        raise Trouble(str(error)) from error
    # ValueError: of sizes of chunks that are no sizes
    except (OSError, HTTPException, ValueError) as error:
        what = "the connection broke" if has_begun else "it cannot be reached"
        raise Trouble(f"{what} ({error!r})") from error


def _refusal(response: HTTPResponse) -> Trouble:
    words = response.read(_MOST_WORDS).decode("utf-8", "replace")
    return Trouble(f"status {response.status}: {words}", is_refusal=response.status in _NOT_SERVED)


def _parsed(data: bytes) -> Any:
    try:
        return parse(data, _MOST)
    except ValueError as error:
        raise Trouble(f"the response is no JSON ({error}): {data[:100]!r}") from error


def _translated(read: Callable[[], _T]) -> _T:
    """What is read from a response. Raises Trouble where it has another shape."""
    try:
        return read()
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise Trouble(f"the response has not OpenAI's shape ({error!r})") from error


def _text(value: object) -> str:
    """A text; null is an empty one."""
    if value is None or isinstance(value, str):
        return value or ""
    raise TypeError(f"{value!r:.80} is no text")


def _number(value: object) -> float:
    if isinstance(value, int | float):
        return float(value)
    raise TypeError(f"{value!r:.80} is no number")


def _events(response: HTTPResponse) -> Iterator[Any]:
    for line in response:
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            yield _parsed(data)
    raise Trouble("the stream ended without [DONE]")


@dataclass
class _GrowingCall:
    name: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def call(self) -> Call:
        return Call("".join(self.name), "".join(self.arguments))


@dataclass
class _Growing:
    """A completion of which pieces come."""

    texts: list[str] = field(default_factory=list)
    calls: dict[int, _GrowingCall] = field(default_factory=dict)  # by the server's own numbers
    finish: str = ""

    def add(self, event: dict[str, Any]) -> None:
        if "error" in event:
            raise Trouble(f"the stream ended with an error: {event['error']!r:.300}")
        for choice in event.get("choices") or ():
            self.finish = _text(choice.get("finish_reason")) or self.finish
            delta = choice.get("delta")
            if delta is None:
                self.texts.append(_text(choice.get("text")))
                continue
            self.texts += [_text(delta.get(name)) for name in ("reasoning_content", "content")]
            for part in delta.get("tool_calls") or ():
                self._add_call(part)

    def _add_call(self, part: dict[str, Any]) -> None:
        call = self.calls.setdefault(int(_number(part.get("index", 0))), _GrowingCall())
        function = part.get("function") or {}
        call.name.append(_text(function.get("name")))
        call.arguments.append(_text(function.get("arguments")))

    def reply(self) -> Reply:
        calls = [self.calls[number].call() for number in sorted(self.calls)]
        return _reply("".join(self.texts), calls, (), self.finish)


def _whole(choice: dict[str, Any]) -> Reply:
    message = choice.get("message") or {"content": choice.get("text")}
    text = _text(message.get("reasoning_content")) + _text(message.get("content"))
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    calls = [Call(_text(one["name"]), _text(one["arguments"])) for one in functions]
    steps = tuple(_steps(choice.get("logprobs") or {}))
    return _reply(text, calls, steps, _text(choice.get("finish_reason")))


def _reply(text: str, calls: Sequence[Call], steps: tuple[Step, ...], finish: str) -> Reply:
    lines = "".join(f"\n{call.name}({call.arguments})" for call in calls)
    return Reply(text + lines, tuple(calls), steps, finish)


def _steps(logprobs: dict[str, Any]) -> Iterator[Step]:
    """Those of chats, which llama.cpp gives for completions, too; or those of completions."""
    for entry in logprobs.get("content") or ():
        tops = {top["token"]: top["logprob"] for top in entry["top_logprobs"]}
        yield _step(entry["token"], entry["logprob"], tops)
    if logprobs.get("tokens"):
        yield from map(
            _step, logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"]
        )


def _step(token: object, logprob: object, tops: Mapping[object, object] | None) -> Step:
    known = {_text(other): _number(value) for other, value in (tops or {}).items()}
    return Step(_text(token), _number(logprob), known)


def with_logprobs(case: Case) -> dict[str, Any]:
    """The fields of a request for the logprobs of its completion."""
    if case.path == "completions":
        return {"logprobs": NUM_TOPS}
    return {"logprobs": True, "top_logprobs": NUM_TOPS}

"""Everything that goes wrong, in OpenAI's shape: ``{"error": {message, type, param, code}}``; where
Anthropic's API is spoken, in its own.

openai-python tries 408, 409, 429 and 5xx twice more; ``x-should-retry: false`` stops it where that
can bring nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duodec.errors import (
    BadOption,
    ComputeFailed,
    ContextExceeded,
    DistributionUnavailable,
    DuodecError,
    GrammarsFull,
    PicturesFull,
)

FINAL: Mapping[str, str] = {"x-should-retry": "false"}


_LONGEST_FACT = 64  # characters


class ApiError(Exception):
    """What a client is told."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] = {},
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = dict(headers)
        self.body: dict[str, Any] = {
            "error": {"message": message, "type": kind, "param": param, "code": code}
        }

    @property
    def facts(self) -> dict[str, str]:
        """What the log says of it: no words of the client's but the name of a field."""
        told = self.body["error"]
        found = {"error": told["code"] or told["type"], "param": told["param"]}
        return {name: str(value)[:_LONGEST_FACT] for name, value in found.items() if value}

    @property
    def plain(self) -> dict[str, Any]:
        """The body in Ollama's shape."""
        return {"error": self.body["error"]["message"]}

    @property
    def named(self) -> dict[str, Any]:
        """The body in Anthropic's shape."""
        other = "invalid_request_error" if self.status < 500 else "api_error"
        told = self.body["error"]
        is_long = told["code"] == "context_length_exceeded"
        message = f"{'prompt is too long: ' if is_long else ''}{told['message']}"
        return {"type": "error",
                "error": {"type": _KINDS.get(self.status, other), "message": message}}  # fmt: skip


_KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
    404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error",
    503: "overloaded_error",
}  # fmt: skip


def bad_field(name: str, message: str) -> ApiError:
    """A field that cannot be served as it is."""
    return ApiError(400, message, param=name, code="invalid_value")


def busy(retry_after_s: int, what: str) -> ApiError:
    return ApiError(
        429, what, kind="rate_limit_error", code="server_busy",
        headers={"Retry-After": str(retry_after_s)},
    )  # fmt: skip


def unavailable(what: str) -> ApiError:
    return ApiError(
        503, what, kind="server_error", code="unavailable",
        headers={"Retry-After": "5"},
    )  # fmt: skip


def not_served(what: str) -> ApiError:
    """Part of an API that this server lacks. Not 501, which clients try again, nor 404, where
    Ollama's fetch the model."""
    return ApiError(400, what, code="not_served", headers=FINAL)


def timed_out(seconds: float) -> ApiError:
    return ApiError(
        408, f"the response took longer than the {seconds:g} s that a request may; ask for fewer "
        "tokens, or start the server with a longer --timeout",
        kind="timeout_error", code="timeout", headers=FINAL,
    )  # fmt: skip


def bad_http() -> ApiError:
    """Bytes that the HTTP library cannot read."""
    return ApiError(400, "this is not a valid HTTP/1.1 request; send one", code="invalid_http")


def head_too_large(max_bytes: int) -> ApiError:
    return ApiError(
        431, f"the request's address and headers have more than {max_bytes} bytes; send fewer, or "
        "start the server with a larger --max-header", code="headers_too_large",
    )  # fmt: skip


def many_headers(most: int) -> ApiError:
    return ApiError(
        431, f"the request has more than {most} headers; send fewer", code="headers_too_large"
    )


def small_chunks() -> ApiError:
    return ApiError(
        400, "the body comes in very many small chunks; send larger ones, or its Content-Length",
        code="invalid_http",
    )  # fmt: skip


def slow_head(seconds: float) -> ApiError:
    return ApiError(408, f"the headers were not sent within {seconds:g} s", code="timeout")


def api_error(error: Exception, prompt: str = "messages") -> ApiError:
    """What a client is told of an exception; nothing of our own mistakes but that it was one.
    ``prompt`` is the field of the body that the prompt is in."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, ContextExceeded):
        # litellm knows it by these words, langchain by the code, Claude Code by those of `named`
        words = f"this model's maximum context length is exceeded: {error}"
        return ApiError(400, words, param=prompt, code="context_length_exceeded")
    if isinstance(error, BadOption | DistributionUnavailable):
        return ApiError(400, str(error), code="invalid_value")
    if isinstance(error, GrammarsFull | PicturesFull):
        return busy(1, str(error))
    if isinstance(error, ComputeFailed):
        return ApiError(500, str(error), kind="server_error", code="compute_failed", headers=FINAL)
    if isinstance(error, DuodecError):
        return ApiError(500, str(error), kind="server_error", headers=FINAL)
    return ApiError(
        500, "a mistake of this server ended the response; its log has the details",
        kind="server_error", code="internal_error", headers=FINAL,
    )  # fmt: skip

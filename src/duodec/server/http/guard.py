"""Check hosts, keys, origins and sizes; every request gets a response, with a log line."""

from __future__ import annotations

import hmac
import re
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from duodec.server.errors import ApiError
from duodec.server.http.owners import NOBODY, holder_of, key_of
from duodec.server.logs import facts, log
from duodec.server.settings import Settings

Refusal = Callable[[Exception, str], Response]
"""How a client is told what went wrong, at a path."""

HOLDER = "duodec.holder"  # in a request's scope: whose key came with it; None: nobody's
_PROTECTED = ("/v1/", "/v2/", "/api/", "/tokenize", "/detokenize")
# what clients ask for whose address of the server lacks /v1
_WITHOUT_VERSION = re.compile(
    r"/(chat/completions|completions|embeddings|messages(/count_tokens)?|models|rerank|reranking"
    r"|responses)(/.*)?"
)
_HERE = re.compile(
    r"https?://(localhost|127(\.\d+){3}|\[::1\])(:\d+)?|tauri://.*|app://.*|file://.*"
)
_ADDRESS = re.compile(r"\d+(\.\d+){3}|\[[0-9a-f:.]+\]")
_HOST = re.compile(rf"({_ADDRESS.pattern}|[^\[\]:/@,\s]+?)\.?(:\d+)?")
_OWN_NAMES = (".localhost", ".local", ".internal")  # that nobody can register and lead to us
_ALLOWED_HEADERS = (
    "Authorization", "Content-Type", "User-Agent", "Accept", "X-Requested-With", "OpenAI-Beta",
    "OpenAI-Organization", "OpenAI-Project", "x-stainless-arch", "x-stainless-async",
    "x-stainless-custom-poll-interval", "x-stainless-helper-method", "x-stainless-lang",
    "x-stainless-os", "x-stainless-package-version", "x-stainless-poll-helper",
    "x-stainless-retry-count", "x-stainless-runtime", "x-stainless-runtime-version",
    "x-stainless-timeout", "X-Api-Key", "anthropic-version", "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
)  # fmt: skip


def guarded(app: ASGIApp, settings: Settings, refusal: Refusal) -> ASGIApp:
    """The application behind its guard; browsers are told which pages may read its responses."""
    return _Cors(
        Guard(app, settings, refusal),
        allow_origins=settings.cors_origins,
        allow_origin_regex=_HERE.pattern,
        allow_methods=("GET", "POST", "OPTIONS"),
        allow_headers=_ALLOWED_HEADERS,
        expose_headers=("x-request-id", "retry-after"),
        max_age=86400,
    )


class _Cors(CORSMiddleware):
    """Starlette's, whose refusals have OpenAI's shape."""

    def preflight_response(self, request_headers: Headers) -> Response:
        found = super().preflight_response(request_headers)
        if found.status_code == 200:
            kept = [(name, text) for name, text in found.raw_headers if b"content" not in name]
            found = Response(status_code=204)
            found.raw_headers += kept
            return found
        why = bytes(found.body).decode()
        told = ApiError(403, f"{why}; allow pages with --cors-origin", code="forbidden")
        return JSONResponse(told.body, told.status, {"vary": "Origin"})


class Guard:
    """An ASGI middleware around all routes."""

    def __init__(self, app: ASGIApp, settings: Settings, refusal: Refusal) -> None:
        self._app = app
        self._settings = settings
        self._refusal = refusal
        self._names = {"localhost", socket.gethostname().lower()}
        for origin in settings.cors_origins:
            with suppress(ValueError):  # it is no origin, and allows nobody
                self._names.add(urlsplit(origin).hostname or "")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        # some clients join what ends and begins with /, or end with one
        path = re.sub("/{2,}", "/", scope["path"]).rstrip("/") or "/"
        path = f"/v1{path}" if _WITHOUT_VERSION.fullmatch(path) else path
        scope = {**scope, "path": path, "raw_path": path.encode()}
        sent = _Sent(send)
        begin_s = time.perf_counter()
        facts.set({"id": sent.request_id})
        try:
            self._check_host(headers.getlist("host"))
            scope[HOLDER] = self._holder(headers)
            if scope["method"] == "OPTIONS":  # and no browser's question about a page
                await Response(status_code=204)(scope, receive, sent)
            else:
                self._check(path, headers, scope[HOLDER])
                await self._app(scope, receive, sent)
        except Exception as error:  # noqa: BLE001  every client gets a response
            if not sent.has_begun:  # otherwise it was told, and written down, further inside
                await self._refusal(error, path)(scope, receive, sent)
        finally:
            log.info(
                "request", extra={"facts": {
                    **facts.get(), "method": scope["method"], "path": path, "status": sent.status,
                    "seconds": round(time.perf_counter() - begin_s, 4),
                }},
            )  # fmt: skip

    def _check(self, path: str, headers: Headers, holder: str | None) -> None:
        """Raises ApiError for whom we do not know."""
        origin = headers.get("origin")
        if origin is not None and not self._is_allowed(origin, headers.get("host", "")):
            raise ApiError(
                403, f"pages of {origin[:200]} may not ask this server; allow them with "
                "--cors-origin", code="forbidden",
            )  # fmt: skip
        if path.startswith(_PROTECTED) and holder is None:
            raise ApiError(
                401, "the API key is missing or wrong; send Authorization: Bearer KEY",
                kind="authentication_error", code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self._settings.max_body_bytes:
            raise too_large(self._settings.max_body_bytes)

    def _check_host(self, hosts: list[str]) -> None:
        """Raises ApiError for a name that is not this machine's: a page from elsewhere, whose name
        was made to lead here, may read what it asks for as its own. Who listens for other machines
        is reached by names that it does not know."""
        if len(hosts) > 1:
            raise ApiError(400, "there are several Host headers; send one", code="invalid_http")
        host = hosts[0].lower() if hosts else ""
        if not host or not self._settings.is_loopback or "*" in self._settings.cors_origins:
            return
        found = _HOST.fullmatch(host)
        name = found[1] if found else ""
        is_ours = name in self._names or name.endswith(_OWN_NAMES) or _ADDRESS.fullmatch(name)
        if not (found and is_ours):
            raise ApiError(
                403, f"this server is not called {host[:200]}; ask localhost, or allow the name "
                "with --cors-origin https://NAME", code="forbidden",
            )  # fmt: skip

    def _holder(self, headers: Headers) -> str | None:
        """Whose key it is that came; None: nobody's, and keys are asked for."""
        if not self._settings.api_keys:
            return NOBODY
        given = key_of(headers).encode("utf-8", "replace")
        keys = [known.encode() for known in self._settings.api_keys]
        # all of them are compared, in constant time: nothing is learned from how long it takes
        is_known = sum(hmac.compare_digest(given, known) for known in keys) > 0
        return holder_of(given.decode()) if is_known else None

    def _is_allowed(self, origin: str, host: str) -> bool:
        origins = self._settings.cors_origins
        try:  # the page that we serve ourselves: our name was checked before
            is_own = bool(host) and urlsplit(origin).netloc == host
        except ValueError:  # no address at all
            is_own = False
        return is_own or "*" in origins or origin in origins or bool(_HERE.fullmatch(origin))


class _Sent:
    """What goes out, with the headers that every response has."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.request_id = f"req-{secrets.token_hex(8)}"
        self._headers = [(b"x-request-id", self.request_id.encode())]
        self.status = 0

    @property
    def has_begun(self) -> bool:
        return self.status > 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
        await self._send(message)


def too_large(max_bytes: int) -> ApiError:
    return ApiError(
        413, f"the body is larger than the {max_bytes} bytes that this server takes; send less, "
        "or start it with a larger --max-body", code="body_too_large",
        headers={"Connection": "close"},  # the rest of it is not read: no request can follow
    )  # fmt: skip

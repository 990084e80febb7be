"""The routes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from duodec.errors import DuodecError
from duodec.server.api.ollama.listing import API_VERSION
from duodec.server.embedding import PendingRows
from duodec.server.errors import ApiError, api_error, not_served
from duodec.server.http.body_budget import HeldBody
from duodec.server.http.guard import HOLDER, guarded, too_large
from duodec.server.http.intake import Workers
from duodec.server.http.json_limits import parse_object
from duodec.server.http.json_parts import encoded
from duodec.server.http.streams import ClientGone, EventStream, Prepared, Writer, or_gone, whole
from duodec.server.logs import log, note
from duodec.server.metrics import CONTENT_TYPE
from duodec.server.models.output_collector import OutputCollector
from duodec.server.page import chat_page, content_policy
from duodec.server.service import Service

_ANTHROPIC, _OLLAMA = "/v1/messages", "/api/"
_PROMPTS = {  # where it is not in messages
    "/v1/completions": "prompt", "/v1/responses": "input", "/v1/embeddings": "input",
    "/v1/rerank": "documents", "/v1/reranking": "documents", "/v2/rerank": "documents",
}  # fmt: skip
_NUM_ENCODERS = 2  # threads
_RANKS = ("/v1/rerank", "/v1/reranking", "/v2/rerank")  # /rerank and /reranking are those of /v1
_GONE = 499  # nginx's: the client left; nobody reads it but the log

_UNSCORED = "pairs are not scored; /v1/rerank ranks documents for a query"
_UNMANAGED = (
    "models are not fetched, made or deleted through this server; use `duodec pull` and `duodec rm`"
)

_T = TypeVar("_T")
Endpoint = Callable[[Request], Awaitable[Response]]
Prepare = Callable[[Mapping[str, Any], str], Awaitable[Prepared | dict[str, Any]]]
"""Of a body, and of the holder of the key that came with it."""
PrepareRows = Callable[[Mapping[str, Any], str], Awaitable[PendingRows]]
Compute = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]


class Endpoints:
    """What the paths do: those of one kind are made by one method, from what the service does."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._encoders = Workers("duodec-encode", _NUM_ENCODERS)

    def completion(self, prepare: Prepare) -> Endpoint:
        """An endpoint whose response is a completion, whole or streamed."""

        async def endpoint(request: Request) -> Response:
            found = await self._prepared(request, prepare)
            if isinstance(found, dict):
                return await self._json(found)
            return await self._response(request, *found)

        return endpoint

    def rows(self, prepare: PrepareRows) -> Endpoint:
        """An endpoint for embeddings or ranks. What a client sent is held while it is prepared."""

        async def endpoint(request: Request) -> Response:
            def make(body: Mapping[str, Any]) -> Awaitable[PendingRows]:
                return prepare(body, request.scope[HOLDER])

            try:
                pending = await self._made(request, make, PendingRows.close)
                try:
                    found = await or_gone(request.receive, pending.response())
                finally:
                    pending.close()
                return await self._json(found)
            except (ClientGone, ClientDisconnect):
                self._service.meters.dropped()
                raise

        return endpoint

    def computed(self, compute: Compute) -> Endpoint:
        """An endpoint that needs no completion."""

        async def endpoint(request: Request) -> Response:
            return await self._json(await self._made(request, compute, lambda found: None))

        return endpoint

    def told(self, tell: Callable[[], Awaitable[dict[str, Any]]]) -> Endpoint:
        """An endpoint that reads nothing of the request."""

        async def endpoint(request: Request) -> Response:
            return JSONResponse(await tell())

        return endpoint

    def refused(self, why: str) -> Endpoint:
        """An endpoint of what is not served."""

        async def endpoint(request: Request) -> Response:
            raise not_served(why)

        return endpoint

    async def response(self, request: Request) -> Response:
        stored = self._service.store.get(request.scope[HOLDER], request.path_params["name"])
        return Response(stored.response, media_type="application/json")

    async def forget(self, request: Request) -> Response:
        name = request.path_params["name"]
        self._service.store.delete(request.scope[HOLDER], name)
        return JSONResponse({"id": name, "object": "response", "deleted": True})

    async def models(self, request: Request) -> Response:
        names = self._service.models.names
        described = [self._service.described(name) for name in names]
        ends = {"has_more": False, "first_id": names[0], "last_id": names[-1]}  # Anthropic's
        return JSONResponse({"object": "list", "data": described, **ends})

    async def model(self, request: Request) -> Response:
        name = self._service.named(request.path_params["name"])
        return JSONResponse(self._service.described(name))

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": API_VERSION})

    async def health(self, request: Request) -> Response:
        state = self._service.state
        return JSONResponse(
            {"status": state}, 200 if state == "ok" else 503,
            {} if state == "ok" else {"Retry-After": "1"},
        )  # fmt: skip

    async def metrics(self, request: Request) -> Response:
        return Response(self._service.meters.exposition(), headers={"content-type": CONTENT_TYPE})

    async def props(self, request: Request) -> Response:
        return JSONResponse(self._service.props(request.query_params.get("model")))

    async def slots(self, request: Request) -> Response:
        name, holder = request.query_params.get("model"), request.scope[HOLDER]
        return JSONResponse(self._service.slots(name, holder))

    async def page(self, request: Request) -> Response:
        return HTMLResponse(chat_page(), headers={"content-security-policy": content_policy()})

    # --- parts

    async def _prepared(self, request: Request, prepare: Prepare) -> Prepared | dict[str, Any]:
        """What the body of a request makes. It is held in memory no longer than that takes."""

        def make(body: Mapping[str, Any]) -> Awaitable[Prepared | dict[str, Any]]:
            return prepare(body, request.scope[HOLDER])

        late: list[OutputCollector] = []  # that nobody waited for any more

        def drop(found: Prepared | dict[str, Any]) -> None:
            if isinstance(found, tuple):
                found[1].close()
                late.append(found[1])

        try:
            return await self._made(request, make, drop)
        except (ClientGone, ClientDisconnect):
            if not late:  # else it ends, and is counted, as others are
                self._service.meters.dropped()
            raise

    async def _made(
        self, request: Request, make: Callable[[Mapping[str, Any]], Awaitable[_T]],
        drop: Callable[[_T], None],
    ) -> _T:  # fmt: skip
        """What ``make`` makes of a body. ``drop`` gets what nobody waited for any more."""
        intake = self._service.intake
        with intake.bodies.hold() as held:
            data = await self._body(request, held)

            async def work() -> _T:
                return await make(await intake.run(parse_object, data))

            prepared = intake.prepared(len(data), self._service.num_free, work(), drop)
            return await or_gone(request.receive, prepared)

    async def _body(self, request: Request, held: HeldBody) -> bytes:
        """What the client sends. Raises ApiError of what is too large or too slow."""
        self._service.check_ready()  # nobody uploads to a server that is not ready
        body_s = self._service.settings.body_s
        reading = asyncio.ensure_future(self._read(request, held))
        try:
            return await held.received(reading, body_s)
        except asyncio.TimeoutError:
            raise ApiError(
                408, f"the body was not sent within {body_s:g} s", code="timeout"
            ) from None

    async def _read(self, request: Request, held: HeldBody) -> bytes:
        most = self._service.settings.max_body_bytes
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > most:
                raise too_large(most)
            await held.grow(len(data))
        return bytes(data)

    async def _response(
        self, request: Request, writer: Writer, collector: OutputCollector
    ) -> Response:
        if writer.is_streamed:
            stream: Any = EventStream(writer, collector, self._service.settings.ping_s)
            return stream  # type: ignore[no-any-return]
        return await self._json(await whole(writer, collector, request.receive))

    async def _json(self, value: Any) -> Response:
        """A response that may be large, encoded in a thread."""
        data = await self._encoders.run(encoded, value)
        return Response(data, media_type="application/json")


def make_app(service: Service) -> ASGIApp:
    """The ASGI application over a service, which may still be loading."""
    ends = Endpoints(service)

    def refusal(error: Exception, path: str) -> Response:
        if isinstance(error, ClientGone | ClientDisconnect):
            return Response(status_code=_GONE)
        if isinstance(error, HTTPException):
            told = _of_http(error)
        else:
            told = api_error(error, _PROMPTS.get(path, "messages"))
        if told.status >= 500 and not isinstance(error, ApiError):
            log.error("a request failed", exc_info=error)
        service.meters.refused(told.status)
        note(**told.facts)
        return JSONResponse(_shaped(told, path), told.status, told.headers)

    async def refused(request: Request, error: Exception) -> Response:
        return refusal(error, request.url.path)

    gets = {
        "/": ends.page,
        "/health": ends.health,
        "/metrics": ends.metrics,
        "/props": ends.props,
        "/slots": ends.slots,
        "/v1/models": ends.models,
        "/v1/models/{name:path}": ends.model,
        "/v1/responses/{name}": ends.response,
        "/api/tags": ends.told(service.tags),
        "/api/ps": ends.told(service.running),
        "/api/version": ends.version,
    }
    posts = {
        "/v1/chat/completions": ends.completion(service.chat),
        "/v1/completions": ends.completion(service.complete),
        "/v1/messages": ends.completion(service.message),
        "/v1/messages/count_tokens": ends.computed(service.count_tokens),
        "/v1/responses": ends.completion(service.respond),
        "/v1/responses/input_tokens": ends.computed(service.count_input),
        "/v1/embeddings": ends.rows(service.rows.embed),
        **dict.fromkeys(_RANKS, ends.rows(service.rows.rerank)),
        **dict.fromkeys(("/v1/score", "/score"), ends.refused(_UNSCORED)),
        "/api/chat": ends.completion(service.converse),
        "/api/generate": ends.completion(service.generate),
        "/api/show": ends.computed(service.show),
        "/api/embed": ends.rows(service.rows.ollama_embed),
        "/api/embeddings": ends.rows(service.rows.ollama_embeddings),
        "/tokenize": ends.computed(service.tokenize),
        "/detokenize": ends.computed(service.detokenize),
    }
    managed = ends.refused(_UNMANAGED)
    app = Starlette(
        routes=[
            *(Route(path, endpoint) for path, endpoint in gets.items()),
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in posts.items()),
            *(
                Route(f"/api/{verb}", managed, methods=["POST", "DELETE"])
                for verb in ("pull", "push", "create", "copy", "delete")
            ),
            Route("/v1/responses/{name}", ends.forget, methods=["DELETE"]),
        ],
    )
    for kind in (ApiError, HTTPException, DuodecError, ClientGone, ClientDisconnect, Exception):
        app.add_exception_handler(kind, refused)
    return guarded(app, service.settings, refusal)


def _shaped(error: ApiError, path: str) -> dict[str, Any]:
    """In the shape of the API that the path is of."""
    if path.startswith(_OLLAMA):
        return error.plain
    return error.named if path.startswith(_ANTHROPIC) else error.body


def _of_http(error: HTTPException) -> ApiError:
    messages = {
        404: "there is nothing at this path; docs/server.md lists those that there are",
        405: "this path takes another method",
    }
    headers = dict(error.headers or {})
    return ApiError(
        error.status_code, messages.get(error.status_code, error.detail), headers=headers
    )

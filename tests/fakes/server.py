"""A server on table models, on a port of its own, in a thread of this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from threading import Thread
from time import perf_counter, sleep
from types import SimpleNamespace
from typing import Any

import pytest

for _name in ("starlette", "uvicorn", "prometheus_client", "httpx"):
    pytest.importorskip(_name, reason=f"{_name} is not installed: make setup")

import httpx  # noqa: E402
import uvicorn.server  # noqa: E402
from fakes.decoding import LETTERS, Letters  # noqa: E402

from duodec.core.drafters import Datastore, Drafter  # noqa: E402
from duodec.core.targets import Query, Scores, Target  # noqa: E402
from duodec.llm import LLM  # noqa: E402
from duodec.server.models.registry import Source  # noqa: E402
from duodec.server.process import Server, listen  # noqa: E402
from duodec.server.service import Service  # noqa: E402
from duodec.server.settings import Settings  # noqa: E402
from duodec.testing import (  # noqa: E402
    InlineDrafter,
    TableModel,
    TableTarget,
)

MODEL = "tables"


async def look_soon(seconds: float) -> None:
    await asyncio.sleep(min(seconds, 0.01))


# uvicorn looks every tenth of a second whether it must end, and each of a thousand servers ends
vars(uvicorn.server)["asyncio"] = SimpleNamespace(**{**vars(asyncio), "sleep": look_soon})


@dataclass
class Slowed(Target):
    """A target that takes its time, and tells what it is asked."""

    target: Target
    seconds: float = 0.0
    on_score: Callable[[Sequence[Query]], None] = field(default=lambda queries: None)

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        self.on_score(queries)
        sleep(self.seconds)
        return self.target.score(queries)


TABLE = TableModel(num_vocab=len(LETTERS) + 1, seed=7)


def engine_on_tables(
    *, drafter: Drafter | None = None, num_context: int = 400, tokenizer: Letters | None = None,
    datastore: Datastore | None = None,
) -> LLM:  # fmt: skip
    drafter = drafter or InlineDrafter(replace(TABLE, noise=0.2).load())
    return LLM(TableTarget(TABLE), tokenizer or Letters(), num_context, drafter, datastore)


@dataclass
class Running:
    """A server that is ready at ``url``."""

    url: str
    service: Service
    server: Server
    http: httpx.Client

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.http.post(path, json=body, **options)

    def chat(self, text: str = "hello", **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": text}],
                "max_tokens": 20, "seed": 1, **fields}  # fmt: skip
        return self.post("/v1/chat/completions", body)

    def stream(self, **fields: Any) -> AbstractContextManager[httpx.Response]:
        """A stream that is still open."""
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, **fields}
        return self.http.stream("POST", "/v1/chat/completions", json=body)

    def complete(self, prompt: Any = "hello", **fields: Any) -> httpx.Response:
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 20, "seed": 1, **fields}
        return self.post("/v1/completions", body)

    def counter(self, name: str) -> float:
        """A counter's sum over its labels."""
        lines = self.http.get("/metrics").text.splitlines()
        values = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
        return sum(float(v) for key, v in values if key.split("{")[0] == name)


@contextmanager
def running(
    engine: LLM | None = None, target: Target | None = None, *, is_loaded: bool = True,
    sources: Mapping[str, Source] | None = None, **settings: Any,
) -> Iterator[Running]:  # fmt: skip
    """A server over an engine; with ``is_loaded=False`` one that never comes to an end of it."""
    service = Service(Settings(MODEL, **{"port": 0, **settings}), sources)
    sock = listen(service.settings)
    host, port = sock.getsockname()[:2]
    server = Server(service)
    thread = Thread(target=lambda: asyncio.run(server.serve(sockets=[sock])), daemon=True)
    if is_loaded:
        engine = engine or engine_on_tables()
        start(service, engine, target)
    thread.start()
    url = f"http://{host}:{port}"
    with httpx.Client(base_url=url, timeout=30.0) as http:
        until(lambda: server.started)
        try:
            yield Running(url, service, server, http)
        finally:
            http.close()
            server.should_exit = True
            thread.join(timeout=60)
            service.close()
            assert not thread.is_alive(), "the server did not end"


def start(service: Service, llm: LLM, target: Target | None = None) -> None:
    """Serve a model with as many slots as the settings name; an embedder has none."""
    if isinstance(llm, LLM):
        target, num_slots = target or llm.loaded.target, service.settings.num_slots
        llm.loaded = replace(llm.loaded, target=target, num_slots=num_slots)
    service.start(llm)


def until(is_so: Callable[[], bool], seconds: float = 20.0) -> None:
    end_s = perf_counter() + seconds
    while not is_so():
        assert perf_counter() < end_s, "waited for too long"
        sleep(0.005)


def events(text: str) -> list[Any]:
    """The values of a stream of events, which ends as it must."""
    lines = [line for line in text.split("\n") if line and line != ": ping"]
    assert all(line.startswith("data: ") and line != "data: " for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]

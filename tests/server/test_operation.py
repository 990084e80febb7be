"""What an operator relies on: stalled clients are let go, a deleted model goes on being served."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import psutil
import pytest
from fakes.server import engine_on_tables, until

import duodec
from duodec.server.app import make_app
from duodec.server.http import streams
from duodec.server.http.streams import EventStream
from duodec.server.process import listen
from duodec.server.service import Service
from duodec.server.settings import Settings

httpx = pytest.importorskip("httpx")
MODEL = Path(duodec.__file__).parent / "data" / "smollm2-135m-draft-q4_0.gguf"


def test_a_client_that_reads_nothing_is_let_go_when_its_time_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "LAST_WORDS_S", 0.1)
    service = Service(Settings("tables", num_slots=1, timeout_s=0.3))
    engine = engine_on_tables(num_context=4000)
    service.start(engine)

    async def never(message: Any = None) -> Any:
        await asyncio.Event().wait()

    async def run() -> None:
        writer, outputs = await service.complete({"prompt": "hello", "stream": True}, "")
        assert writer.is_streamed
        await EventStream(writer, outputs, 15.0)({}, never, never)

    begin_s = perf_counter()
    try:
        asyncio.run(asyncio.wait_for(run(), 10))
        until(lambda: service.models.loaded[0].scheduler.num_running == 0)
    finally:
        service.close()
    assert 0.3 < perf_counter() - begin_s < 5


@pytest.mark.parametrize(
    "path",
    ["chat", *(pytest.param(one, marks=pytest.mark.slow) for one in ("complete", "respond"))],
)
def test_a_model_is_free_when_its_last_token_is_computed_whoever_reads_it(path: str) -> None:
    service = Service(Settings("tables", num_slots=1, timeout_s=60))
    service.start(engine_on_tables(num_context=4000))
    own: dict[str, dict[str, Any]] = {
        "chat": {"messages": [{"role": "user", "content": "hi"}], "logprobs": True},
        "complete": {"prompt": "hi", "logprobs": 3},
        "respond": {"input": "hi"},
    }
    bodies: list[bytes] = []

    async def run() -> None:
        body = {**own[path], "stream": True, "seed": 1}
        writer, outputs = await getattr(service, path)(body, "")
        reads = asyncio.Event()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await reads.wait()
                bodies.append(message["body"])

        answering = asyncio.ensure_future(EventStream(writer, outputs, 15.0)({}, never, send))
        (served,) = service.models.loaded
        while served.is_busy:
            await asyncio.sleep(0.01)
        assert not answering.done()
        assert served.end()  # another model may take its place
        served.llm.close()
        reads.set()  # what was computed is told all the same
        await answering

    async def never(message: Any = None) -> Any:
        await asyncio.Event().wait()

    try:
        asyncio.run(asyncio.wait_for(run(), 20))
    finally:
        service.close()
    assert b"[DONE]" in b"".join(bodies)
    assert b'"error":{' not in b"".join(bodies)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux only")
def test_the_kernel_ends_connections_that_nobody_reads() -> None:
    with listen(Settings("tables", port=0, timeout_s=7)) as sock:
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7000


@pytest.mark.slow
def test_models_that_are_deleted_go_on_being_served(tmp_path: Path) -> None:
    target, draft = (tmp_path / name for name in ("target.gguf", "draft.gguf"))
    for path in (target, draft):
        shutil.copy(MODEL, path)
    program = "from duodec.cli.app import main; main()"
    options = ["-m", str(target), "--draft", str(draft), "--port", "0", "--context", "256",
               "--parallel", "2"]  # fmt: skip
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen([sys.executable, "-c", program, "serve", *options], stderr=file)
    try:
        until(lambda: " at " in log.read_text(), 60)
        url = log.read_text().split(" at ")[1].split(",")[0]
        with httpx.Client(base_url=url, timeout=60) as http:
            until(lambda: http.get("/health").status_code == 200, 60)
            before = said(http)
            target.unlink()
            draft.unlink()
            assert said(http) == before
            children = psutil.Process(process.pid).children()
            (drafter,) = [c.pid for c in children if any("duodec-draft" in w for w in c.cmdline())]
            os.kill(drafter, signal.SIGKILL)
            assert [said(http) for _ in range(3)] == [before] * 3
            until(lambda: len(warnings(log)) > 0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert 0 < len(warnings(log)) <= 2, "an incident is told in two lines at most"
    assert "Traceback" not in log.read_text()


def warnings(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if "drafter" in line]


def said(http: Any) -> str:
    body = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def test_the_log_says_why_a_request_was_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By the code of the error and its field, not by words of the client's."""
    monkeypatch.setattr(logging.getLogger("duodec.server"), "propagate", True)
    caplog.set_level(logging.INFO, "duodec.server")
    service = Service(Settings("tables", num_slots=1))
    service.start(engine_on_tables())
    app = make_app(service)

    async def ask(**fields: Any) -> int:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            body = {"messages": [{"role": "user", "content": "secret"}], **fields}
            found: int = (await http.post("/v1/chat/completions", json=body)).status_code
            return found

    assert asyncio.run(ask(temperature="secret")) == 400
    facts = [vars(record)["facts"] for record in caplog.records if "facts" in vars(record)]
    assert facts[-1]["error"]
    assert facts[-1]["param"] == "temperature"
    assert "secret" not in str(facts)
    service.close()

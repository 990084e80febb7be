"""Clients that leave, a drafter that dies, bytes that make no sense: others do not notice."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from threading import Event, Thread
from typing import Any

import psutil
import pytest
from fakes.decoding import Letters
from fakes.server import (
    MODEL,
    TABLE,
    Running,
    Slowed,
    engine_on_tables,
    events,
    running,
    until,
)

from duodec.backends.drafter.process import ProcessDrafter
from duodec.core.events import Finished
from duodec.core.sampling.sampler import SamplingParams

NUM_REQUESTS = 120


def text_of(text: str, seed: int) -> str:
    prompt: Any = [{"role": "user", "content": text}]
    params = SamplingParams(temperature=0.9, seed=seed)
    last = list(engine_on_tables().stream(prompt, replace(params, max_tokens=40)))[-1]
    assert isinstance(last, Finished)
    return last.text


def repeatedly(action: Callable[[], None], seconds: float) -> Callable[[], None]:
    """Do it now and then, until what is returned is called."""
    over = Event()

    def run() -> None:
        while not over.wait(seconds):
            action()

    thread = Thread(target=run)
    thread.start()

    def stop() -> None:
        over.set()
        thread.join()

    return stop


def ask(server: Running, number: int) -> str:
    """A request of one kind or another; what became of it."""
    body = {
        "model": MODEL, "messages": [{"role": "user", "content": f"hello {number % 7}"}],
        "seed": number % 5, "temperature": 0.9, "max_tokens": 40, "stream": number % 2 == 0,
        "speculation": [None, {"method": "stream"}, {"method": "duo"}][number % 3],
    }  # fmt: skip
    if number % 10 == 3:
        # who leaves before the server has read on is counted nowhere: none does here
        leave(server, body, 0.01 + random.Random(number).random() * 0.05)
        return "left"
    response = server.post("/v1/chat/completions", body)
    assert response.status_code == 200, response.text
    if number % 2 == 0:
        chunks = events(response.text)
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    else:
        text = response.json()["choices"][0]["message"]["content"]
    return str(text)


def leave(server: Running, body: Any, after_s: float) -> None:
    """Ask, and hang up."""
    data = json.dumps(body).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
            + str(len(data)).encode() + b"\r\n\r\n" + data
        )  # fmt: skip
        Event().wait(after_s)


@pytest.mark.slow
def test_leaving_clients_and_a_dying_drafter() -> None:
    expected = {n: text_of(f"hello {n % 7}", n % 5) for n in range(35)}
    drafter = ProcessDrafter(replace(TABLE, noise=0.2), on_warning=lambda line: None)
    with drafter:
        drafter.wait_ready()
        engine = engine_on_tables(drafter=drafter)

        def kill() -> None:
            if (pid := drafter.pid) is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

        with running(engine, Slowed(engine.loaded.target, 0.001), num_slots=8) as server:
            before = psutil.Process().num_threads()
            stop = repeatedly(kill, 0.5)
            try:
                with ThreadPoolExecutor(12) as clients:
                    found = list(clients.map(lambda n: ask(server, n), range(NUM_REQUESTS)))
            finally:
                stop()
            for number, text in enumerate(found):
                assert text in ("left", expected[number % 35])
            until(lambda: server.counter("duodec:num_requests_running") == 0)
            assert server.counter("duodec:num_requests_waiting") == 0
            until(lambda: server.counter("duodec:request_success_total") >= NUM_REQUESTS)
            assert server.counter("duodec:request_success_total") == NUM_REQUESTS
            assert server.counter("duodec:drafter_restarts_total") == drafter.restarts > 0
            # threads of clients are gone, and no others came
            until(lambda: psutil.Process().num_threads() <= before + 8)
            assert server.chat(max_tokens=3).status_code == 200


VALUES: list[Any] = [
    None, True, False, 0, -1, 1.5, 1e308, 1 << 80, "", "x", "\x00", "\ud800", [], [[]], {},
    {"a": 1}, [None], [{"role": "user", "content": "x"}], [1, 2, 3], {"type": "text"}, "auto",
]  # fmt: skip
FIELDS = [
    "messages", "prompt", "model", "stream", "n", "stop", "max_tokens", "max_completion_tokens",
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "seed", "logprobs", "top_logprobs", "stream_options",
    "tools", "tool_choice", "speculation", "response_format", "echo", "suffix", "best_of",
    "timings_per_token", "user",
]  # fmt: skip


def test_no_request_makes_the_server_fail() -> None:
    dice = random.Random(5)
    engine = engine_on_tables(tokenizer=Letters(), num_context=60)
    with running(engine, num_slots=8) as server:
        for number in range(400):
            chat = number % 2 == 0
            body: dict[str, Any] = {"max_tokens": 2}
            body |= {"messages": [{"role": "user", "content": "x"}]} if chat else {"prompt": "x"}
            for _ in range(dice.randint(1, 3)):
                body[dice.choice(FIELDS)] = dice.choice(VALUES)
            path = "/v1/chat/completions" if chat else "/v1/completions"
            response = server.http.post(path, content=json.dumps(body).encode())
            assert response.status_code in (200, 400, 404), (body, response.text)
            if response.status_code != 200:
                assert set(response.json()["error"]) == {"message", "type", "param", "code"}
            else:
                assert '"error"' not in response.text
        assert server.chat("x", max_tokens=3).status_code == 200


def test_bytes_that_are_no_http() -> None:
    with running() as server:
        host, port = server.url.removeprefix("http://").split(":")
        for data in (b"\x00\xff\n\n", b"GET\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\n"):
            with socket.create_connection((host, int(port))) as sock:
                sock.sendall(data)
        assert server.chat(max_tokens=3).status_code == 200

"""Requests that nobody would send: no 500, no silence, and every error in OpenAI's shape.

`DUODEC_FUZZ_SECONDS=300 pytest tests/server/test_fuzz.py` goes on for that long;
`DUODEC_FUZZ_URL=http://127.0.0.1:8000` aims at a server that runs already.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from time import perf_counter
from typing import Any

import httpx
import pytest
from fakes.bodies import bodies, values
from fakes.decoding import Letters
from fakes.server import engine_on_tables, events, running
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

SECONDS = float(os.environ.get("DUODEC_FUZZ_SECONDS", "0"))
URL = os.environ.get("DUODEC_FUZZ_URL")
SILENCE_S = 60.0
CLEAN = {200, 400, 401, 403, 404, 405, 408, 413, 429}

raw = st.one_of(
    st.binary(max_size=60),
    values.map(lambda value: json.dumps(value).encode()),
    st.integers(1, 3000).map(lambda depth: b"[" * depth),
    st.sampled_from([b'{"prompt": NaN}', b'{"prompt": "x", "top_p": Infinity}', b"\xff\xfe{}"]),
)  # fmt: skip
paths = st.sampled_from(
    ["/v1/chat/completions", "/v1/completions", "//v1//completions", "/v1/models", "/v1/models/x",
     "/health", "/metrics", "/props", "/slots", "/", "/v1/nothing", "/v1/completions/"]
)  # fmt: skip
verbs = st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"])


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with ExitStack() as stack:
        url = URL
        if url is None:
            engine = engine_on_tables(tokenizer=Letters(), num_context=90)
            url = stack.enter_context(running(engine, num_slots=8)).url
        yield stack.enter_context(httpx.Client(base_url=url, timeout=SILENCE_S))


def check(response: httpx.Response) -> None:
    """A whole answer, or an error in the one shape there is."""
    assert response.status_code in CLEAN, response.text
    if response.status_code != 200:
        if response.request.method != "HEAD":  # which has no body
            check_error(response.json())
    elif response.headers["content-type"].startswith("text/event-stream"):
        for chunk in events(response.text):
            if "error" in chunk:
                check_error(chunk)
    elif response.headers["content-type"] == "application/json" and response.content:
        response.json()


def check_error(body: Any) -> None:
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["type"] != "server_error", body
    assert body["error"]["message"]


def repeated(run: Any) -> None:
    """Once, or for as long as was asked for."""
    end_s = perf_counter() + SECONDS / 2
    run()
    while perf_counter() < end_s:
        run()


fuzzed = settings(
    max_examples=400 if SECONDS else 120, deadline=None, database=None,
    suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink],
    derandomize=not SECONDS,
)  # fmt: skip


def test_bodies_with_anything_in_any_field(http: httpx.Client) -> None:
    counts: dict[int, int] = {}

    @fuzzed
    @given(bodies)
    def run(request: tuple[str, dict[str, Any]]) -> None:
        path, body = request
        content = json.dumps(body).encode()
        response = http.post(path, content=content)
        check(response)
        counts[response.status_code] = counts.get(response.status_code, 0) + 1

    repeated(run)
    print("statuses:", counts)
    assert counts[200] > 3, "the fuzzer finds its way to answers"
    assert counts[400] > 10


def test_bytes_of_any_kind_on_every_path(http: httpx.Client) -> None:
    @fuzzed
    @given(verbs, paths, raw)
    def run(verb: str, path: str, content: bytes) -> None:
        response = http.request(verb, path, content=content)
        if verb == "OPTIONS":
            assert response.status_code == 204
        else:
            check(response)

    repeated(run)
    assert http.get("/health").status_code == 200

"""The server's interface on table models, over real sockets of this machine."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from time import perf_counter
from typing import Any

import numpy as np
import pytest
from benchmarks.gpu.enforced import EnforcedTarget
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

from duodec.core.events import Finished
from duodec.core.sampling.sampler import Context, SamplingParams
from duodec.errors import BadOption
from duodec.llm import LLM
from duodec.server.settings import Settings
from duodec.testing import TableTarget

ERROR_FIELDS = {"message", "type", "param", "code"}


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as server:
        yield server


def text_of(text: str, params: SamplingParams, num_tokens: int, **options: Any) -> str:
    """What the library says."""
    engine = engine_on_tables()
    prompt: Any = text if options.pop("raw", False) else [{"role": "user", "content": text}]
    last = list(engine.stream(prompt, replace(params, max_tokens=num_tokens), **options))[-1]
    assert isinstance(last, Finished)
    return last.text


def refused(response: Any, status: int) -> dict[str, Any]:
    """An error in OpenAI's shape."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == ERROR_FIELDS
    assert isinstance(body["error"]["message"], str)
    assert body["error"]["code"] is None or isinstance(body["error"]["code"], str)
    error: dict[str, Any] = body["error"]
    return error


# answers


@pytest.mark.parametrize("temperature", [0, 0.8])
@pytest.mark.parametrize("speculation", [None, False, {"method": "duo"}, {"method": "lookup"},
                                         {"method": "auto", "max_draft": 4}])  # fmt: skip
def test_one_seed_gives_the_librarys_text(
    server: Running, temperature: float, speculation: Any
) -> None:
    params = SamplingParams(temperature=temperature, top_p=0.9, seed=5)
    response = server.chat(
        temperature=temperature, top_p=0.9, seed=5, max_tokens=40, speculation=speculation
    )
    (choice,) = response.json()["choices"]
    assert choice["message"]["content"] == text_of("hello", params, 40)
    assert choice["finish_reason"] == "length"


def test_a_stream_says_what_the_whole_says(server: Running) -> None:
    whole = server.chat().json()
    response = server.chat(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = events(response.text)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    said = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks)
    assert said == whole["choices"][0]["message"]["content"]
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + [
        "length"
    ]
    assert len({c["id"] for c in chunks}) == 1
    assert all("usage" not in c for c in chunks)
    assert chunks[-1]["timings"]["predicted_n"] == 20


def test_usage_comes_last_and_only_where_it_is_asked_for(server: Running) -> None:
    chunks = events(server.chat(stream=True, stream_options={"include_usage": True}).text)
    assert all(c["usage"] is None for c in chunks[:-1])
    assert all(c["choices"] for c in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 20
    assert chunks[-1]["usage"]["prompt_tokens"] == 7
    assert chunks[-1]["metrics"]["time_to_first_token_ms"] > 0


def test_several_answers_are_those_of_their_choices(server: Running) -> None:
    body = server.chat(n=3, temperature=1).json()
    params = SamplingParams(temperature=1, seed=1)
    found = {c["index"]: c["message"]["content"] for c in body["choices"]}
    assert found == {i: text_of("hello", params, 20, choice=i) for i in range(3)}
    assert (body["usage"]["completion_tokens"], body["metrics"]) == (60, None)
    chunks = events(server.chat(n=3, temperature=1, stream=True).text)
    streamed = dict.fromkeys(range(3), "")
    for chunk in chunks:
        choice = chunk["choices"][0]
        streamed[choice["index"]] += choice["delta"].get("content", "")
    assert streamed == found


def test_stops_and_limits(server: Running) -> None:
    text = server.chat(max_tokens=40).json()["choices"][0]["message"]["content"]
    stop = text[10:12]
    body = server.chat(max_tokens=40, stop=[stop, "zzzz"]).json()
    (choice,) = body["choices"]
    assert choice["message"]["content"] == text[: text.find(stop)]
    assert choice["finish_reason"] == "stop"
    both = server.chat(max_tokens=40, max_completion_tokens=3).json()
    assert both["usage"]["completion_tokens"] == 3
    full = server.chat(max_tokens=None).json()
    assert full["usage"]["total_tokens"] == 400
    assert full["choices"][0]["finish_reason"] == "length"


def test_an_end_token_ends_and_is_counted() -> None:
    engine = engine_on_tables(tokenizer=Letters(ends=True))
    with running(engine) as server:
        body = server.chat(
            max_tokens=50, temperature=1, logit_bias={str(Letters().eos): 8}, logprobs=True
        ).json()
    (choice,) = body["choices"]
    assert choice["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == len(choice["message"]["content"]) + 1
    assert len(choice["logprobs"]["content"]) == len(choice["message"]["content"])


def test_text_completions(server: Running) -> None:
    body = server.complete(["hello", "world"], n=2, temperature=0.7, max_tokens=10).json()
    params = SamplingParams(temperature=0.7, seed=1)
    expected = [
        text_of(text, params, 10, choice=i, raw=True) for text in ("hello", "world")
        for i in range(2)
    ]  # fmt: skip
    assert [c["text"] for c in sorted(body["choices"], key=lambda c: c["index"])] == expected
    assert body["usage"]["prompt_tokens"] == 10
    assert server.complete("hello", max_tokens=None).json()["usage"]["completion_tokens"] == 16
    tokens = [7, 4, 11, 11, 14]
    same = server.complete(tokens, max_tokens=10, temperature=0.7).json()
    assert same["choices"][0]["text"] == expected[0]
    echoed = server.complete("hello", echo=True, max_tokens=10, temperature=0.7).json()
    assert echoed["choices"][0]["text"] == "hello" + expected[0]
    chunks = events(server.complete("hello", stream=True, max_tokens=10, temperature=0.7).text)
    assert "".join(c["choices"][0]["text"] for c in chunks) == expected[0]


def test_content_may_be_parts_and_roles_are_the_templates(server: Running) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "developer", "content": "x"}, {"role": "user", "content": parts}]
    same = [{"role": "system", "content": "x"}, {"role": "user", "content": "hello"}]
    first, second = (server.chat(messages=m).json()["choices"] for m in (messages, same))
    assert first == second


# what answers carry


@pytest.mark.parametrize(
    ("method", "max_draft"),
    [
        *product(("sps", "lookup", "stream", "auto"), (None, 8)),
        *product(("pearl", "duo", "recycling"), (None,)),
    ],
)
def test_what_aiperf_checks_of_acceptance_holds(
    server: Running, method: str, max_draft: int | None
) -> None:
    """aiperf/common/models/spec_decode_models.py of 0.13.0, and its adapter for vLLM's names."""
    speculation = {"method": method, **({"max_draft": max_draft} if max_draft else {})}
    body = server.chat(max_tokens=60, speculation=speculation).json()
    spec = body["metrics"]["speculative_decoding"]
    if spec is None:  # nothing was drafted: then it looks no further
        assert body["timings"]["draft_n"] == 0
        return
    histogram = spec["acceptance_histogram"]
    assert all(type(count) is int for count in histogram)
    assert sum(histogram) == spec["num_spec_steps"] > 0
    assert sum(j * count for j, count in enumerate(histogram)) == spec["num_accepted_draft_tokens"]
    assert spec["num_accepted_draft_tokens"] <= spec["num_draft_tokens"]
    assert spec["mean_acceptance_length"] >= 1
    assert 0 <= spec["draft_acceptance_rate"] <= 1
    if spec["num_spec_tokens"] is not None:
        assert len(histogram) == spec["num_spec_tokens"] + 1


def test_the_answer_says_what_it_cost(server: Running) -> None:
    body = server.chat(max_tokens=60, speculation={"method": "stream", "max_draft": 8}).json()
    metrics, timings = body["metrics"], body["timings"]
    spec = metrics["speculative_decoding"]
    assert spec["num_draft_tokens"] == timings["draft_n"] > 0
    assert spec["num_accepted_draft_tokens"] == timings["draft_n_accepted"] > 0
    assert sum(spec["acceptance_histogram"]) == spec["num_spec_steps"]
    assert (
        sum(map(sum, spec["acceptance_histogram_by_draft_length"].values()))
        == (spec["num_spec_steps"])
    )
    assert max(map(int, spec["acceptance_histogram_by_draft_length"])) <= 8
    assert spec["mean_acceptance_length"] == 1 + (
        spec["num_accepted_draft_tokens"] / spec["num_spec_steps"]
    )
    assert metrics["tokens_per_second"] > 0
    assert metrics["queue_time_ms"] >= 0
    assert body["duodec"]["method"] == "stream"
    assert body["duodec"]["seed"] == 1
    plain = server.chat(speculation=False).json()
    assert plain["metrics"]["speculative_decoding"] is None
    assert plain["timings"]["draft_n"] == 0


def test_drafted_text_can_be_told_apart(server: Running) -> None:
    chunks = events(
        server.chat(
            stream=True, max_tokens=60, speculation={"method": "stream", "show_drafted": True}
        ).text
    )
    pieces = [c for c in chunks if c["choices"][0].get("segments")]
    for chunk in pieces:
        choice = chunk["choices"][0]
        assert "".join(s["text"] for s in choice["segments"]) == choice["delta"]["content"]
    assert {s["is_drafted"] for c in pieces for s in c["choices"][0]["segments"]} == {True, False}
    assert pieces[-1]["timings"]["predicted_n"] == 60


@pytest.mark.parametrize("speculation", [False, {"method": "duo"}, {"method": "stream"}])
@pytest.mark.parametrize("temperature", [0, 1])
def test_logprobs_are_the_models_own(server: Running, speculation: Any, temperature: float) -> None:
    body = server.chat(
        logprobs=True, top_logprobs=3, speculation=speculation, temperature=temperature
    ).json()
    (choice,) = body["choices"]
    content = choice["logprobs"]["content"]
    text = choice["message"]["content"]
    assert "".join(entry["token"] for entry in content) == text
    prompt = Letters().tokenize("uhelloa", is_templated=True)
    for i, entry in enumerate(content):
        tokens = [*prompt, *Letters().tokenize(text[:i], is_templated=False)]
        row = TABLE.logits(Context(np.array(tokens, dtype=np.int32))).astype(np.float64)
        distributions = row - np.log(np.exp(row - row.max()).sum()) - row.max()
        assert entry["logprob"] == pytest.approx(
            distributions[prompt_token(entry["token"])], abs=1e-6
        )
        assert entry["bytes"] == list(entry["token"].encode())
        assert len(entry["top_logprobs"]) == 3
        assert entry["top_logprobs"][0]["logprob"] == pytest.approx(distributions.max(), abs=1e-6)
    chunks = events(
        server.chat(
            logprobs=True, top_logprobs=3, speculation=speculation, temperature=temperature,
            stream=True,
        ).text
    )  # fmt: skip
    parts = [c["choices"][0]["logprobs"] or {"content": []} for c in chunks]
    streamed = [entry for part in parts for entry in part["content"]]
    assert streamed == content
    assert server.chat(logprobs=True).json()["choices"][0]["logprobs"]["content"][0][
        "top_logprobs"
    ] == []  # fmt: skip


def prompt_token(text: str) -> int:
    (token,) = Letters().tokenize(text, is_templated=False)
    return token


def test_text_completions_have_logprobs_of_the_old_form(server: Running) -> None:
    body = server.complete("hello", logprobs=2, temperature=0).json()
    (choice,) = body["choices"]
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == choice["text"]
    assert found["text_offset"] == list(range(20))
    assert all(len(top) == 2 for top in found["top_logprobs"])
    assert found["token_logprobs"] == [max(top.values()) for top in found["top_logprobs"]]


# tools

TOOL_TEMPLATE = (
    "{% if tools %}{{ tools | length }} <tool_call>{% endif %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}a"
)
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


class Bytes(Letters):
    """A vocabulary of bytes."""

    def __init__(self) -> None:
        super().__init__(num_vocab=256, chat_template=TOOL_TEMPLATE, eos=0, ends=True)

    def tokenize(self, text: str, *, is_templated: bool) -> list[int]:
        return list(text.encode())

    def piece(self, token: int) -> bytes:
        return bytes([token]) if token else b""


def saying(answer: str, prompt: str) -> tuple[LLM, EnforcedTarget]:
    """An engine whose model says this after the prompt."""
    table = TableTarget(replace(TABLE, num_vocab=256))
    tokenizer = Bytes()
    recording = np.array([*prompt.encode(), *answer.encode(), 0], dtype=np.int32)
    target = EnforcedTarget(table, recording)
    return LLM(target, tokenizer, 600), target


@pytest.mark.parametrize("is_streamed", [False, True])
def test_calls_of_tools(is_streamed: bool) -> None:
    answer = (
        'Let me.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>{"name": "add", "arguments": "{}"}</tool_call>'
    )
    engine, target = saying(answer, "1 <tool_call>hello" + "a")
    with running(engine, target) as server:
        response = server.chat(tools=TOOLS, max_tokens=None, stream=is_streamed, temperature=0)
        if is_streamed:
            chunks = events(response.text)
            deltas = [c["choices"][0]["delta"] for c in chunks]
            calls = [call for d in deltas for call in d.get("tool_calls", ())]
            assert [call.pop("index") for call in calls] == [0, 1]
            text = "".join(d.get("content") or "" for d in deltas)
            reason = chunks[-1]["choices"][0]["finish_reason"]
        else:
            (choice,) = response.json()["choices"]
            calls, text = choice["message"]["tool_calls"], choice["message"]["content"]
            reason = choice["finish_reason"]
    assert (text, reason) == ("Let me.\n", "tool_calls")
    assert [call["function"] for call in calls] == [
        {"name": "add", "arguments": '{"a": 1}'}, {"name": "add", "arguments": "{}"},
    ]  # fmt: skip
    assert all(call["id"].startswith("call_") and call["type"] == "function" for call in calls)


def test_tools_need_a_template_that_has_them(server: Running) -> None:
    error = refused(server.chat(tools=TOOLS), 400)
    assert error["param"] == "tools"
    assert server.chat(tools=TOOLS, tool_choice="none").status_code == 200


# what is refused


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "warm"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 10**9}, "n"),
        ({"seed": "x"}, "seed"),
        ({"seed": 1 << 70}, "seed"),
        ({"stop": [1]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "stream_options": 3}, "stream_options"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
         "messages[0].content"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 1000}}, "logit_bias.1"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 100}, "top_logprobs"),
        ({"speculation": 3}, "speculation"),
        ({"speculation": {"max_draft": 1000}}, "speculation.max_draft"),
        ({"response_format": {"type": "poem"}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"temperature": 10**400}, "temperature"),
        ({"messages": [{"role": "user", "content": "x"}, {"content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
         "messages[0].tool_calls[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice"),
        ({"structured_outputs": {"regex": 1}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
         "structured_outputs"),
    ],
)  # fmt: skip
def test_fields_of_wrong_types_and_values(
    server: Running, fields: dict[str, Any], param: str
) -> None:
    assert refused(server.chat(**fields), 400)["param"] == param


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": {"999": 1}},
        {"speculation": {"method": "rest"}},
        {"speculation": {"method": "magic"}},
        {"speculation": {"method": "lookahead", "max_draft": 3}},
        {"n": 64, "max_tokens": 1000000, "model": None, "messages": [
            {"role": "user", "content": "x" * 1000}]},
    ],
)  # fmt: skip
def test_what_the_engine_refuses_is_refused_before_a_stream_begins(
    server: Running, fields: dict[str, Any]
) -> None:
    refused(server.chat(**fields, stream=True), 400)


def test_a_prompt_that_is_too_long(server: Running) -> None:
    error = refused(server.chat("x" * 1000), 400)
    assert error["code"] == "context_length_exceeded"
    assert "400" in error["message"]
    assert error["param"] == "messages"
    assert refused(server.complete("x" * 1000), 400)["param"] == "prompt"
    asked = server.post("/v1/responses", {"model": MODEL, "input": "x" * 1000})
    assert refused(asked, 400)["param"] == "input"


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"3", b'{"a": NaN}', b"\xff\xfe", b"[" * 100_000,
             b'"\\ud800"'],
)  # fmt: skip
def test_bodies_that_are_no_object(server: Running, body: bytes) -> None:
    response = server.http.post("/v1/chat/completions", content=body)
    refused(response, 400)


def test_unknown_models_and_paths(server: Running) -> None:
    with running(strict_model=True) as strict:
        assert refused(strict.chat(model="gpt-9", n="x"), 404)["code"] == "model_not_found"
        assert refused(strict.chat(model="gpt-9"), 404)["code"] == "model_not_found"
    refused(server.http.get("/v1/models/gpt-9"), 404)
    refused(server.http.get("/v1/nothing"), 404)
    refused(server.http.get("/v1/chat/completions"), 405)
    bodies = {"embeddings": {"input": "a"}, "rerank": {"query": "a", "documents": ["b"]}}
    for path in ("embeddings", "rerank", "score"):  # clients try a 501 three times
        error = refused(server.post(f"/v1/{path}", bodies.get(path, {})), 400)
        assert error["code"] == "not_served"
        assert path == "score" or "names no pooling" in error["message"]


def test_one_model_answers_to_any_name_and_says_its_own(server: Running) -> None:
    for name in ("gpt-9", "Tables", "tables:latest", "TABLES:latest", "", None):
        for told in (server.chat(model=name), server.complete(model=name)):
            assert told.json()["model"] == MODEL
    with running(strict_model=True) as strict:
        for name in ("Tables", "tables:latest", "TABLES:LATEST"):
            assert strict.chat(model=name).json()["model"] == MODEL
        for name in ("tables:other", "table", "", "latest"):
            refused(strict.chat(model=name), 404)


def test_paths_without_the_version_are_those_with_it() -> None:
    messages = [{"role": "user", "content": "hi"}]
    bodies = {
        "/chat/completions": {"messages": messages, "max_tokens": 2},
        "/completions": {"prompt": "hi"},
        "/responses": {"input": "hi", "max_output_tokens": 2},
        "/messages": {"messages": messages, "max_tokens": 2},
        "/messages/count_tokens": {"messages": messages},
    }
    key = {"Authorization": "Bearer key"}
    with running(api_keys=("key",)) as server:
        for path, body in bodies.items():
            assert server.post(path, body, headers=key).status_code == 200, path
            assert server.post(path, body).status_code == 401, path
        assert server.http.get("/models", headers=key).json()["data"][0]["id"] == MODEL
        assert server.http.get("/models/tables", headers=key).json()["id"] == MODEL
        for path in ("/models", "//models", "/models/tables", "/v1//models"):
            assert server.http.get(server.url + path).status_code == 401, path
        assert server.post("/messages", {}).json()["type"] == "error"  # in Anthropic's shape
        assert server.post("/embeddings", {}, headers=key).status_code == 400


def test_fields_that_clients_send_by_habit_have_no_effect(server: Running) -> None:
    assert server.chat(user="me", metadata={"a": 1}, store=False, model=None).status_code == 200


def test_bodies_beyond_the_limit() -> None:
    with running(max_body_bytes=1000) as server:

        def parts() -> Iterator[bytes]:
            for _ in range(100):
                yield b"x" * 100

        for _ in range(10):
            found = [
                server.chat("x" * 2000), server.http.post("/v1/chat/completions", content=parts())
            ]  # fmt: skip
            for response in found:
                refused(response, 413)
                assert response.headers["connection"] == "close", "no request can follow"
            assert server.chat().status_code == 200


# access


def test_keys() -> None:
    with running(api_keys=("secret", "other")) as server:
        refused(server.chat(), 401)
        refused(server.http.get("/v1/models", headers={"Authorization": "Bearer wrong"}), 401)
        refused(server.http.get("/v1/models", headers={"Authorization": "Basic secret"}), 401)
        for key in ("secret", "other"):
            headers = {"Authorization": f"Bearer {key}"}
            assert server.http.get("/v1/models", headers=headers).status_code == 200
        assert server.http.get("/health").status_code == 200
        assert server.http.get("/").status_code == 200


def test_origins(server: Running) -> None:
    def asked(origin: str, method: str = "GET") -> Any:
        headers = {"Origin": origin}
        if method == "OPTIONS":
            headers["Access-Control-Request-Method"] = "POST"
        return server.http.request(method, "/v1/models", headers=headers)

    refused(asked("https://evil.example.org"), 403)
    local = asked("http://localhost:3000")
    assert local.headers["access-control-allow-origin"] == "http://localhost:3000"
    preflight = asked("http://localhost:3000", "OPTIONS")
    assert preflight.status_code == 204
    assert "x-stainless-lang" in preflight.headers["access-control-allow-headers"]
    evil = asked("https://evil.example.org", "OPTIONS")
    assert evil.headers.get("access-control-allow-origin") is None
    refused(evil, 403)
    rebound = {"Host": "evil.example.org", "Origin": "http://evil.example.org"}
    refused(server.http.get("/v1/models", headers=rebound), 403)
    assert server.http.get("/v1/models", headers={"Origin": server.url}).status_code == 200
    with running(cors_origins=("https://chat.example.org",)) as other:
        headers = {"Origin": "https://chat.example.org"}
        found = other.http.get("/v1/models", headers=headers)
        assert found.headers["access-control-allow-origin"] == headers["Origin"]


_READABLE = ("/v1/models", "/slots", "/props", "/metrics", "/health", "/")
_LED_HERE = (
    "evil.example.org", "evil.example.org:8000", "localhost.evil.org", "127.0.0.1.evil.org",
    "xlocalhost", "evil.org:80/localhost", "evil.org@localhost", "localhost, evil.org", "[::1",
    "a b", "local", "127.0.0.1:8000:1",
)  # fmt: skip


@pytest.mark.parametrize("path", _READABLE)
def test_a_page_whose_name_leads_here_reads_nothing(server: Running, path: str) -> None:
    """It asks its own origin, as its browser sees it, and so sends no Origin header."""
    for host in _LED_HERE:
        refused(server.http.get(path, headers={"Host": host}), 403)


@pytest.mark.parametrize("host", [
    "localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1:9", "192.0.2.7:8000", "[::1]:8000",
    "app.localhost", "nas.local:8000", "host.docker.internal:8000", socket.gethostname(), "",
])  # fmt: skip
def test_this_machine_is_called_by_its_own_names(server: Running, host: str) -> None:
    assert server.http.get("/v1/models", headers={"Host": host}).status_code == 200


def test_names_that_the_operator_allows_are_our_own() -> None:
    with running(cors_origins=("https://chat.example.org", "http://[")) as server:
        for host, status in (("chat.example.org", 200), ("evil.org", 403)):
            found = server.http.get("/v1/models", headers={"Host": host})
            assert found.status_code == status
    with running(cors_origins=("*",)) as server:
        assert server.http.get("/v1/models", headers={"Host": "any.org"}).status_code == 200
    with running(host="0.0.0.0") as server:
        assert server.http.get("/v1/models", headers={"Host": "any.org"}).status_code == 200


def test_a_request_has_one_host(server: Running) -> None:
    address = server.url.removeprefix("http://").split(":")
    for second in (b"evil.example.org", b"localhost"):
        with socket.create_connection((address[0], int(address[1]))) as sock:
            lines = b"Host: localhost\r\nhost: %s\r\n\r\n" % second
            sock.sendall(b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n" + lines)
            assert sock.recv(1000).startswith(b"HTTP/1.1 400")


# operation


def test_models_health_and_what_is_known(server: Running) -> None:
    body = server.http.get("/v1/models").json()
    (model,) = body["data"]
    assert (body["object"], model["id"], model["object"]) == ("list", MODEL, "model")
    assert isinstance(model["created"], int)
    assert model["max_model_len"] == 400
    assert server.http.get(f"{server.url}//v1//models").json() == body
    assert server.http.get(f"/v1/models/{MODEL}").json() == model
    assert server.http.get("/health").json() == {"status": "ok"}
    assert server.http.get("/props").json()["speculation"]["has_draft_model"]
    assert server.http.get("/props").json()["busy_cores"] >= 0
    assert len(server.http.get("/slots").json()) == 4
    page = server.http.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "duodec" in page.text
    assert "x-request-id" in page.headers


def test_while_it_loads() -> None:
    with running(is_loaded=False) as server:
        assert server.http.get("/health").status_code == 503
        assert server.http.get("/v1/models").json()["data"][0]["id"] == MODEL
        response = server.chat()
        refused(response, 503)
        assert response.headers["retry-after"]
        assert server.http.get("/metrics").status_code == 200
        assert server.http.get("/slots").json() == []


def test_counters_are_the_sums_over_requests() -> None:
    with running() as server:
        found = [
            server.chat(text, speculation=s, n=1, max_tokens=30, temperature=1).json()
            for text in ("hello", "world", "again")
            for s in (False, {"method": "stream"}, {"method": "duo"})
        ]
        sums = {
            "duodec:prompt_tokens_total": sum(f["usage"]["prompt_tokens"] for f in found),
            "duodec:generation_tokens_total": sum(f["usage"]["completion_tokens"] for f in found),
            "duodec:spec_decode_num_draft_tokens_total": sum(
                f["timings"]["draft_n"] for f in found
            ),
            "duodec:spec_decode_num_accepted_tokens_total": sum(
                f["timings"]["draft_n_accepted"] for f in found
            ),
            "duodec:spec_decode_num_accepted_tokens_per_pos_total": sum(
                f["timings"]["draft_n_accepted"] for f in found
            ),
            "duodec:request_success_total": len(found),
        }
        assert {name: server.counter(name) for name in sums} == sums
        assert server.counter("duodec:num_requests_running") == 0
    with running(metrics_prefix="vllm") as other:
        assert other.counter("vllm:num_requests_waiting") == 0
        assert "vllm:spec_decode_num_drafts_total" in other.http.get("/metrics").text


def test_eight_clients_at_once_get_what_each_gets_alone() -> None:
    with running(num_slots=8) as server:
        wanted = [(f"hello {i}", i) for i in range(16)]
        found: dict[int, str] = {}

        def ask(text: str, seed: int) -> None:
            body = server.chat(text, seed=seed, temperature=0.9, max_tokens=50).json()
            found[seed] = body["choices"][0]["message"]["content"]

        threads = [threading.Thread(target=ask, args=pair) for pair in wanted]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for text, seed in wanted:
        assert found[seed] == text_of(text, SamplingParams(temperature=0.9, seed=seed), 50)


def test_a_client_that_leaves_frees_its_place() -> None:
    engine = engine_on_tables(num_context=4000)
    with running(engine, Slowed(engine.loaded.target, 0.02), num_slots=1) as server:
        for is_streamed in (True, False):
            sock = socket.create_connection(server.url.removeprefix("http://").split(":"))
            data = json.dumps({"messages": [{"role": "user", "content": "hi"}],
                               "stream": is_streamed, "max_tokens": 3000}).encode()  # fmt: skip
            sock.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                + str(len(data)).encode() + b"\r\n\r\n" + data
            )  # fmt: skip
            until(lambda: server.counter("duodec:num_requests_running") == 1)
            sock.close()
            left_s = perf_counter()
            until(lambda: server.counter("duodec:num_requests_running") == 0)
            assert perf_counter() - left_s < 20, "an answer takes 60 seconds"
        assert server.counter("duodec:request_success_total") == 2
        assert server.chat(max_tokens=3).status_code == 200


def test_too_many_are_told_to_come_back() -> None:
    engine = engine_on_tables(num_context=4000)
    with running(engine, Slowed(engine.loaded.target, 0.01), num_slots=1, num_queued=0) as server:
        with server.stream(max_tokens=2000) as response:
            assert response.status_code == 200
            second = server.chat()
            refused(second, 429)
            assert int(second.headers["retry-after"]) >= 1
        refused(server.chat(n=2), 400)  # more than it ever takes


def test_a_request_that_takes_too_long() -> None:
    engine = engine_on_tables(num_context=4000)
    with running(engine, Slowed(engine.loaded.target, 0.02), timeout_s=0.3) as server:
        response = server.chat(max_tokens=2000)
        refused(response, 408)
        assert response.headers["x-should-retry"] == "false"
        chunks = events(server.chat(max_tokens=2000, stream=True).text)
        assert chunks[-1]["error"]["code"] == "timeout"
        until(lambda: server.counter("duodec:num_requests_running") == 0)


def test_a_silent_stream_says_that_it_lives() -> None:
    engine = engine_on_tables()
    with running(engine, Slowed(engine.loaded.target, 0.3), ping_s=0.05) as server:
        text = server.chat(stream=True, max_tokens=2, speculation=False).text
    assert ": ping\n" in text
    assert ": ping\n\n" not in text
    assert len(events(text)) == 4


def test_a_mistake_of_ours_ends_one_answer_in_openais_shape() -> None:
    engine = engine_on_tables()

    def fail(queries: Any) -> None:
        if any(len(query.text) == 17 for query in queries):
            raise RuntimeError("a secret of ours")

    with running(engine, Slowed(engine.loaded.target, on_score=fail)) as server:
        error = refused(server.chat(speculation=False), 500)
        assert "secret" not in error["message"]
        chunks = events(server.chat(speculation=False, stream=True).text)
        assert chunks[-1]["error"]["code"] == "internal_error"
        assert server.chat(speculation=False, max_tokens=3).status_code == 200
        assert server.counter("duodec:request_success_total") == 3


def test_the_end_waits_for_answers_that_come_to_theirs() -> None:
    engine = engine_on_tables()
    with (
        running(engine, Slowed(engine.loaded.target, 0.01), grace_s=20) as server,
        server.stream(max_tokens=100) as response,
    ):
        lines = response.iter_lines()
        next(lines)
        server.server.should_exit = True
        text = "\n".join(lines)
    assert '"finish_reason":"length"' in text
    assert text.rstrip().endswith("data: [DONE]")


def test_the_end_ends_answers_that_take_too_long() -> None:
    engine = engine_on_tables(num_context=100_000)
    with (
        running(engine, Slowed(engine.loaded.target, 0.01), grace_s=0.2) as server,
        server.stream() as response,
    ):
        lines = response.iter_lines()
        next(lines)
        server.server.should_exit = True
        begin_s = perf_counter()
        text = "\n".join(lines)
        assert perf_counter() - begin_s < 5
    assert "shutting down" in text
    assert text.rstrip().endswith("data: [DONE]")


def test_settings_that_make_no_sense() -> None:
    for values in ({"port": 70000}, {"num_slots": 0}, {"timeout_s": float("nan")},
                   {"api_keys": ("",)}):  # fmt: skip
        with pytest.raises(BadOption):
            Settings("m", **values)  # type: ignore[arg-type]


def test_the_published_rule_tells_logprobs(server: Running) -> None:
    method = {"method": "sps-rejection"}
    choice = server.chat(logprobs=True, speculation=method).json()["choices"][0]
    told = "".join(entry["token"] for entry in choice["logprobs"]["content"])
    assert told == choice["message"]["content"]


@pytest.mark.parametrize(
    ("method", "known"),
    [
        ("ar", {None}),
        ("sps:2", {None, "draft model"}),
        ("duo", {None, "draft model"}),
        ("recycling", {None, "earlier text"}),
        ("stream", {None, "draft model", "earlier text"}),
    ],
)
def test_a_stream_says_what_proposed_its_tokens(
    server: Running, method: str, known: set[str | None]
) -> None:
    name, _, most = method.partition(":")
    wanted = {"method": name, "show_drafted": True, **({"max_draft": int(most)} if most else {})}
    chunks = events(
        server.chat(
            stream=True, max_tokens=200, speculation=wanted, stream_options={"include_usage": True}
        ).text
    )
    segments = [one for chunk in chunks for choice in chunk["choices"][:1]
                for one in choice.get("segments", ())]  # fmt: skip
    assert {one["source"] for one in segments} == known
    assert all(one["is_drafted"] is (one["source"] is not None) for one in segments)
    timings = chunks[-1]["timings"]
    by_model = sum(one["source"] == "draft model" for one in segments)  # letters: a token each
    assert timings["draft_n_accepted_from_model"] == by_model
    assert timings["draft_n_accepted"] == sum(one["is_drafted"] for one in segments)
    plain_ms = timings["plain_ms"]
    assert plain_ms > 0 if method == "ar" else plain_ms is None or plain_ms > 0

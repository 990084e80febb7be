"""Odd JSON in every field of every endpoint: a response or a refusal, never a 500 or a silence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fakes.server import Running, running
from fakes.tags import Tags, random_model
from pydantic import ValidationError

from duodec.server.api.anthropic.message_bodies import MessagesBody
from duodec.server.api.fields import Object, validated
from duodec.server.api.ollama.bodies import OllamaChatBody
from duodec.server.api.openai.completion_bodies import ChatBody, CompletionBody
from duodec.server.api.openai.response_bodies import ResponsesBody
from duodec.server.api.tokenizing import DetokenizeBody, TokenizeBody
from duodec.server.errors import ApiError

CLEAN = {200, 400, 404, 413, 422, 429}
TEMPLATE = (
    "{% for t in tools or [] %}{{ t|tojson }}{% endfor %}<tool_call>"
    "{% if x is defined %}{{ x|tojson }}{% endif %}"
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{{ m.name or '' }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}a"
)
ODD = {
    "above all floats": "1e400", "below all floats": "-1e400", "digits": "9" * 400 + ".0",
    "the largest": "1.7976931348623157e308", "no number": "NaN", "infinity": "-Infinity",
    "a long integer": "1" + "0" * 4000, "too long an integer": "1" * 5000, "2 ** 64": str(1 << 64),
    "minus zero": "-0.0", "tiny": "1e-400", "half a character": '"\\ud800"',
    "halves in the wrong order": '"\\udc00\\ud800"', "a name with a half": '{"\\ud800": 1}',
    "deep": "[" * 90 + "]" * 90, "too deep": "[" * 200 + "]" * 200,
    "far too deep": '{"a":' * 20_000 + "1" + "}" * 20_000, "nothing": '"\\u0000"',
    "nested infinity": '{"a": [{"b": 1e999}]}', "the same name twice": '{"a": 1, "a": 1e400}',
    "an escaped text": '"\\\\ud800 \\" [[[["', "true": "true", "an empty name": '{"": {}}',
}  # fmt: skip
REFUSED = (
    "above all floats", "below all floats", "digits", "no number", "infinity", "too deep",
    "too long an integer", "far too deep", "nested infinity", "the same name twice",
)  # fmt: skip
QUICK = {"above all floats", "no number", "half a character", "deep", "far too deep", "true"}
SLOW = pytest.mark.slow
SAY = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
SHARED: dict[str, Any] = {
    "max_tokens": 2, "temperature": 0.5, "top_p": 1, "top_k": 2, "min_p": 0, "seed": 1,
    "presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1, "repeat_penalty": 1,
    "logit_bias": {"3": 1}, "stop": ["x"], "n": 1, "user": "u", "speculation": {"max_draft": 2},
    "response_format": {"type": "text"}, "structured_outputs": {"regex": "a"}, "unknown": 1,
    "stream_options": {"include_usage": True}, "timings_per_token": True, "model": None,
    "metadata": {"k": "v"}, "grammar": "start: \"a\"", "json_schema": {"type": "null"},
    "guided_json": {"type": "null"}, "stop_token_ids": [3], "ignore_eos": True,
}  # fmt: skip
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        **SHARED, "messages": SAY, "max_completion_tokens": 2, "logprobs": True, "top_logprobs": 1,
        "tools": [TOOL], "tool_choice": "auto", "chat_template_kwargs": {"x": 1},
        "reasoning_effort": "low", "parallel_tool_calls": True,
    },
    "/v1/completions": {**SHARED, "prompt": "hi", "logprobs": 1, "suffix": "", "echo": True,
                        "best_of": 1},
    "/v1/responses": {
        "input": "hi", "instructions": "x", "max_output_tokens": 2, "metadata": {"k": "v"},
        "tools": [{"type": "function", "name": "f"}], "tool_choice": "auto", "text": {},
        "reasoning": {"effort": "low"}, "store": True, "temperature": 1, "top_p": 1, "seed": 1,
        "previous_response_id": "resp_1", "background": False, "chat_template_kwargs": {"x": 1},
        "parallel_tool_calls": True, "stop": "x",
    },
}  # fmt: skip
BODIES["/v1/messages"] = {
    "messages": SAY, "system": "x", "stop_sequences": ["x"], "temperature": 1, "top_p": 1,
    "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto"},
    "thinking": {"type": "disabled"}, "output_config": {"effort": "low"}, "metadata": {},
    "chat_template_kwargs": {"x": 1}, "stream": False, "max_tokens": 2, "model": None,
    "cache_control": {}, "seed": 1,
}  # fmt: skip
_HOLE = "\ue000HOLE"
H: Any = _HOLE
# by path, bodies with a hole somewhere deep, where what is sent is repeated, rendered or compiled
INNER: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"messages": [{"role": "user", "content": "hi", "name": H}]},
        {"messages": [{"role": H, "content": "hi"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": H}]}]},
        {"messages": [*SAY, {"role": "assistant", "content": None, "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": {"x": H}}}]}]},
        {"messages": [*SAY, {"role": "assistant", "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": H}}]}]},
        {"messages": SAY, "tools": [{**TOOL, "x": H}]},
        {"messages": SAY, "tools": [{"type": "function", "function": {
            "name": "f", "parameters": {"properties": {"x": {"const": H}}}}}],
            "tool_choice": "required"},
        {"messages": SAY, "chat_template_kwargs": {"x": H}},
        {"messages": SAY, "logit_bias": {"3": H}},
        {"messages": SAY, "speculation": {"max_draft": H}},
        {"messages": SAY, "structured_outputs": {"json": {"enum": [H, 1]}}},
        {"messages": SAY, "structured_outputs": {"choice": [H, "b"]}},
        {"messages": SAY, "structured_outputs": {"regex": H}},
        *({"messages": SAY, "response_format": {"type": "json_schema", "json_schema": {
            "name": H, "schema": {"type": "number", key: H}}}}
          for key in ("minimum", "multipleOf", "const", "$ref", "x-guidance", "properties")),
    ],
    "/v1/completions": [{"prompt": [H]}, {"prompt": [[H]]}, {"prompt": [1, H]},
                        {"prompt": "a", "logit_bias": {"3": H}}],
    "/v1/messages": [
        {"messages": [{"role": "user", "content": [{"type": H, "text": H}]}]},
        {"messages": [{"role": H, "content": H}, *SAY]},
        {"messages": [{"role": "assistant", "content": [
            {"type": "tool_use", "name": "f", "id": H, "input": H},
            {"type": "thinking", "thinking": H}]}, *SAY]},
        {"messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": H, "content": H}]}]},
        {"messages": SAY, "system": [{"type": "text", "text": H}]},
        {"messages": SAY, "tools": [{"name": "f", "description": H, "input_schema": H}]},
        {"messages": SAY, "tools": [{"name": "f", "input_schema": {"properties": {"x": H}}}],
         "tool_choice": {"type": "tool", "name": H}},
    ],
    "/v1/responses": [
        {"input": "hi", "metadata": {"k": H}}, {"input": "hi", "metadata": {"k": [[H]]}},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": H}]}]},
        {"input": [{"type": "function_call", "name": "f", "arguments": H, "call_id": H}]},
        {"input": [{"type": "function_call_output", "output": "x", "call_id": H}, *SAY]},
        {"input": [{"type": "reasoning", "content": [{"type": "text", "text": H}]}, *SAY]},
        {"input": "hi", "tools": [{"type": "function", "name": "f", "description": H}]},
        {"input": "hi", "tools": [{"type": "function", "name": "f", "parameters": {"x": H}}]},
        {"input": "hi", "tool_choice": {"type": "function", "name": H}},
        {"input": "hi", "text": {"format": {"type": "json_schema", "schema": {"const": H}}}},
        {"input": "hi", "text": {"format": {"type": H, "name": H}}},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(random_model(Tags(TEMPLATE))) as server:
        yield server


def with_hole(body: dict[str, Any], name: str) -> dict[str, Any]:
    least = {key: body[key] for key in ("messages", "prompt", "input") if key in body}
    return {**least, name: _HOLE}


def check(response: httpx.Response) -> None:
    assert response.status_code in CLEAN, response.text[:500]
    if response.status_code != 200:
        error = response.json()["error"]
        assert error["type"] != "server_error", error
        assert error["message"]
        assert "\n" not in error["message"]
        assert len(error["message"]) < 5000


@pytest.mark.parametrize("odd", [o if o in QUICK else pytest.param(o, marks=SLOW) for o in ODD])
@pytest.mark.parametrize("path", BODIES)
def test_odd_values_in_any_field(server: Running, path: str, odd: str) -> None:
    own = [with_hole(BODIES[path], name) for name in BODIES[path]]
    most = {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 2}
    num_served = 0
    for body in [*own, *INNER[path]]:
        for more in ({}, {"stream": True}):
            limit = {} if "max" in str(body) else most
            text = json.dumps({**limit, **body, **more}).replace(json.dumps(_HOLE), ODD[odd])
            content = {"content-type": "application/json"}
            response = server.http.post(path, content=text.encode(), headers=content)
            check(response)
            num_served += response.status_code == 200
    assert num_served > 2 or odd in REFUSED, "some of them mean something"
    assert server.http.get("/health").status_code == 200


@pytest.mark.parametrize("odd", ODD)
def test_odd_bodies(server: Running, odd: str) -> None:
    for path in BODIES:
        for text in (ODD[odd], f"[{ODD[odd]}]", f'{{"x": {ODD[odd]}}}', f"{{{ODD[odd]}: 1}}"):
            check(server.http.post(path, content=text.encode()))


@pytest.mark.parametrize("odd", ODD)
def test_odd_values_as_tokens_and_texts(server: Running, odd: str) -> None:
    hole = [{"content": H}, {"prompt": H}, {"messages": [{"role": "user", "content": H}]},
            {"messages": SAY, "tools": [H]}, {"prompt": "x", "return_token_strs": H}]  # fmt: skip
    for path, bodies in (("/tokenize", hole), ("/detokenize", [{"tokens": H}, {"tokens": [H]}])):
        for body in bodies:
            text = json.dumps(body).replace(json.dumps(_HOLE), ODD[odd])
            check(server.http.post(path, content=text.encode()))


def test_a_metadata_that_no_response_could_repeat_is_refused(server: Running) -> None:
    text = '{"input": "hi", "metadata": {"a": 1e400}}'
    response = server.http.post("/v1/responses", content=text.encode())
    assert response.status_code == 400
    assert "1e400 is too large" in response.json()["error"]["message"]


_WRONG = [1.5] * 290_000
_SAID = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (ChatBody, {"messages": [{"role": "assistant", "tool_calls": _WRONG}]}),
        (ChatBody, {"messages": _SAID, "stop": _WRONG}),
        (ChatBody, {"messages": _SAID, "stop_token_ids": _WRONG}),
        (CompletionBody, {"prompt": "hi", "stop_token_ids": _WRONG}),
        (MessagesBody, {"messages": _SAID, "max_tokens": 1, "tools": _WRONG}),
        (OllamaChatBody, {"messages": [{"role": "user", "tool_calls": _WRONG}]}),
        (ResponsesBody, {"input": "hi", "include": _WRONG}),
        (TokenizeBody, {"messages": _WRONG}),
        (DetokenizeBody, {"tokens": _WRONG}),
    ],
)
def test_a_long_list_of_wrong_items_is_refused_at_the_first(
    schema: type[Object], body: dict[str, Any]
) -> None:
    with pytest.raises((ValidationError, ApiError)) as error:
        schema.model_validate(body)
    assert not isinstance(error.value, ValidationError) or error.value.error_count() < 5
    with pytest.raises(ApiError) as refused:
        validated(schema, body)
    assert (refused.value.status, len(str(refused.value)) < 200) == (400, True)


@pytest.mark.parametrize(
    "schema", [ChatBody, CompletionBody, MessagesBody, OllamaChatBody, ResponsesBody, TokenizeBody,
               DetokenizeBody],
)  # fmt: skip
def test_no_list_of_a_body_is_validated_beyond_its_first_wrong_item(schema: type[Object]) -> None:
    lists = [one for one in _nodes(schema.__pydantic_core_schema__) if one["type"] == "list"]
    checked = [one for one in lists if one.get("items_schema", {}).get("type", "any") != "any"]
    assert checked
    assert all(one.get("fail_fast") for one in checked)


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """The schemas of all values that a schema has, with their types."""
    if isinstance(schema, dict):
        if isinstance(schema.get("type"), str):
            yield schema
        for value in schema.values():
            yield from _nodes(value)
    elif isinstance(schema, list | tuple):
        for value in schema:
            yield from _nodes(value)

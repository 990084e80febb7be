"""Objects of schemas are closed where that is what their author means."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fakes.server import Running, running
from fakes.tags import Tags, random_model

from duodec.server.api.formats.schemas import closed

pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
TEMPLATE = "{% if tools %}<tool_call>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}a"
SHUT: Any = {"additionalProperties": False}
A: Any = {"type": "object", "properties": {"a": {"type": "null"}}}
B: Any = {"type": "object", "properties": {"b": {"type": "null"}}}


class Inner(pydantic.BaseModel):  # type: ignore[name-defined, misc]
    y: int


class Outer(pydantic.BaseModel):  # type: ignore[name-defined, misc]
    x: Inner
    more: list[Inner] | None = None


def test_every_object_of_a_pydantic_model_is_closed() -> None:
    found = closed(Outer.model_json_schema())
    assert found["additionalProperties"] is False
    assert found["$defs"]["Inner"]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (A, {**A, **SHUT}),
        ({"properties": {"x": A}}, {"properties": {"x": {**A, **SHUT}}, **SHUT}),
        ({"items": A}, {"items": {**A, **SHUT}}),
        ({"anyOf": [A, {"type": "null"}]}, {"anyOf": [{**A, **SHUT}, {"type": "null"}]}),
        ({"prefixItems": [A], "items": False}, {"prefixItems": [{**A, **SHUT}], "items": False}),
        ({"allOf": [A]}, {"allOf": [{**A, **SHUT}]}),
        ({"additionalProperties": A}, {"additionalProperties": {**A, **SHUT}}),
        ({"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": A}},
         {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {**A, **SHUT}}}),
        ({"enum": [A], "const": A, "default": A}, {"enum": [A], "const": A, "default": A}),
    ],
)  # fmt: skip
def test_what_is_closed(schema: Any, expected: Any) -> None:
    assert closed(schema) == expected


@pytest.mark.parametrize(
    "schema",
    [
        True, None, [], "x", {}, {"type": "object"}, {"type": "object", "properties": 3},
        {**A, "additionalProperties": True}, {**A, "additionalProperties": {"type": "null"}},
        {**A, "unevaluatedProperties": False}, {**A, "patternProperties": {"^x": {}}},
        {**A, "required": ["c"]}, {**A, "required": 3}, {**A, "required": [[]]},
        {"allOf": [A, B]}, {**A, "allOf": [B]}, {**A, "anyOf": [B, {}]}, {**A, "oneOf": [B]},
        {**A, "if": B, "then": B}, {"not": A}, {**A, "$ref": "#/$defs/b", "$defs": {"b": B}},
        {"allOf": [{"$ref": "#/$defs/a"}, B], "$defs": {"a": A}},
        {**A, "anyOf": [{"$ref": "#/definitions/b"}, {}], "definitions": {"b": B}},
    ],
)  # fmt: skip
def test_what_stays_as_it_is(schema: Any) -> None:
    assert closed(schema) == schema


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(random_model(Tags(TEMPLATE))) as server:
        yield server


RAW = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": RAW}}


def test_a_schema_comes_to_its_end(server: Running) -> None:
    def finish(**fields: Any) -> tuple[str, Any]:
        (choice,) = server.chat(temperature=3, max_tokens=120, **fields).json()["choices"]
        return choice["finish_reason"], choice["message"]

    for seed in range(6):
        reason, message = finish(response_format=FORMAT, seed=seed)
        assert reason == "stop"
        assert list(json.loads(message["content"])) == ["city"]
        tool = {"type": "function", "function": {"name": "f", "parameters": RAW}}
        reason, message = finish(tools=[tool], tool_choice="required", seed=seed,
                                 parallel_tool_calls=False)  # fmt: skip
        assert reason == "tool_calls"
        (call,) = message["tool_calls"]
        assert list(json.loads(call["function"]["arguments"])) == ["city"]
    open_ones = [
        finish(response_format=FORMAT, seed=seed, schema_objects="open") for seed in range(6)
    ]
    assert any(reason == "length" or len(json.loads(message["content"])) > 1
               for reason, message in open_ones)  # fmt: skip
    response = server.chat(response_format=FORMAT, schema_objects="ajar")
    assert response.json()["error"]["param"] == "schema_objects"

"""Answers in a format, and calls that must be made: what clients ask for is what they get."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from fakes.decoding import TEMPLATE, Printable, proven
from fakes.server import MODEL, Running, events, running
from hypothesis import given, settings
from hypothesis import strategies as st

from duodec.backends.grammar.llguidance import Masks
from duodec.backends.grammar.trial import GrammarTrial
from duodec.llm import LLM
from duodec.server.api.bodies import Body
from duodec.server.api.fields import validated
from duodec.server.api.formats.text import text_grammar
from duodec.testing import InlineDrafter, TableModel, TableTarget

openai = pytest.importorskip("openai", reason="openai is not installed: pip install openai")

TABLE = TableModel(num_vocab=Printable().num_vocab, seed=7)
TOOLS_TEMPLATE = "{% if tools %}<tool_call>{{ tools[0].function.name }}{% endif %}" + TEMPLATE


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    drafter = InlineDrafter(replace(TABLE, noise=0.2).load())
    tokenizer = Printable(chat_template=TOOLS_TEMPLATE)
    engine = LLM(TableTarget(TABLE), tokenizer, 2000, drafter)
    engine.grammars.trial = GrammarTrial(60.0)  # time enough to reach the other limits
    with running(engine) as server:
        yield server


def answer(server: Running, **fields: Any) -> str:
    """An answer that came to its end; streamed, it is the same."""
    fields = {"max_tokens": 600, "temperature": 0.7, **fields}
    response = server.chat(**fields)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    assert choice["finish_reason"] == "stop"
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="-")
    names = ("structured_outputs", "speculation")
    extra = {name: fields.pop(name) for name in names if name in fields}
    stream = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hello"}], seed=fields.pop("seed", 1),
        stream=True, extra_body=extra, **fields,
    )  # fmt: skip
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == choice["message"]["content"]
    return text


SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["tea", "coffee"]},
        "cups": {"type": "integer", "minimum": 1, "maximum": 12},
        "notes": {"type": "array", "items": {"$ref": "#/$defs/note"}, "maxItems": 2},
    },
    "required": ["kind", "cups", "notes"],
    "additionalProperties": False,
    "$defs": {"note": {"type": "string", "maxLength": 4}},
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "order", "schema": SCHEMA, "strict": True}}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("method", ["auto", "ar", "stream", "duo"])
def test_a_schema_is_kept(server: Running, method: str, seed: int) -> None:
    text = answer(server, response_format=FORMAT, seed=seed, speculation={"method": method})
    order = json.loads(text)
    assert list(order) == ["kind", "cups", "notes"]
    assert order["kind"] in ("tea", "coffee")
    assert 1 <= order["cups"] <= 12
    assert all(isinstance(note, str) and len(note) <= 4 for note in order["notes"])
    if method != "ar":
        plain = answer(server, response_format=FORMAT, seed=seed, speculation=False)
        assert text == plain


def test_other_formats(server: Running) -> None:
    assert re.fullmatch("[a-f]{3}-\\d+", answer(
        server, structured_outputs={"regex": "[a-f]{3}-\\d{1,3}"}))  # fmt: skip
    assert answer(server, structured_outputs={"choice": ["yes", 'no "really"']}) in (
        "yes", 'no "really"')  # fmt: skip
    schema = {"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 2}
    for value in (schema, json.dumps(schema)):
        assert json.loads(answer(server, structured_outputs={"json": value})) == [None, None]


@settings(proven, max_examples=40)
@given(
    st.lists(
        st.text("ab.*+?[](){}|^$\\&~#-/<>\" '", min_size=1, max_size=4), min_size=1, max_size=4
    )
)
def test_choices_are_themselves_whatever_signs_they_hold(texts: list[str]) -> None:
    grammar = text_grammar(validated(Body, {"structured_outputs": {"choice": texts}}))
    assert grammar is not None
    vocabulary = Printable()
    mask = Masks(vocabulary).mask(grammar)
    for text in texts:
        tokens = vocabulary.tokenize(text, is_templated=False)
        for i, token in enumerate([*tokens, vocabulary.eos]):
            allowed = mask.allowed(np.array(tokens[:i], dtype=np.int32))
            assert allowed is not None
            assert allowed[token]
        beginnings = {other[: len(text) + 1] for other in texts}
        other = next(c for c in "abc" if text + c not in beginnings)
        beyond = vocabulary.tokenize(text + other, is_templated=False)
        assert mask.allowed(np.array(beyond, dtype=np.int32)) is None


def test_a_grammar_that_is_too_complex_is_the_clients_fault(server: Running) -> None:
    properties = {f"p{i}": {"type": "string", "pattern": "^[a-z]{1,50}$"} for i in range(1000)}
    wide = {"type": "object", "properties": properties}
    response = server.chat(structured_outputs={"json": wide})
    assert response.status_code == 400
    assert "too complex" in response.json()["error"]["message"]


def test_any_object(server: Running) -> None:
    """It may be of any length: its beginning is one."""
    for fields in (
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json_object": True}},
    ):
        text = server.chat(max_tokens=40, **fields).json()["choices"][0]["message"]["content"]
        assert re.match(r'\{\s*(}|")', text)


def test_formats_of_text_change_nothing(server: Running) -> None:
    plain = server.chat().json()["choices"]
    for fields in ({"response_format": {"type": "text"}}, {"response_format": None},
                   {"structured_outputs": {}}):  # fmt: skip
        assert server.chat(**fields).json()["choices"] == plain


def test_text_completions_have_formats_too(server: Running) -> None:
    response = server.complete(max_tokens=100, structured_outputs={"regex": "(ab)+c"})
    assert re.fullmatch("(ab)+c", response.json()["choices"][0]["text"])


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"regex": "(a"}},
        {"structured_outputs": {"json": "{"}},
        {"response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "schema": {"type": "objekt"}}}},
    ],
)  # fmt: skip
def test_bad_grammars_are_the_clients_fault(server: Running, fields: dict[str, Any]) -> None:
    response = server.chat(stream=True, **fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert "cannot be used" in error["message"] or "is not JSON" in error["message"]
    assert "\n" not in error["message"]


# --- tools

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Rome", "Oslo"]}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "time", "parameters": {
        "type": "object", "properties": {}, "additionalProperties": False}}},
]  # fmt: skip


def calls(server: Running, **fields: Any) -> list[tuple[str, Any]]:
    choice = server.chat(
        tools=TOOLS, max_tokens=600, temperature=4.0, parallel_tool_calls=False, **fields
    ).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in choice["message"]["tool_calls"]
    ]


def test_a_call_that_is_required_is_made(server: Running) -> None:
    found = [calls(server, tool_choice="required", seed=seed) for seed in range(12)]
    assert all(len(one) == 1 for one in found)
    names = {name for ((name, arguments),) in found}
    assert names == {"weather", "time"}
    for ((name, arguments),) in found:
        assert arguments in ([{}] if name == "time" else [{"city": "Rome"}, {"city": "Oslo"}])


def test_the_tool_that_is_named_is_called(server: Running) -> None:
    choice = {"type": "function", "function": {"name": "time"}}
    for seed in range(4):
        assert calls(server, tool_choice=choice, seed=seed) == [("time", {})]


def test_a_format_holds_for_what_is_said_where_calls_may_be_made(server: Running) -> None:
    kinds = set()
    for seed in range(12):
        choice = server.chat(tools=TOOLS, response_format=FORMAT, max_tokens=600, temperature=4.0,
                             seed=seed).json()["choices"][0]  # fmt: skip
        kinds.add(choice["finish_reason"])
        if choice["finish_reason"] == "stop":
            assert list(json.loads(choice["message"]["content"])) == ["kind", "cups", "notes"]
    assert kinds >= {"stop", "tool_calls"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "nothing"}}}, "tool_choice"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "time"}}, "ignore_eos": True},
            "ignore_eos",
        ),
        ({"response_format": FORMAT, "ignore_eos": True}, "ignore_eos"),
    ],
)
def test_choices_that_cannot_be_made(server: Running, fields: dict[str, Any], param: str) -> None:
    response = server.chat(tools=TOOLS, **fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize("seed", range(4))
def test_a_stream_that_holds_text_back_tells_all_logprobs(server: Running, seed: int) -> None:
    fields = {
        "tools": TOOLS, "tool_choice": "required", "max_tokens": 300, "temperature": 4.0,
        "seed": seed, "logprobs": True, "top_logprobs": 1,
    }  # fmt: skip
    whole = server.chat(**fields).json()["choices"][0]["logprobs"]["content"]
    told = [
        entry
        for event in events(server.chat(**fields, stream=True).text)
        for choice in event["choices"]
        for entry in (choice.get("logprobs") or {"content": []})["content"]
    ]
    assert len(whole) > 10
    assert [entry["token"] for entry in told] == [entry["token"] for entry in whole]

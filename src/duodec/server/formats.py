"""The grammar that a request holds its answer to: a format, an expression, calls of its tools."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from duodec.backends.llguidance import json_term
from duodec.core.grammar import Grammar
from duodec.server.errors import bad_field
from duodec.server.fields import Fields
from duodec.server.tools import BEGIN, END

_ANY_OBJECT = {"type": "object"}
_KINDS = ("text", "json_object", "json_schema")
_OUTPUTS = ("json", "json_object", "regex", "choice")


def parse_grammar(fields: Fields, tools: Sequence[Mapping[str, Any]] = ()) -> Grammar | None:
    """What the answer must match; ``tools`` are those that the model is shown. Raises ApiError."""
    wanted = _format(fields)
    if not tools:
        return wanted
    called = _called(fields, tools)
    if called is not None:
        return _calls(called, is_many=fields.truth("parallel_tool_calls", default=True))
    if wanted is None:
        return None
    if wanted.kind != "json_schema":
        raise bad_field(
            "structured_outputs", "an expression or a choice, and tools that may be called, "
            "exclude each other; leave out one, or use a JSON schema",
        )  # fmt: skip
    said = json_term(json.loads(wanted.source))
    return _calls(tools, is_many=fields.truth("parallel_tool_calls", default=True), or_else=said)


def _format(fields: Fields) -> Grammar | None:
    """OpenAI's ``response_format``, or vLLM's ``structured_outputs``."""
    wanted = _response_format(fields.object("response_format"))
    outputs = fields.object("structured_outputs")
    given = [name for name in _OUTPUTS if outputs.value(name) not in (None, False)]
    if not given:
        return wanted
    if wanted is not None or len(given) > 1:
        raise bad_field(
            "structured_outputs", "an answer has one format; send response_format, or one of "
            f"structured_outputs' {', '.join(_OUTPUTS)}",
        )  # fmt: skip
    (name,) = given
    if name == "choice":
        return _choice(outputs)
    if name == "regex":
        return Grammar("regex", outputs.text("regex") or "")
    if name == "json_object":
        return _of_schema(_ANY_OBJECT if outputs.truth("json_object") else True)
    value = outputs.value("json")
    return Grammar("json_schema", value) if isinstance(value, str) else _of_schema(value)


def _response_format(own: Fields) -> Grammar | None:
    kind = own.text("type")
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return _of_schema(_ANY_OBJECT)
    if kind != "json_schema":
        raise bad_field(
            own.name("type"), f"{own.name('type')} is {kind!r}; use {', '.join(_KINDS)}"
        )
    schema = own.object("json_schema").value("schema")
    if not isinstance(schema, dict | bool):
        raise bad_field(own.name("json_schema.schema"), "json_schema has no schema; send an object")
    return _of_schema(schema)


def _of_schema(schema: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(schema))


def _choice(outputs: Fields) -> Grammar:
    texts = outputs.items("choice")
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise bad_field(outputs.name("choice"), "choice is no list of texts; send some")
    return Grammar("regex", "|".join(map(_escaped, texts)))


def _called(
    fields: Fields, tools: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]] | None:
    """The tools of which one must be called; None where the model decides."""
    choice = fields.value("tool_choice")
    if choice in (None, "auto"):
        return None
    if choice == "required":
        return tools
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    found = [tool for tool in tools if tool["function"]["name"] == name]
    if not found:
        raise bad_field(
            "tool_choice",
            "tool_choice names no tool that was sent; use none, auto, required, or "
            '{"type": "function", "function": {"name": ...}}',
        )
    return found


def _calls(
    tools: Sequence[Mapping[str, Any]], *, is_many: bool, or_else: str | None = None
) -> Grammar:
    """Calls as the templates write them, or else a text of another kind."""
    more = ' ("\\n" call)*' if is_many else ""
    head, tail = _literal(f"{BEGIN}\n"), _literal(f"\n{END}")
    kinds = " | ".join(f"tool{i}" for i in range(len(tools)))
    rules = [f"calls: call{more}", f"call: {head} ({kinds}) {tail}"]
    for i, tool in enumerate(tools):
        function = tool["function"]
        head = _literal(f'{{"name": {json.dumps(function["name"])}, "arguments": ')
        rules.append(f'tool{i}: {head} arguments{i} "}}"')
        rules.append(f"arguments{i}: {json_term(function.get('parameters') or _ANY_OBJECT)}")
    start = "start: calls"
    if or_else is not None:
        start += " | said"
        rules.append(f"said: {or_else}")
    return Grammar("lark", "\n".join([start, *rules]))


def _escaped(text: str) -> str:
    """An expression of this text alone, whatever is special in expressions."""
    return "".join(c if c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)


def _literal(text: str) -> str:
    return json.dumps(text)

"""Read from a request what its response must be: a format, an expression, calls of tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from duodec.core.grammar import Grammar
from duodec.server.api.bodies import Body, ChatBody, ResponseFormat
from duodec.server.api.tools.call import ANY_OBJECT, Tool
from duodec.server.api.tools.dialects import Wanted
from duodec.server.errors import bad_field
from duodec.server.http.json_limits import parse

_KINDS = ("text", "json_object", "json_schema")


def wanted_format(body: Body) -> Grammar | None:
    """OpenAI's ``response_format``, or vLLM's ``structured_outputs``. Raises ApiError."""
    wanted = _response_format(body.response_format)
    outputs = body.structured_outputs
    values = {
        "json": outputs.json_schema, "json_object": outputs.json_object, "regex": outputs.regex,
        "choice": outputs.choice,
    }  # fmt: skip
    given = [name for name, value in values.items() if value not in (None, False)]
    if not given:
        return wanted
    if wanted is not None or len(given) > 1:
        raise bad_field(
            "structured_outputs", "an answer has one format; send response_format, or one of "
            f"structured_outputs' {', '.join(values)}",
        )  # fmt: skip
    if outputs.choice is not None:
        return Grammar("regex", "|".join(map(_escaped, outputs.choice)))
    if outputs.regex is not None:
        return Grammar("regex", outputs.regex)
    if outputs.json_object:
        return _of_schema(ANY_OBJECT)
    schema = outputs.json_schema
    return _of_text(schema) if isinstance(schema, str) else _of_schema(schema)


def wanted_of(body: ChatBody, tools: Sequence[Tool], said: Grammar | None) -> Wanted:
    """What the answer must be where it may call ``tools``, those that the model is shown, or else
    has the format ``said``. Raises ApiError."""
    if not tools:
        return Wanted(said)
    called = _called(body.tool_choice, tools)
    if called is not None:
        return Wanted(None, called, body.parallel_tool_calls)
    if said is None:
        return Wanted()
    if said.kind != "json_schema":
        raise bad_field(
            "structured_outputs", "an expression or a choice, and tools that may be called, "
            "exclude each other; leave out one, or use a JSON schema",
        )  # fmt: skip
    return Wanted(said, tools, body.parallel_tool_calls)


def _response_format(own: ResponseFormat) -> Grammar | None:
    if own.type in (None, "text"):
        return None
    if own.type == "json_object":
        return _of_schema(ANY_OBJECT)
    if own.type != "json_schema":
        raise bad_field(
            "response_format.type",
            f"response_format.type is {own.type!r}; use {', '.join(_KINDS)}",
        )
    schema = own.json_schema.json_schema
    if not isinstance(schema, dict | bool):
        raise bad_field(
            "response_format.json_schema.schema", "json_schema has no schema; send an object"
        )
    return _of_schema(schema)


def _of_text(schema: str) -> Grammar:
    """A schema that was sent as the text of one."""
    try:
        parse(schema)
    except ValueError as error:
        raise bad_field(
            "structured_outputs.json", f"the JSON schema is not JSON ({error}); write an object"
        ) from error
    return Grammar("json_schema", schema)


def _of_schema(schema: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(schema))


def _called(choice: Any, tools: Sequence[Tool]) -> Sequence[Tool] | None:
    """The tools of which one must be called; None where the model decides."""
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


def _escaped(text: str) -> str:
    """An expression of this text alone, whatever is special in expressions."""
    return "".join(c if c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)

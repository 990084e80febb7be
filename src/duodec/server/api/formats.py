"""Make grammars of what a request says that a response must be."""

from __future__ import annotations

import json
from typing import Any

from duodec.core.grammar import Grammar
from duodec.server.api.bodies import Body, Conversation
from duodec.server.api.tools.call import ANY_OBJECT
from duodec.server.api.tools.chat_format import Expected
from duodec.server.errors import bad_field
from duodec.server.http.json_limits import parse


def text_grammar(body: Body) -> Grammar | None:
    """Of OpenAI's ``response_format``, or vLLM's ``structured_outputs``. Raises ApiError."""
    format_, outputs = _response_format(body), body.structured_outputs
    values = {
        "json": outputs.json_schema, "json_object": outputs.json_object, "regex": outputs.regex,
        "choice": outputs.choice,
    }  # fmt: skip
    given = [name for name, value in values.items() if value not in (None, False)]
    if not given:
        return format_
    if format_ is not None or len(given) > 1:
        raise bad_field(
            "structured_outputs", "a response has one format; send response_format, or one of "
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


def expected_of(body: Conversation) -> Expected:
    """What the response to a chat must be: a call of a tool, a text of a format, or either. Raises
    ApiError."""
    text = text_grammar(body)
    if required := body.required:
        return Expected(None, required, body.parallel_tool_calls)
    if text is None or not body.offered:
        return Expected(text)
    if text.kind != "json_schema":
        raise bad_field(
            "structured_outputs", "an expression or a choice, and tools that may be called, "
            "exclude each other; leave out one, or use a JSON schema",
        )  # fmt: skip
    return Expected(text, body.offered, body.parallel_tool_calls)


def _response_format(body: Body) -> Grammar | None:
    if body.format.type == "text":
        return None
    if body.format.type == "json_object":
        return _of_schema(ANY_OBJECT)
    schema = body.format.json_schema.json_schema
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


def _escaped(text: str) -> str:
    """An expression of this text alone, whatever is special in expressions."""
    return "".join(c if c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)

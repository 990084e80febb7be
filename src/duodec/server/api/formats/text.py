"""Make grammars of what a request says that a response must be."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from duodec.backends.grammar.library import MOST_SOURCE_BYTES
from duodec.core.sampling.grammar import Grammar
from duodec.server.api.bodies import Body, Conversation
from duodec.server.api.formats.gbnf import in_lark
from duodec.server.api.formats.schemas import closed
from duodec.server.api.tools.call import ANY_OBJECT, Tool, parameters_of
from duodec.server.api.tools.chat_format import Expected
from duodec.server.errors import ApiError, bad_field
from duodec.server.http.json_limits import parse

_LONGEST = 400  # characters of what is wrong with a grammar: it may name a rule


def text_grammar(body: Body) -> Grammar | None:
    """Of the one field that says what the text of a response must be. Raises ApiError."""
    given = [(name, kind, value) for name, kind, value in body.formats if value is not None]
    if not given:
        return None
    if len(given) > 1:
        names = " and ".join(name for name, _, _ in given)
        field = given[0][0].partition(".")[0]
        raise bad_field(field, f"a response has one format, and {names} are given; send one")
    ((name, kind, value),) = given
    _check_size(name, value)
    if body.ignores_end:
        raise _without_end(name)
    return _grammar(name, kind, value, schema_of(body))


def _without_end(name: str) -> ApiError:
    why = f"ignore_eos excludes {name}, whose text ends; leave one out"
    return bad_field("ignore_eos", why)


def expected_of(body: Conversation) -> Expected:
    """What the response to a chat must be: a call of a tool, a text of a format, or either. Raises
    ApiError."""
    text, read = text_grammar(body), schema_of(body)
    if required := body.required:
        if body.ignores_end:
            raise _without_end("the call that tool_choice requires")
        return Expected(None, _tools(required, read), body.parallel_tool_calls)
    if text is None or not body.offered:
        return Expected(text)
    if text.kind != "json_schema":
        raise bad_field(
            "structured_outputs", "a grammar, an expression or a choice, and tools that may be "
            "called, exclude each other; leave out one, or use a JSON schema",
        )  # fmt: skip
    return Expected(text, _tools(body.offered, read), body.parallel_tool_calls)


def schema_of(body: Body) -> Callable[[Any], Any]:
    """How schemas are read: with closed objects, or by the letter of the specification."""
    return {"closed": closed, "open": lambda schema: schema}[body.schema_objects]


def _tools(tools: Sequence[Tool], read: Callable[[Any], Any]) -> list[Tool]:
    """With the schemas of their arguments as they are read."""
    return [
        {**tool, "function": {**tool["function"], "parameters": read(parameters_of(tool))}}
        for tool in tools
    ]


def _check_size(name: str, value: Any) -> None:
    """Before anything is made of it. Raises ApiError."""
    texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    num = sum(len(text) for text in texts)
    if num > MOST_SOURCE_BYTES:
        most = MOST_SOURCE_BYTES >> 10
        raise bad_field(
            name, f"{name} has {num / 1024:.0f} KB and {most} KB is the most; send a simpler one"
        )


def _grammar(name: str, kind: str, value: Any, read: Callable[[Any], Any]) -> Grammar:
    if kind == "choice":
        return Grammar("regex", "|".join(map(_escaped, value)))
    if kind == "regex":
        return Grammar("regex", value)
    if kind == "grammar":
        return _of_rules(name, value)
    if kind == "json_object":
        return _of_schema(ANY_OBJECT)
    return _of_schema(read(_parsed(name, value) if isinstance(value, str) else value))


def _of_rules(name: str, rules: str) -> Grammar:
    """llama.cpp's notation, or Lark's."""
    if "::=" not in rules:
        return Grammar("lark", rules)
    try:
        return Grammar("lark", in_lark(rules))
    except ValueError as error:
        raise bad_field(name, f"{name} is no grammar: {str(error)[:_LONGEST]}") from error


def _parsed(name: str, schema: str) -> Any:
    """A schema that was sent as the text of one."""
    try:
        return parse(schema)
    except ValueError as error:
        raise bad_field(name, f"{name} is not JSON ({error}); write an object") from error


def _of_schema(schema: Any) -> Grammar:
    return Grammar("json_schema", json.dumps(schema))


def _escaped(text: str) -> str:
    """An expression of this text alone, whatever is special in expressions."""
    return "".join(c if c.isalnum() else f"\\x{{{ord(c):x}}}" for c in text)

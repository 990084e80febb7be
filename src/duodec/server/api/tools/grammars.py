"""Make the parts of grammars that formats of calls share."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from duodec.backends.grammar.llguidance import control_term, json_term
from duodec.core.special_tokens import SpecialTokens
from duodec.errors import BadOption
from duodec.server.api.tools.call import Literal, Tool, name_of, parameters_of

_DEFINITIONS = ("$defs", "definitions")
_MOST_DEFINED = 1_000_000  # characters of definitions in the rules of a request
_MOST_REFS = 16  # of a schema that refers to another that refers ...
FREE = "/(?s:.*)/"


def literal_for(controls: SpecialTokens | None) -> Literal:
    """Terms for texts of a vocabulary with these control tokens."""

    def literal(text: str) -> str:
        terms, begin = [], 0
        for found in controls.find(text) if controls else ():
            terms += [*quoted(text[begin : found.begin]), control_term(found.token)]
            begin = found.end
        return " ".join([*terms, *quoted(text[begin:])]) or '""'

    return literal


def quoted(text: str) -> list[str]:
    return [json.dumps(text, ensure_ascii=False)] if text else []


def until(name: str, end: str, literal: Literal) -> str:
    """A rule of that name: any text, then its ``end``."""
    terms = literal(end)
    if terms == json.dumps(end, ensure_ascii=False):
        return f"{name}[suffix={terms}]: {FREE}"
    return f"{name}: {FREE} {terms}"


def some_tool(tools: Sequence[Tool]) -> str:
    """The rule ``tool``: one of ``tool0``, ``tool1`` ..."""
    return f"tool: {' | '.join(f'tool{i}' for i in range(len(tools)))}"


def json_arguments(tools: Sequence[Tool]) -> list[str]:
    """The rules ``arguments0``, ``arguments1`` ...: JSON of each tool's schema."""
    return [f"arguments{i}: {json_term(parameters_of(tool))}" for i, tool in enumerate(tools)]


def tagged_values(
    tool: Tool, number: int, before: str, after: str, end: str, literal: Literal
) -> list[str]:
    """Rules of which ``arguments{number}`` matches a tool's arguments, each between tags: texts as
    they are, all else as JSON. ``before`` names the argument as ``{}``."""
    schema = parameters_of(tool)
    names = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(names, dict):
        return [f"arguments{number}: {literal(end)}"]
    required = schema.get("required", ())
    parts, rules = [], []
    for i, (name, inner) in enumerate(names.items()):
        rule = f"argument{number}_{i}"
        value, more = _value(f"value{number}_{i}", with_root(inner, schema), after, literal)
        rules += [f"{rule}: {literal(before.format(name))} {value}", *more]
        parts.append(rule if name in required else f"{rule}?")
    return [f"arguments{number}: {' '.join([*parts, literal(end)])}", *rules]


def _value(name: str, schema: Any, after: str, literal: Literal) -> tuple[str, list[str]]:
    """A term for a value and what follows it, and the rules that it needs."""
    inner = resolved(schema)
    if choices := inner.get("enum", [inner["const"]] if "const" in inner else None):
        texts = [one if isinstance(one, str) else json.dumps(one) for one in choices]
        return f"({' | '.join(map(literal, texts))}) {literal(after)}", []
    if takes_text(schema):
        return name, [until(name, after, literal)]
    return f"{name} {literal(after)}", [f"{name}: {json_term(schema)}"]


# --- schemas


def check_definitions(tools: Sequence[Tool]) -> None:
    """Raises BadOption where rules would be far longer than the schemas: each argument's rule may
    hold all definitions of its tool."""
    total = 0
    for tool in tools:
        schema = parameters_of(tool)
        names = schema.get("properties") if isinstance(schema, dict) else None
        if isinstance(names, dict):
            kept = {key: schema[key] for key in _DEFINITIONS if key in schema}
            total += len(names) * len(json.dumps(kept)) if kept else 0
    if total > _MOST_DEFINED:
        raise BadOption(
            f"the tools' definitions would be repeated to {total / 1e6:.1f} MB, once an argument; "
            f"{_MOST_DEFINED / 1e6:.0f} MB is the most: send fewer, or simpler ones"
        )


def with_root(schema: Any, root: Mapping[str, Any]) -> Any:
    """A part of a schema, with the definitions that it may refer to."""
    kept = {key: root[key] for key in _DEFINITIONS if key in root}
    return {**kept, **schema} if isinstance(schema, dict) else schema


def resolved(schema: Any) -> dict[str, Any]:
    """What a schema refers to, with the root's definitions; {} where it is no object."""
    for _ in range(_MOST_REFS):
        if not isinstance(schema, dict):
            return {}
        found = re.fullmatch(r"#/(\$defs|definitions)/([^/]+)", str(schema.get("$ref")))
        if found is None:
            return schema
        schema = with_root(schema.get(found[1], {}).get(found[2]), schema)
    return {}


def takes_text(schema: Any, depth: int = 0) -> bool:
    """Whether a value of this schema may be a text."""
    inner = resolved(schema)
    kinds = inner.get("type")
    if kinds is not None:
        return "string" in (kinds if isinstance(kinds, list) else [kinds])
    if isinstance(choices := inner.get("enum"), list):
        return any(isinstance(one, str) for one in choices)
    if "const" in inner:
        return isinstance(inner["const"], str)
    either = inner.get("anyOf") or inner.get("oneOf")
    if isinstance(either, list) and depth < _MOST_REFS:
        return any(takes_text(with_root(one, inner), depth + 1) for one in either)
    return False


def property_of(tool: Tool | None, name: str) -> Any:
    """The schema of one of a tool's arguments; None where nothing is known of it."""
    schema = parameters_of(tool) if tool else {}
    names = schema.get("properties") if isinstance(schema, dict) else None
    inner = names.get(name) if isinstance(names, dict) else None
    return None if inner is None else with_root(inner, schema)


def tool_named(tools: Sequence[Tool], name: str) -> Tool | None:
    return next((tool for tool in tools if name_of(tool) == name), None)

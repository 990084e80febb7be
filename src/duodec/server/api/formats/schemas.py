"""Close the objects of JSON schemas: a model that may invent fields invents them to no end."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_SCHEMAS = ("items", "additionalItems", "contains", "additionalProperties")  # each holds one
_LISTS = ("anyOf", "oneOf", "prefixItems", "items")  # of schemas
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_APART = ("allOf", "if", "then", "else", "dependentSchemas", "not")  # several for one object
_SAYS = ("additionalProperties", "unevaluatedProperties")
_DEFINITION = re.compile(r"#/(?:\$defs|definitions)/([^/]+)")


def closed(schema: Any) -> Any:
    """The schema with ``additionalProperties: false`` where objects have properties and do not say
    what else they may have.

    Parts of a schema that describe one object together (``allOf``, or alternatives beside
    properties) stay open, and so do definitions that they refer to: closed, each would forbid the
    others' properties.
    """
    return _closed(schema, set(_shared(schema, is_part=False)))


def _closed(schema: Any, shared: set[str]) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    own = dict(schema)
    for name in _SCHEMAS:
        if isinstance(own.get(name), Mapping):
            own[name] = _closed(own[name], shared)
    if not _is_composed(schema):
        for name in (*_LISTS, "allOf"):
            if isinstance(own.get(name), list):
                own[name] = [_closed(one, shared) for one in own[name]]
    for name in _NAMED:
        if isinstance(own.get(name), Mapping):
            is_defining = name in ("$defs", "definitions")
            own[name] = {
                key: one if is_defining and key in shared else _closed(one, shared)
                for key, one in own[name].items()
            }
    if _can_be_closed(schema):
        own["additionalProperties"] = False
    return own


def _can_be_closed(schema: Mapping[str, Any]) -> bool:
    names = schema.get("properties")
    if not isinstance(names, Mapping) or any(name in schema for name in _SAYS):
        return False
    required = schema.get("required", [])
    is_complete = isinstance(required, list) and all(
        isinstance(name, str) and name in names for name in required
    )
    return is_complete and not _is_composed(schema) and "patternProperties" not in schema


def _is_composed(schema: Mapping[str, Any]) -> bool:
    """Several parts of it describe one object."""
    parts = schema.get("allOf")
    if isinstance(parts, list) and len(parts) == 1 and not _has_own(schema):
        return False
    is_either = any(name in schema for name in ("anyOf", "oneOf", "$ref"))
    return any(name in schema for name in _APART) or (is_either and _has_own(schema))


def _has_own(schema: Mapping[str, Any]) -> bool:
    return isinstance(schema.get("properties"), Mapping)


def _shared(schema: Any, *, is_part: bool) -> Iterator[str]:
    """Definitions that a part of a composed schema refers to."""
    if isinstance(schema, list):
        for one in schema:
            yield from _shared(one, is_part=is_part)
    if not isinstance(schema, Mapping):
        return
    is_part = is_part or _is_composed(schema)
    found = _DEFINITION.fullmatch(str(schema.get("$ref")))
    if found is not None and is_part:
        yield found[1]
    for name, inner in schema.items():
        # what lies inside of a property is an object of its own
        is_own = name in (*_NAMED, *_SCHEMAS)
        values = list(inner.values()) if name in _NAMED and isinstance(inner, Mapping) else inner
        yield from _shared(values, is_part=is_part and not is_own)

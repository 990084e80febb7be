"""Read what a message says, and whether a tool is one, alike for the library and the server."""

from __future__ import annotations

from collections.abc import Mapping

_TEXTS = ("text", "input_text")  # the types of parts that are texts


class NoText(Exception):
    """Why a content is not a text: a sentence whose subject is the field's name."""


def text_of(content: object, *, has_calls: bool) -> str:
    """A message's text, or the texts of a list of parts; a message that calls tools may have none.
    Raises NoText."""
    if isinstance(content, str):
        return content
    if content is None and has_calls:
        return ""
    if not isinstance(content, list | tuple):
        raise NoText("is no text; send a string")
    return "".join(map(_text_of_part, content))


def _text_of_part(part: object) -> str:
    form, text = (part.get("type"), part.get("text")) if isinstance(part, Mapping) else (None, None)
    if form not in _TEXTS or not isinstance(text, str):
        raise NoText(f"has a part of type {form!r}, and this model reads text only")
    return text


def names_function(value: object) -> bool:
    """Whether a tool, or a call of one, has a function with a name."""
    function = value.get("function") if isinstance(value, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)

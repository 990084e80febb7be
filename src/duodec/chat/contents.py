"""Read what a message says, and whether a tool is one, alike for the library and the server."""

from __future__ import annotations

from collections.abc import Mapping

_TEXTS = ("text", "input_text", "output_text")  # the types of parts that are texts
_RESULTS = ("tool", "function")  # the roles of results
_NAMES = ("tool_name", "filename", "title", "name")  # what a part may be called
_LONGEST_NAME = 100


class NoText(Exception):
    """Why a content is not a text: a sentence whose subject is the field's name."""


def content_of(role: object, content: object, *, has_calls: bool) -> str:
    """The text of a message of this role. Raises NoText."""
    return result_of(content) if role in _RESULTS else text_of(content, has_calls=has_calls)


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


def result_of(content: object) -> str:
    """The text of a tool's result. What is no text becomes a line that says so: clients send a
    result again in every later turn, so that to refuse it once would end the conversation. Raises
    NoText where there are no parts."""
    if isinstance(content, list | tuple) and not all(map(_is_text, content)):
        return "\n".join(part["text"] if _is_text(part) else unseen(part) for part in content)
    return text_of(content, has_calls=False)


def unseen(part: object) -> str:
    """A line for a picture, or another part, that the model cannot be shown."""
    fields = part if isinstance(part, Mapping) else {}
    own = (fields[name] for name in _NAMES if isinstance(fields.get(name), str))
    words = " ".join(f"{fields.get('type') or 'part'} {next(own, '')}".split())
    return f"[{words[:_LONGEST_NAME]}: not shown, this model reads text only]"


def _is_text(part: object) -> bool:
    return (
        isinstance(part, Mapping)
        and part.get("type") in _TEXTS
        and isinstance(part.get("text"), str)
    )


def _text_of_part(part: object) -> str:
    form, text = (part.get("type"), part.get("text")) if isinstance(part, Mapping) else (None, None)
    if form not in _TEXTS or not isinstance(text, str):
        raise NoText(f"has a part of type {form!r}, and this model reads text only")
    return text


def names_function(value: object) -> bool:
    """Whether a tool, or a call of one, has a function with a name."""
    function = value.get("function") if isinstance(value, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)

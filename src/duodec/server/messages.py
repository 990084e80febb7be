"""Chat messages as clients send them, made what templates understand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duodec.chat import Message
from duodec.server.errors import ApiError, bad_field
from duodec.server.fields import Fields
from duodec.server.jsons import TooMuch, parse
from duodec.server.tools import BEGIN

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def parse_messages(items: Sequence[Any]) -> list[Message]:
    """Raises ApiError."""
    if not items:
        raise bad_field("messages", "messages is empty; send at least one message")
    return [_message(item, f"messages[{i}]") for i, item in enumerate(items)]


def _message(item: Any, place: str) -> Message:
    if not isinstance(item, dict):
        raise bad_field(place, f"{place} is no object; send {{role, content}}")
    fields = Fields(item, f"{place}.")
    role = fields.text("role")
    if role not in _ROLES:
        raise bad_field(f"{place}.role", f"{place}.role is {role!r}; use {', '.join(_ROLES)}")
    message = {**item, "role": "system" if role == "developer" else role}
    calls = fields.items("tool_calls")
    message["content"] = _content(item.get("content"), place, is_optional=bool(calls))
    if calls:
        message["tool_calls"] = [
            _call(call, f"{place}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
    return message


def _content(value: Any, place: str, *, is_optional: bool) -> str:
    """A text, or the texts of a list of parts."""
    if isinstance(value, str):
        return value
    if value is None and is_optional:
        return ""
    if not isinstance(value, list):
        raise bad_field(f"{place}.content", f"{place}.content is no text; send a string")
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if isinstance(part, dict) else None
        if kind not in ("text", "input_text") or not isinstance(text, str):
            raise bad_field(
                f"{place}.content",
                f"{place}.content has a part of type {kind!r}, and this model reads text only",
            )
        texts.append(text)
    return "".join(texts)


def _call(call: Any, place: str) -> dict[str, Any]:
    """A call with its arguments as an object, as templates want them."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise bad_field(place, f"{place} names no function; send {{id, type, function}}")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = parse(arguments or "{}")
        except TooMuch as error:
            raise bad_field(place, f"{place} has arguments that are too much ({error})") from error
        except ValueError:
            pass  # a model's own slip, sent back: it is shown as it is
    return {**call, "function": {**function, "arguments": arguments}}


def parse_tools(fields: Fields, template: str | None) -> list[dict[str, Any]]:
    """The tools that the template shall show. Raises ApiError where it has no place for them."""
    tools = fields.items("tools")
    if not tools or fields.value("tool_choice") == "none":
        return []
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise bad_field(f"tools[{i}]", f"tools[{i}] names no function; send {{type, function}}")
    if template is None or "tools" not in template or BEGIN not in template:
        raise ApiError(
            400, "the model's chat template has no tools that are understood here; leave them "
            "out, or serve a model that was trained for them",
            param="tools", code="unsupported_parameter",
        )  # fmt: skip
    return list(tools)

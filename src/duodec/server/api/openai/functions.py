"""Read and write ``functions`` and ``function_call``, which chat completions had before tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duodec.server.errors import bad_field

_OLD = {"functions": "tools", "function_call": "tool_choice"}
Body = Mapping[str, Any]


def with_tools(body: Body) -> Body:
    """A chat request in the words of tools. Raises ApiError where it has both."""
    messages = body.get("messages")
    items = [*map(_message, messages)] if isinstance(messages, list) else messages
    if not body.get("functions") and body.get("function_call") is None:
        return {**body, "messages": items} if items is not messages else body
    for old, new in _OLD.items():
        if body.get(new) is not None:
            raise bad_field(old, f"{old} is the old name of {new}; send one of them")
    functions, choice = body.get("functions"), body.get("function_call")
    if not functions or not isinstance(functions, list):
        raise bad_field("function_call", "function_call needs functions; send some, or use tools")
    return {
        **body,
        "messages": items,
        "tools": [{"type": "function", "function": function} for function in functions],
        "tool_choice": {"type": "function", "function": choice}
        if isinstance(choice, Mapping)
        else choice,
        "parallel_tool_calls": False,
    }


def _message(message: Any) -> Any:
    """A message in which the old call, or its result, is a tool's."""
    if not isinstance(message, Mapping):
        return message
    if message.get("role") == "function":
        return {**message, "role": "tool", "tool_call_id": message.get("name")}
    call = message.get("function_call")
    if not isinstance(call, Mapping):
        return message
    rest = {name: value for name, value in message.items() if name != "function_call"}
    told = {"id": call.get("name"), "type": "function", "function": call}
    return {**rest, "tool_calls": [told]}


def with_function(choice: dict[str, Any]) -> dict[str, Any]:
    """A choice whose call, in its message or its delta, has the old form."""
    reason = choice.get("finish_reason")
    told: dict[str, Any] = {"finish_reason": "function_call"} if reason == "tool_calls" else {}
    for place in ("message", "delta"):
        if calls := choice.get(place, {}).get("tool_calls"):
            rest = {name: one for name, one in choice[place].items() if name != "tool_calls"}
            told[place] = {**rest, "function_call": calls[0]["function"]}
    return {**choice, **told}

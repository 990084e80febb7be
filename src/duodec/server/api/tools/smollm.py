"""Write tools, calls and results into messages of SmolLM2, whose template has no place for them.

The smallest of these models call a tool only after examples of calls, which are made of the tools
themselves, and answer other questions in words only after an example of that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from duodec.chat.template import Message
from duodec.server.api.tools.call import Tool, name_of, parameters_of
from duodec.server.api.tools.grammars import resolved, with_root

BEGIN, END = "<tool_call>", "</tool_call>"
_MOST_EXAMPLES = 3
_SHOWN = """You can call these functions:
{}
Where one of them helps, answer only with its call, as in the example. Otherwise answer in words."""
_IN_WORDS = (
    {"role": "user", "content": "Hi, who are you?"},
    {"role": "assistant", "content": "I am SmolLM, an assistant. How can I help you?"},
)
_VALUES: dict[str, Any] = {"number": 1, "integer": 1, "boolean": True, "array": [], "object": {}}


def with_tools(messages: Sequence[Message], tools: Sequence[Tool]) -> list[Message]:
    """Messages of texts alone."""
    told = [_told(message) for message in messages]
    if not tools:
        return told
    first = told.pop(0) if told and told[0]["role"] == "system" else None
    shown = _SHOWN.format("\n".join(json.dumps(tool["function"]) for tool in tools))
    own = f"{first['content']}\n\n{shown}" if first else shown
    first_call, *calls = [_example(tool) for tool in tools[:_MOST_EXAMPLES]]
    # the model does again what the last example does
    examples = [first_call, _IN_WORDS, *calls] if calls else [_IN_WORDS, first_call]
    return [{"role": "system", "content": own}, *(turn for one in examples for turn in one), *told]


def _told(message: Message) -> Message:
    """A message with its calls, or a tool's result, as text."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"Result of the call: {message['content']}"}
    calls = [call["function"] for call in message.get("tool_calls", ())]
    if not calls:
        return message
    spelled = _spelled([{"name": c["name"], "arguments": c.get("arguments")} for c in calls])
    return {"role": message["role"], "content": f"{message['content']}{spelled}"}


def _example(tool: Tool) -> list[Message]:
    """A request and the call that answers it."""
    schema = resolved(parameters_of(tool))
    names = schema.get("properties")
    properties = names if isinstance(names, dict) else {}
    values = {name: _value(with_root(inner, schema)) for name, inner in properties.items()}
    words = ", ".join(f"{name} {json.dumps(value)}" for name, value in values.items())
    about = str(tool["function"].get("description") or name_of(tool))
    call = _spelled([{"name": name_of(tool), "arguments": values}])
    return [
        {"role": "user", "content": f"{about} ({words})" if words else about},
        {"role": "assistant", "content": call},
    ]


def _value(schema: Any) -> Any:
    """One that a schema allows, or nearly so."""
    inner = resolved(schema)
    choices = inner.get("enum", [inner["const"]] if "const" in inner else None)
    if isinstance(choices, list) and choices:
        return choices[0]
    kind = inner.get("type")
    return _VALUES.get(str(kind[0] if isinstance(kind, list) and kind else kind), "text")


def _spelled(calls: Sequence[dict[str, Any]]) -> str:
    return f"{BEGIN}{json.dumps(calls, ensure_ascii=False)}{END}"

"""Describe bodies of ``/v1/responses``, and say the same as a chat request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictStr

from duodec.server.api.bodies import Limit, Object, refused
from duodec.server.errors import bad_field
from duodec.server.http.json_limits import kind

Item = dict[str, Any]
_TEXTS = ("text", "input_text", "output_text", "reasoning_text", "summary_text")
# that mean the same in a chat request, and are checked there
_SAME = (
    "model", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "parallel_tool_calls",
    "speculation", "chat_template_kwargs", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "stop",
)  # fmt: skip


def _input(value: Any) -> list[Item]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise refused(f"is {kind(value)}; send a text or an array of items")
    if not value:
        raise refused("is empty; send a text or an array of items")
    for item in value:
        if not isinstance(item, dict):
            raise refused(f"holds {kind(item)} among its items; send objects")
    return value


def _tool(value: Any) -> Item:
    """A function in a chat request's form."""
    if not isinstance(value, dict) or value.get("type") != "function":
        form = value.get("type") if isinstance(value, dict) else None
        raise refused(f"is of type {form!r}, and functions only are served; leave it out")
    if not isinstance(value.get("name"), str):
        raise refused("names no function; send {type, name, parameters}")
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {n: value[n] for n in names if n in value}}


class TextFormat(Object):
    """OpenAI's ``text.format``."""

    type: StrictStr = "text"
    name: StrictStr = "answer"
    json_schema: Any = Field(default=None, alias="schema")


class Text(Object):
    format: TextFormat = TextFormat()


class Reasoning(Object):
    effort: StrictStr | None = None


class ResponsesBody(Object):
    """What differs from a chat request; the rest is read as one."""

    input: Annotated[list[Item], BeforeValidator(_input)]
    instructions: StrictStr | None = None
    previous_response_id: StrictStr | None = None
    store: StrictBool = True
    max_output_tokens: Limit | None = None
    tools: list[Annotated[Item, BeforeValidator(_tool)]] = Field(default_factory=list)
    tool_choice: Any = None
    text: Text = Text()
    reasoning: Reasoning = Reasoning()
    background: Annotated[StrictBool, AfterValidator(lambda value: _is_false(value))] = False
    metadata: dict[str, Any] = Field(default_factory=dict)

    def as_chat(self, body: Item, messages: Sequence[Item]) -> Item:
        """The chat request that says the same with these messages."""
        first = [{"role": "system", "content": self.instructions}] if self.instructions else []
        options = {
            "messages": [*first, *messages],
            "tools": self.tools,
            "tool_choice": _choice(self.tool_choice),
            "max_completion_tokens": self.max_output_tokens,
            "reasoning_effort": self.reasoning.effort,
            "response_format": _format(self.text.format),
        }
        return {**{name: body[name] for name in _SAME if name in body}, **options}


def _is_false(value: bool) -> bool:
    if value:
        raise refused("is true, and nothing is answered later; leave it out")
    return value


def _choice(choice: Any) -> Any:
    if isinstance(choice, dict) and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def _format(wanted: TextFormat) -> Item:
    if wanted.type != "json_schema":
        return {"type": wanted.type}
    return {
        "type": "json_schema",
        "json_schema": {"name": wanted.name, "schema": wanted.json_schema},
    }


# --- items


def messages_of(items: Sequence[Item]) -> list[Item]:
    """The messages of a chat that items stand for: reasoning and calls belong to the assistant's
    message. Raises ApiError."""
    messages: list[Item] = []
    thought = ""
    for i, item in enumerate(items):
        place = f"input[{i}]"
        form = item.get("type", "message")
        if form == "message":
            message = {"role": item.get("role"), "content": _text(item.get("content"), place)}
            messages.append(message)
        elif form == "reasoning":
            parts = item.get("content") or item.get("summary") or []
            thought += _text(parts, place)
        elif form == "function_call":
            _assistant(messages)["tool_calls"].append(_call(item, place))
        elif form == "function_call_output":
            output = _text(item.get("output"), place)
            messages.append(
                {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
            )
        else:
            raise bad_field(
                f"{place}.type", f"{place} is of type {form!r}; use message, reasoning, "
                "function_call or function_call_output",
            )  # fmt: skip
        if thought and messages and messages[-1]["role"] == "assistant":
            messages[-1].setdefault("reasoning_content", thought)
            thought = ""
    return messages


def _assistant(messages: list[Item]) -> Item:
    """The assistant's message that a call belongs to."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", [])
    return messages[-1]


def _call(item: Item, place: str) -> Item:
    name, arguments = item.get("name"), item.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise bad_field(place, f"{place} has no name or no arguments; send both as texts")
    function = {"name": name, "arguments": arguments}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _text(content: Any, place: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_field(f"{place}.content", f"{place} has no text; send a string")
    texts = []
    for part in content:
        form, text = (part.get("type"), part.get("text")) if isinstance(part, dict) else (None, "")
        if form not in _TEXTS or not isinstance(text, str):
            raise bad_field(
                f"{place}.content",
                f"{place} has a part of type {form!r}, and this model reads text only",
            )
        texts.append(text)
    return "".join(texts)

"""Describe bodies of Anthropic's ``/v1/messages``, whose blocks are read as messages of a chat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BeforeValidator, FailFast, Field, StrictBool, StrictStr

from duodec.chat.contents import unseen
from duodec.server.api.bodies import (
    Body,
    ChatMessage,
    Conversation,
    NamedSchema,
    ResponseFormat,
    Tool,
    formats_of,
)
from duodec.server.api.fields import Limit, Object, Stops, Whole, between, id_in, one_of, refused
from duodec.server.errors import bad_field
from duodec.server.http.json_limits import kind

Block = dict[str, Any]
_ROLES = ("user", "assistant", "system")
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}
# a line of Claude Code that is another one in each request: what follows it would never be cached
_BILLING = "x-anthropic-billing-header:"


def _blocks(content: Any, place: str) -> list[Block]:
    """Blocks of content, of which a text is one."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise bad_field(place, f"{place} is no text and no array of blocks; send one of them")
    return content


def _text(block: Block, place: str) -> str:
    if not isinstance(text := block.get("text"), str):
        raise bad_field(f"{place}.text", f"{place}.text is {kind(text)}; send a text")
    return text


def _other(block: Block, place: str) -> Exception:
    form = str(block.get("type"))[:100]
    return bad_field(
        f"{place}.type", f"{place} is of type {form!r}, and this model reads text only"
    )


def _system(value: Any) -> str:
    texts = []
    for i, block in enumerate(_blocks(value, "system")):
        if block.get("type") != "text":
            raise _other(block, f"system[{i}]")
        text = _text(block, f"system[{i}]")
        if not text.startswith(_BILLING):
            texts.append(text)
    return "\n\n".join(texts)


def _messages(value: Any) -> list[Block]:
    if not isinstance(value, list):
        raise refused(f"is {kind(value)}; send an array of messages")
    found: list[Block] = []
    for i, message in enumerate(value):
        place = f"messages[{i}]"
        if not isinstance(message, dict):
            raise bad_field(place, f"{place} is {kind(message)}; send {{role, content}}")
        role = message.get("role")
        if role not in _ROLES:
            raise bad_field(
                f"{place}.role", f"{place}.role is {str(role)[:100]!r}; use {', '.join(_ROLES)}"
            )
        blocks = _blocks(message.get("content"), f"{place}.content")
        if role == "assistant":
            found.append(_assistant(blocks, place))
        else:
            found += _user(role, blocks, place)
    if not found:
        raise refused("is empty; send at least one message")
    if found[-1]["role"] == "assistant":
        raise refused("ends with an assistant's message, which is not continued; send a user's")
    return found


def _user(role: str, blocks: Sequence[Block], place: str) -> list[Block]:
    """Results of tools are messages of their own. What stands next to them, as the pages of a file
    do that was read, belongs to them."""
    messages: list[Block] = []
    texts: list[str | Block] = []
    pictures: list[Block] = []  # next to results
    has_results = any(block.get("type") == "tool_result" for block in blocks)
    for i, block in enumerate(blocks):
        where = f"{place}.content[{i}]"
        if block.get("type") == "text":
            texts.append(_text(block, where))
        elif block.get("type") == "tool_result":
            inner = _blocks(block.get("content") or "", f"{where}.content")
            call_id = id_in(block, "tool_use_id", where)
            output = _result(inner, where)
            messages.append({"role": "tool", "tool_call_id": call_id, "content": output})
        elif has_results and block.get("type") == "image":
            pictures.append(block)
        elif has_results:
            texts.append(unseen(block))
        elif block.get("type") == "image":
            texts.append(_picture(block, where))
        else:
            raise _other(block, where)
    if pictures:
        said = messages[-1]["content"]
        own = said if isinstance(said, list) else [{"type": "text", "text": said}]
        messages[-1]["content"] = [*own, *pictures]
    if texts or not messages:
        messages.append({"role": role, "content": _joined(texts)})
    return messages


def _result(blocks: Sequence[Block], place: str) -> str | list[Block]:
    """A tool's result: a text, or texts and pictures, which are read with the message."""
    said = [
        {"type": "text", "text": _text(block, place)} if block.get("type") == "text"
        else block if block.get("type") == "image"
        else {"type": "text", "text": unseen(block)}
        for block in blocks
    ]  # fmt: skip
    if any(block["type"] == "image" for block in said):
        return said
    return "\n".join(block["text"] for block in said)


def _joined(parts: Sequence[str | Block]) -> str | list[Block]:
    """Texts as one, with pictures between them as they were sent."""
    found: list[Block] = []
    for part in parts:
        if not isinstance(part, str):
            found.append(part)
        elif found and "text" in found[-1]:
            found[-1]["text"] += f"\n\n{part}"
        else:
            found.append({"type": "text", "text": part})
    if any("text" not in part for part in found):
        return found
    return "".join(part["text"] for part in found)


def _picture(block: Block, place: str) -> Block:
    """A picture in a chat request's form."""
    source = block.get("source")
    form = source.get("type") if isinstance(source, dict) else None
    if not isinstance(source, dict) or form not in ("base64", "url"):
        raise bad_field(
            f"{place}.source",
            f"{place}.source is no picture; send {{type: base64, media_type, data}}",
        )
    url = source.get("url") if form == "url" else f"data:;base64,{source.get('data') or ''}"
    return {"type": "image_url", "image_url": {"url": url}}


def _assistant(blocks: Sequence[Block], place: str) -> Block:
    message: Block = {"role": "assistant", "content": ""}
    for i, block in enumerate(blocks):
        where, form = f"{place}.content[{i}]", block.get("type")
        if form == "text":
            message["content"] += _text(block, where)
        elif form == "thinking":
            thought = str(block.get("thinking") or "")
            message["reasoning_content"] = message.get("reasoning_content", "") + thought
        elif form == "tool_use":
            if not isinstance(block.get("name"), str):
                raise bad_field(f"{where}.name", f"{where}.name is no text; name the tool")
            function = {"name": block["name"], "arguments": block.get("input") or {}}
            call = {"id": id_in(block, "id", where), "type": "function", "function": function}
            message.setdefault("tool_calls", []).append(call)
        elif form != "redacted_thinking":
            raise _other(block, where)
    return message


def _tool(value: Any) -> Tool:
    """A tool in a chat request's form."""
    form = value.get("type", "custom") if isinstance(value, dict) else None
    if form != "custom":
        raise refused(f"is of type {form!r}, and tools of the client only are served; leave it out")
    if not isinstance(value.get("name"), str):
        raise refused("names no tool; send {name, description, input_schema}")
    about = {"description": value["description"]} if "description" in value else {}
    schema = value.get("input_schema") or {"type": "object"}
    return {"type": "function", "function": {"name": value["name"], **about, "parameters": schema}}


class ToolChoice(Object):
    type: Annotated[StrictStr, one_of(("auto", "any", "tool", "none"))]
    name: StrictStr | None = None
    disable_parallel_tool_use: StrictBool = False


class Thinking(Object):
    without_effect = frozenset({"display"})

    type: Annotated[StrictStr, one_of(("enabled", "adaptive", "disabled"))]
    budget_tokens: Annotated[Whole, between(0)] | None = None  # not enforced


class OutputFormat(Object):
    type: Annotated[StrictStr, one_of(("json_schema",))]
    json_schema: Any = Field(default=None, alias="schema")


class OutputConfig(Object):
    effort: Annotated[StrictStr, one_of(tuple(_EFFORTS))] | None = None
    format: OutputFormat | None = None


class CountTokensBody(Conversation):
    """Of ``/v1/messages/count_tokens``."""

    without_effect = Body.without_effect | {
        "cache_control", "context_management", "inference_geo", "betas",
    }  # fmt: skip
    neutral = MappingProxyType({**Body.neutral, "mcp_servers": ([],)})

    messages: Annotated[list[ChatMessage], FailFast(), BeforeValidator(_messages)]
    system: Annotated[StrictStr, BeforeValidator(_system)] = ""
    max_tokens: Limit | None = None
    stop: Stops = Field(default_factory=list, alias="stop_sequences")
    tools: Annotated[list[Annotated[Tool, BeforeValidator(_tool)]], FailFast()] = Field(
        default_factory=list
    )
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig = OutputConfig()
    output_format: OutputFormat | None = None  # its name in a beta

    @property
    def preamble(self) -> list[dict[str, Any]]:
        """The system's message."""
        return [{"role": "system", "content": self.system}] if self.system else []

    @property
    def choice(self) -> Any:
        if self.tool_choice is None:
            return None
        named = {"type": "function", "function": {"name": self.tool_choice.name}}
        return {"any": "required", "tool": named}.get(self.tool_choice.type, self.tool_choice.type)

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def effort(self) -> str | None:
        if self.thinking is not None and self.thinking.type == "disabled":
            return "none"
        if self.output_config.effort is not None:
            return _EFFORTS[self.output_config.effort]
        return "medium" if self.thinking is not None and self.thinking.type == "enabled" else None

    @property
    def formats(self) -> Iterator[tuple[str, str, Any]]:
        yield from super().formats
        formats = {
            "output_config.format": self.output_config.format, "output_format": self.output_format
        }  # fmt: skip
        for name, own in formats.items():
            if own is not None:
                schema = NamedSchema(schema=own.json_schema)
                yield from formats_of(name, ResponseFormat(type=own.type, json_schema=schema))


class MessagesBody(CountTokensBody):
    """Of ``/v1/messages``."""

    max_tokens: Limit = Field()

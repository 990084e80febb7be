"""Describe bodies of ``/v1/responses``, whose items are read as the messages of a chat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, FailFast, Field, StrictBool, StrictStr

from duodec.chat.contents import NoText, result_of
from duodec.chat.template import Message
from duodec.server.api.bodies import (
    MAX_LOGPROBS,
    OF_STREAMS,
    Body,
    ChatMessage,
    Conversation,
    Effort,
    NamedSchema,
    ResponseFormat,
    Tool,
    formats_of,
)
from duodec.server.api.fields import Limit, Object, Whole, between, id_in, one_of, refused
from duodec.server.api.openai.response_tools import (
    SentTools,
    name_shown,
    text_call,
    tools_of,
)
from duodec.server.errors import bad_field
from duodec.server.http.json_limits import kind

Item = dict[str, Any]
_PICTURE = "input_image"
_OF_TEXT = ("text", "input_text", "output_text", "reasoning_text", "summary_text")
_LOGPROBS = "message.output_text.logprobs"
# but for logprobs there is nothing to include: no hosted tool runs, and nothing is encrypted
_INCLUDED = (
    _LOGPROBS, "reasoning.encrypted_content", "web_search_call.results",
    "web_search_call.action.sources", "file_search_call.results", "code_interpreter_call.outputs",
    "computer_call_output.output.image_url", "message.input_image.image_url",
)  # fmt: skip
_FORMATS = ("text", "json_object", "json_schema")


def _messages(value: Any) -> list[Item]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list):
        raise refused(f"is {kind(value)}; send a text or an array of items")
    if not value:
        raise refused("is empty; send a text or an array of items")
    for item in value:
        if not isinstance(item, dict):
            raise refused(f"holds {kind(item)} among its items; send objects")
    return messages_of(value)


def _is_false(value: bool) -> bool:
    if value:
        raise refused("is true, and nothing is computed later; leave it out")
    return value


class TextFormat(Object):
    """OpenAI's ``text.format``."""

    without_effect = frozenset({"description", "strict"})

    type: Annotated[StrictStr, one_of(_FORMATS)] = "text"
    name: StrictStr = "answer"
    json_schema: Any = Field(default=None, alias="schema")


class Text(Object):
    format: TextFormat = TextFormat()
    verbosity: Annotated[StrictStr, one_of(("low", "medium", "high"))] = "medium"  # a hint


class StreamOptions(Object):
    without_effect = frozenset({"include_obfuscation"})


class Reasoning(Object):
    without_effect = frozenset({"summary", "generate_summary", "context"})

    effort: Effort | None = None


class ResponsesBody(Conversation):
    """Of ``/v1/responses``."""

    without_effect = (Body.without_effect - {"metadata", "store"}) | {"client_metadata"}

    messages: Annotated[list[ChatMessage], FailFast(), BeforeValidator(_messages)] = Field(
        alias="input"
    )
    instructions: StrictStr | None = None
    previous_response_id: StrictStr | None = None
    store: StrictBool = True
    max_output_tokens: Limit | None = None
    tools: Annotated[
        list[Tool], FailFast(), BeforeValidator(lambda value: tools_of(value).shown)
    ] = Field(default_factory=list)
    sent: Annotated[SentTools, BeforeValidator(tools_of)] = Field(
        default=SentTools(), alias="tools"
    )
    truncation: Annotated[StrictStr, one_of(("auto", "disabled"))] = "disabled"  # nothing is cut
    max_tool_calls: Limit | None = None  # of tools that are not served
    text: Text = Text()
    reasoning: Reasoning = Reasoning()
    background: Annotated[StrictBool, AfterValidator(_is_false)] = False
    metadata: dict[str, Any] = Field(default_factory=dict)
    stream_options: Annotated[StreamOptions, OF_STREAMS] = StreamOptions()
    include: Annotated[list[Annotated[StrictStr, one_of(_INCLUDED)]], FailFast()] = Field(
        default_factory=list
    )
    top_logprobs: Annotated[Whole, between(0, MAX_LOGPROBS)] | None = None

    @property
    def system(self) -> list[Message]:
        """The instructions, which are this request's alone."""
        return [{"role": "system", "content": self.instructions}] if self.instructions else []

    @property
    def choice(self) -> Any:
        choice = self.tool_choice
        if isinstance(choice, dict) and isinstance(choice.get("name"), str):
            name = name_shown(choice.get("namespace"), choice["name"])
            return {"type": "function", "function": {"name": name}}
        return choice

    @property
    def most_tokens(self) -> int | None:
        return self.max_output_tokens

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if _LOGPROBS in self.include else self.top_logprobs

    @property
    def effort(self) -> str | None:
        return self.reasoning.effort

    @property
    def formats(self) -> Iterator[tuple[str, str, Any]]:
        yield from super().formats
        own = self.text.format
        schema = NamedSchema(schema=own.json_schema)
        yield from formats_of("text.format", ResponseFormat(type=own.type, json_schema=schema))


# --- items


def messages_of(items: Sequence[Item]) -> list[Item]:
    """The messages of a chat that items stand for: reasoning and calls belong to the assistant's
    message. Raises ApiError."""
    messages: list[Item] = []
    thought = ""
    for i, item in enumerate(items):
        place = f"input[{i}]"
        form = item.get("type", "message")
        if form in ("function_call", "custom_tool_call"):
            _assistant(messages)["tool_calls"].append(_call(item, place))
        elif form == "message":
            content = _content(item.get("content"), place)
            messages.append({"role": item.get("role"), "content": content})
        elif form == "reasoning":
            parts = item.get("content") or item.get("summary") or []
            thought += "".join(_texts(parts, place))
        elif form in ("function_call_output", "custom_tool_call_output"):
            output = _result(item.get("output"), place)
            messages.append(
                {"role": "tool", "tool_call_id": id_in(item, "call_id", place), "content": output}
            )
        else:
            raise bad_field(
                f"{place}.type", f"{place} is of type {form!r}; use message, reasoning, "
                "function_call, function_call_output, custom_tool_call or custom_tool_call_output",
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
    is_custom = item["type"] == "custom_tool_call"
    field = "input" if is_custom else "arguments"
    name, text = item.get("name"), item.get(field)
    if not isinstance(name, str) or not isinstance(text, str):
        raise bad_field(place, f"{place} has no name or no {field}; send both as texts")
    arguments = text_call(text) if is_custom else text
    function = {"name": name_shown(item.get("namespace"), name), "arguments": arguments}
    return {"id": id_in(item, "call_id", place), "type": "function", "function": function}


def _result(output: Any, place: str) -> str | list[Any]:
    """A tool's result; what it has beside texts is read with the message."""
    try:
        return output if isinstance(output, list) else result_of(output)
    except NoText as error:
        raise bad_field(f"{place}.output", f"{place}.output {error}") from None


def _content(content: Any, place: str) -> str | list[Item]:
    """A text, or texts and pictures, which are read with the message."""
    if not isinstance(content, list):
        return "".join(_texts(content, place))
    found = [
        part
        if isinstance(part, dict) and part.get("type") == _PICTURE
        else {"type": "text", "text": _texts([part], place)[0]}
        for part in content
    ]
    if any(part["type"] == _PICTURE for part in found):
        return found
    return "".join(part["text"] for part in found)


def _texts(content: Any, place: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise bad_field(f"{place}.content", f"{place} has no text; send a string")
    texts = []
    for part in content:
        form, text = (part.get("type"), part.get("text")) if isinstance(part, dict) else (None, "")
        if form == "refusal":
            form, text = "text", part.get("refusal")
        if form not in _OF_TEXT or not isinstance(text, str):
            raise bad_field(
                f"{place}.content",
                f"{place} has a part of type {form!r}, and this model reads text only",
            )
        texts.append(text)
    return texts

"""Describe the bodies of requests, and refuse what does not fit in OpenAI's shape.

Unknown fields are ignored, null counts as absent, and no value is converted to another type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    Strict,
    StrictBool,
    StrictStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from duodec.core.sampling import SamplingParams
from duodec.server.errors import ApiError, bad_field
from duodec.server.http.json_limits import TooMuch, kind, parse

MAX_CHOICES, MAX_STOPS, MAX_DRAFT, MAX_LOGPROBS, MAX_BIASES = 64, 16, 80, 20, 1024
_COMPLETION_TOKENS = 16  # of a text completion that says nothing else, as everywhere
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_RESERVED = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")

_WANTED = {
    "string_type": "a string",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}

_B = TypeVar("_B", bound=BaseModel)


def validated(schema: type[_B], body: Mapping[str, Any]) -> _B:
    """The body as this schema has it. Raises ApiError of the first field that does not fit."""
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False)[0]) from None


def _refusal(error: ErrorDetails) -> ApiError:
    name = _name(error["loc"])
    if error["type"] == "refused":
        return bad_field(name, f"{name} {error['ctx']['why']}")
    if error["type"] == "missing":
        return bad_field(name, f"{name} is missing or empty; send it")
    wanted = _WANTED.get(error["type"])
    if wanted is None:
        return bad_field(name, f"{name}: {error['msg']}")
    found = kind(error["input"])
    if found == wanted:  # an integer that no float holds
        return bad_field(name, f"{name} is too large; send a smaller number")
    return bad_field(name, f"{name} is {found}; send {wanted}")


def _name(place: Sequence[str | int]) -> str:
    """A field's full name, as ``messages[0].role``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)[1:]


def refused(why: str) -> PydanticCustomError:
    """``why`` follows the field's name."""
    return PydanticCustomError("refused", "{why}", {"why": why})


# --- values


def _integral(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def between(least: float, most: float = math.inf) -> AfterValidator:
    """The bounds of a number."""

    def check(value: float) -> float:
        # `not (a <= b)` rather than `a > b`: NaN is refused too
        if not least <= value <= most:
            bounds = f"from {least:g} to {most:g}" if most < math.inf else f"{least:g} or more"
            raise refused(f"is {value}; use {bounds}")
        return value

    return AfterValidator(check)


Whole = Annotated[int, Strict(), BeforeValidator(_integral)]
Number = Annotated[float, Strict()]
Penalty = Annotated[Number, between(-2, 2)]
Repetition = Annotated[Number, between(0.01, 100)]
Share = Annotated[Number, between(0, 1)]
Limit = Annotated[Whole, between(1)]


def _stops(value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if isinstance(stops, list):
        if len(stops) > MAX_STOPS:
            raise refused(f"has {len(stops)} texts; use {MAX_STOPS} or fewer")
        if not all(isinstance(stop, str) and stop for stop in stops):
            raise refused("holds something that is no text, or an empty one")
    return stops


def _biases(value: Any) -> Any:
    if isinstance(value, dict):
        if len(value) > MAX_BIASES:
            raise refused(f"has {len(value)} tokens; use {MAX_BIASES} or fewer")
        for name in value:
            if not (name.isdecimal() and len(name) < 10):
                raise refused(f"names {name!r}; use numbers of tokens")
        return {name: bias for name, bias in value.items() if bias is not None}
    return value


def _texts(value: list[Any]) -> list[str]:
    if not value or not all(isinstance(text, str) and text for text in value):
        raise refused("is no list of texts; send some")
    return value


def _prompts(value: Any) -> list[str | list[int]]:
    """One text, or several; each may be given as tokens."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise refused(f"is {kind(value)}; send a text")
    if not value:
        raise refused("is missing or empty; send a text")
    if all(_is_token(item) for item in value):
        return [value]
    for item in value:
        is_tokens = isinstance(item, list) and item and all(_is_token(token) for token in item)
        if not (isinstance(item, str) or is_tokens):
            raise refused("holds something that is no text and no tokens")
    if len(value) > MAX_CHOICES:
        raise refused(f"has {len(value)} texts; use {MAX_CHOICES} or fewer")
    return value


def _is_token(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)


def _effort(value: str) -> str:
    if value not in _EFFORTS:
        raise refused(f"is {value!r}; use {', '.join(_EFFORTS)}")
    return value


def _variables(value: dict[str, Any]) -> dict[str, Any]:
    if taken := [name for name in _RESERVED if name in value]:
        raise refused(f"sets {taken[0]}, which the request itself does; leave it out")
    return value


# --- messages and tools


def _named(value: Any, wanted: str) -> dict[str, Any]:
    """Something with a function that has a name."""
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise refused(f"names no function; send {wanted}")
    found: dict[str, Any] = value
    return found


def _tool(value: Any) -> dict[str, Any]:
    return _named(value, "{type, function}")


def _call(value: Any) -> dict[str, Any]:
    """A call with its arguments as an object, as templates want them."""
    call = _named(value, "{id, type, function}")
    arguments = call["function"].get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = parse(arguments or "{}")
        except TooMuch as error:
            raise refused(f"has arguments that are too much ({error})") from error
        except ValueError:
            pass  # a model's own slip, sent back: it is shown as it is
    return {**call, "function": {**call["function"], "arguments": arguments}}


class Object(BaseModel):
    """A JSON object."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            return {name: value for name, value in values.items() if value is not None}
        return values


class ChatMessage(Object):
    """What templates are shown of it, with fields that they may know and we do not."""

    model_config = ConfigDict(extra="allow", frozen=True)

    role: StrictStr
    tool_calls: list[Annotated[dict[str, Any], BeforeValidator(_call)]] = []
    content: Any = Field(default=None, validate_default=True)

    @field_validator("role", mode="after")
    @classmethod
    def _known_role(cls, role: str) -> str:
        if role not in _ROLES:
            raise refused(f"is {role!r}; use {', '.join(_ROLES)}")
        return "system" if role == "developer" else role

    @field_validator("content", mode="after")
    @classmethod
    def _text(cls, value: Any, info: ValidationInfo) -> str:
        """A text, or the texts of a list of parts."""
        if isinstance(value, str):
            return value
        if value is None and info.data.get("tool_calls"):
            return ""
        if not isinstance(value, list):
            raise refused("is no text; send a string")
        texts = []
        for part in value:
            form, text = (
                (part.get("type"), part.get("text")) if isinstance(part, dict) else (None, None)
            )
            if form not in ("text", "input_text") or not isinstance(text, str):
                raise refused(f"has a part of type {form!r}, and this model reads text only")
            texts.append(text)
        return "".join(texts)

    def shown(self) -> dict[str, Any]:
        """For the template."""
        calls = {"tool_calls": self.tool_calls} if self.tool_calls else {}
        extra = dict(self.model_extra or {})
        if (thought := extra.get("reasoning_content", extra.get("reasoning"))) is not None:
            # the names that templates have for it
            extra = {"reasoning_content": thought, "thinking": thought, **extra}
        return {**extra, "role": self.role, "content": self.content, **calls}


# --- bodies


class StreamOptions(Object):
    include_usage: StrictBool = False


class Speculation(Object):
    method: StrictStr | None = None
    max_draft: Annotated[Whole, between(0, MAX_DRAFT)] | None = None
    show_drafted: StrictBool = False


def _speculation(value: Any) -> Any:
    """True: as the server does by default; false: plain decoding."""
    return {} if value is True else {"max_draft": 0} if value is False else value


class NamedSchema(Object):
    json_schema: Any = Field(default=None, alias="schema")


class ResponseFormat(Object):
    """OpenAI's."""

    type: StrictStr | None = None
    json_schema: NamedSchema = NamedSchema()


class StructuredOutputs(Object):
    """vLLM's."""

    json_schema: Any = Field(default=None, alias="json")
    json_object: StrictBool | None = None
    regex: StrictStr | None = None
    choice: Annotated[list[Any], AfterValidator(_texts)] | None = None


class Body(Object):
    """What both endpoints have in common."""

    model: StrictStr | None = None
    stream: StrictBool = False
    stream_options: StreamOptions = StreamOptions()
    n: Annotated[Whole, between(1, MAX_CHOICES)] = 1
    stop: Annotated[list[str], BeforeValidator(_stops)] = []
    temperature: Annotated[Number, between(0, 100)] = SamplingParams().temperature
    top_k: Annotated[Whole, between(-1)] = 0
    top_p: Share = 1.0
    min_p: Share = 0.0
    repetition_penalty: Repetition | None = None
    repeat_penalty: Repetition = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    logit_bias: Annotated[
        dict[str, Annotated[Number, between(-100, 100)]], BeforeValidator(_biases)
    ] = {}
    seed: Annotated[Whole, between(-1, (1 << 64) - 1)] | None = None
    speculation: Annotated[Speculation, BeforeValidator(_speculation)] = Speculation()
    response_format: ResponseFormat = ResponseFormat()
    structured_outputs: StructuredOutputs = StructuredOutputs()
    timings_per_token: StrictBool = False


class ChatBody(Body):
    """Of ``/v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], FailFast()]
    max_completion_tokens: Limit | None = None
    max_tokens: Limit | None = None
    logprobs: StrictBool = False
    top_logprobs: Annotated[Whole, between(0, MAX_LOGPROBS)] = 0
    tools: Annotated[list[Annotated[dict[str, Any], BeforeValidator(_tool)]], FailFast()] = []
    tool_choice: Any = None
    parallel_tool_calls: StrictBool = True
    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(_variables)] = {}
    reasoning_effort: Annotated[StrictStr, AfterValidator(_effort)] | None = None

    def variables(self) -> dict[str, Any]:
        """For the template, whose family may know one name or another."""
        if self.reasoning_effort is None:
            return self.chat_template_kwargs
        thinks = self.reasoning_effort != "none"
        effort = {"reasoning_effort": self.reasoning_effort} if thinks else {}
        return {
            "enable_thinking": thinks, "thinking": thinks, **effort, **self.chat_template_kwargs
        }  # fmt: skip


class CompletionBody(Body):
    """Of ``/v1/completions``."""

    prompt: Annotated[Any, AfterValidator(_prompts)]
    max_tokens: Limit = _COMPLETION_TOKENS
    logprobs: Annotated[Whole, between(0, MAX_LOGPROBS)] | None = None
    suffix: StrictStr = ""
    best_of: Limit = 1
    echo: StrictBool = False

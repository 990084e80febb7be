"""Describe the bodies of chat completions and text completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    FailFast,
    Field,
    StrictBool,
    StrictStr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from duodec.server.api.bodies import (
    MAX_CHOICES,
    MAX_LOGPROBS,
    NEUTRAL,
    OF_STREAMS,
    Body,
    ChatMessage,
    Choices,
    Conversation,
    Effort,
    ResponseFormat,
    formats_of,
)
from duodec.server.api.fields import (
    MAX_STOPS,
    Limit,
    Object,
    Whole,
    between,
    one_of,
    refused,
)
from duodec.server.api.openai.functions import with_function, with_tools
from duodec.server.errors import bad_field
from duodec.server.http.json_limits import kind

COMPLETION_TOKENS = 16  # of a text completion that says nothing else, as everywhere


class StreamOptions(Object):
    without_effect = frozenset({"include_obfuscation"})

    include_usage: StrictBool = False
    continuous_usage_stats: StrictBool = False


class CompletionsBody(Body):
    """What both kinds of completions have in common."""

    stream_options: Annotated[StreamOptions, OF_STREAMS] = StreamOptions()
    n: Annotated[Whole, between(1, MAX_CHOICES)] = 1
    response_format: ResponseFormat = ResponseFormat()
    timings_per_token: StrictBool = False
    prompt_logprobs: Annotated[Whole, between(0, MAX_LOGPROBS)] | None = None
    return_token_ids: StrictBool = False
    ignore_eos: StrictBool = False
    min_tokens: Annotated[Whole, between(0)] = 0
    stop_token_ids: Annotated[list[Annotated[Whole, between(0)]], FailFast()] = Field(
        default_factory=list, max_length=MAX_STOPS
    )
    grammar: StrictStr | None = None
    json_schema: Any = None
    guided_json: Any = None
    guided_regex: StrictStr | None = None
    guided_choice: Choices | None = None
    guided_grammar: StrictStr | None = None

    @field_validator("prompt_logprobs", "return_token_ids", mode="after")
    @classmethod
    def _whole(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value not in (None, False) and info.data.get("stream"):
            raise refused("comes with whole responses only; leave it out, or leave out stream")
        return value

    @property
    def num_choices(self) -> int:
        return self.n

    @property
    def ignores_end(self) -> bool:
        return self.ignore_eos

    @property
    def least_tokens(self) -> int:
        return self.min_tokens

    @property
    def end_tokens(self) -> Sequence[int]:
        return self.stop_token_ids

    @property
    def formats(self) -> Iterator[tuple[str, str, Any]]:
        yield from super().formats
        yield from formats_of("response_format", self.response_format)
        yield "grammar", "grammar", self.grammar or None
        yield "json_schema", "json_schema", self.json_schema
        yield "guided_json", "json_schema", self.guided_json
        yield "guided_regex", "regex", self.guided_regex
        yield "guided_choice", "choice", self.guided_choice
        yield "guided_grammar", "grammar", self.guided_grammar

    @property
    def num_prompt_logprobs(self) -> int | None:
        return self.prompt_logprobs

    def written(self, choice: dict[str, Any]) -> dict[str, Any]:
        """A choice of the response in the form that the request wants."""
        return choice

    @property
    def includes_usage(self) -> bool:
        """A stream ends with what it cost."""
        return self.stream and self.stream_options.include_usage

    @property
    def tells_usage(self) -> bool:
        """Every chunk of a stream says what it cost so far; as in vLLM, only if its end does."""
        return self.includes_usage and self.stream_options.continuous_usage_stats


class Reasoning(Object):
    """OpenRouter's."""

    without_effect = frozenset({"max_tokens", "summary"})
    neutral = MappingProxyType({"exclude": (False,)})

    effort: Effort | None = None
    enabled: StrictBool | None = None


class Thinking(Object):
    """DeepSeek's, GLM's and others'."""

    without_effect = frozenset({"budget_tokens", "clear_thinking"})

    type: Annotated[StrictStr, one_of(("enabled", "disabled", "adaptive", "auto"))]


_SWITCHED: Mapping[Any, str | None] = {
    True: "medium", False: "none", "enabled": "medium", "disabled": "none"
}  # fmt: skip


class ChatBody(CompletionsBody, Conversation):
    """Of ``/v1/chat/completions``."""

    without_effect = CompletionsBody.without_effect | {"verbosity"}
    neutral = MappingProxyType({
        **NEUTRAL, "echo": (False,), "add_generation_prompt": (True,),
        "continue_final_message": (False,), "add_special_tokens": (False,),
        "modalities": (["text"],),
    })  # fmt: skip

    max_completion_tokens: Limit | None = None
    max_tokens: Limit | None = None
    logprobs: StrictBool = False
    top_logprobs: Annotated[Whole, between(0, MAX_LOGPROBS)] = 0
    functions: list[Any] = Field(default_factory=list)
    function_call: Any = None
    reasoning_effort: Effort | None = None
    reasoning: Reasoning = Reasoning()
    thinking: Thinking | None = None
    enable_thinking: StrictBool | None = None

    @model_validator(mode="before")
    @classmethod
    def _old(cls, values: Any) -> Any:
        return with_tools(values) if isinstance(values, Mapping) else values

    @field_validator("messages", mode="after")
    @classmethod
    def _some(cls, messages: list[ChatMessage]) -> list[ChatMessage]:
        if not messages:
            raise refused("is empty; send at least one message")
        return messages

    @field_validator("top_logprobs", mode="after")
    @classmethod
    def _with_logprobs(cls, number: int, info: ValidationInfo) -> int:
        if number and not info.data.get("logprobs"):
            raise refused("needs logprobs: true")
        return number

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    def written(self, choice: dict[str, Any]) -> dict[str, Any]:
        return with_function(choice) if self.functions else choice

    @property
    def effort(self) -> str | None:
        """By whichever of its names the request says it."""
        said = (self.enable_thinking, self.thinking and self.thinking.type, self.reasoning.enabled)
        switched = [_SWITCHED[one] for one in said if one in _SWITCHED]
        found = [self.reasoning_effort, self.reasoning.effort, *switched]
        return next((effort for effort in found if effort is not None), None)


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


class CompletionBody(CompletionsBody):
    """Of ``/v1/completions``."""

    neutral = MappingProxyType({**NEUTRAL, "add_special_tokens": (True,), "suffix": ("",)})

    prompt: Annotated[Any, AfterValidator(_prompts)]  # texts, or lists of tokens
    max_tokens: Annotated[Whole, between(0)] = COMPLETION_TOKENS
    logprobs: Annotated[Whole, between(0, MAX_LOGPROBS)] | None = None
    best_of: Limit = 1
    echo: StrictBool = False

    @model_validator(mode="after")
    def _served(self) -> CompletionBody:
        if not self.max_tokens and self.num_prompt_logprobs is None:
            raise bad_field(
                "max_tokens", "max_tokens is 0; use 1 or more, or 0 with prompt_logprobs, or with "
                "echo and logprobs",
            )  # fmt: skip
        if not self.max_tokens and self.n > 1:
            raise bad_field("n", f"n is {self.n} and max_tokens is 0: all choices are empty; use 1")
        if self.best_of > self.n:
            raise bad_field("best_of", "best_of is not served; use n")
        return self

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        """Those of a text that is echoed, too."""
        given = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max((number for number in given if number is not None), default=None)

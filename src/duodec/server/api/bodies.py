"""Describe the bodies of OpenAI's chat and text completions, and what any request may say."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    StrictBool,
    StrictStr,
    ValidationInfo,
    field_validator,
)

from duodec.chat.contents import NoText, names_function, with_files
from duodec.chat.template import Message
from duodec.core.sampling.grammar import Grammar
from duodec.core.sampling.sampler import SamplingParams, seeded
from duodec.methods.registry import METHODS, names
from duodec.server.api.fields import (
    Biases,
    Number,
    Object,
    Penalty,
    Repetition,
    Share,
    ShortId,
    Stops,
    Whole,
    between,
    id_fault,
    one_of,
    refused,
)
from duodec.server.errors import bad_field
from duodec.server.http.json_limits import TooMuch, parse

MAX_CHOICES, MAX_DRAFT, MAX_LOGPROBS, MAX_SALT = 64, 80, 20, 1024
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
_FORMATS = ("text", "json_object", "json_schema")
_RESERVED = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_PLAIN = "ar"

Tool = dict[str, Any]

# --- what any request may say


class Speculation(Object):
    """How a request is drafted for."""

    method: Annotated[StrictStr, AfterValidator(lambda name: _base_name(name))] | None = None
    max_draft: Annotated[Whole, between(0, MAX_DRAFT)] | None = None
    show_drafted: StrictBool = False

    @property
    def method_name(self) -> str | None:
        """The method to decode with; None: the server's."""
        return _PLAIN if self.max_draft == 0 else self.method

    @property
    def most_drafted(self) -> int | None:
        """Draft tokens of a forward pass; None: as many as the method likes."""
        return self.max_draft or None


def _base_name(name: str) -> str:
    """A method's name, without a number and without a module: a client names nothing that is then
    imported."""
    if ":" in name or (name not in METHODS and name not in names()):
        raise refused(
            f"is {name[:200]!r}; choose from: {', '.join(names())}, and say how many tokens to "
            "draft with max_draft"
        )
    return name


def _speculation(value: Any) -> Any:
    """True: as the server does by default; false: plain decoding."""
    return {} if value is True else {"max_draft": 0} if value is False else value


def _salt(value: str) -> str:
    if not 1 <= len(value) <= MAX_SALT:
        raise refused(f"has {len(value)} characters; use 1 to {MAX_SALT}")
    return value


def _choices(value: list[Any]) -> list[str]:
    if not value or not all(isinstance(text, str) and text for text in value):
        raise refused("is no list of texts; send some")
    return value


Choices = Annotated[list[Any], AfterValidator(_choices)]


class StructuredOutputs(Object):
    """vLLM's."""

    json_schema: Any = Field(default=None, alias="json")
    json_object: StrictBool | None = None
    regex: StrictStr | None = None
    choice: Choices | None = None
    grammar: StrictStr | None = None


class NamedSchema(Object):
    without_effect = frozenset({"name", "description", "strict"})

    json_schema: Any = Field(default=None, alias="schema")


class ResponseFormat(Object):
    """OpenAI's, and llama.cpp's ``schema`` of an object."""

    type: Annotated[StrictStr, one_of(_FORMATS)] = "text"
    json_schema: NamedSchema = NamedSchema()
    own_schema: Any = Field(default=None, alias="schema")

    @property
    def schema_(self) -> Any:
        """The JSON schema; None where there is none."""
        return self.own_schema if self.json_schema.json_schema is None else (
            self.json_schema.json_schema
        )  # fmt: skip


_HABITS = frozenset({
    "user", "safety_identifier", "service_tier", "prompt_cache_key", "prompt_cache_retention",
    "metadata", "store", "prediction", "request_id", "priority", "cache_prompt", "id_slot",
})  # fmt: skip
# of vLLM, llama.cpp and others: the values that change nothing
NEUTRAL: Mapping[str, Sequence[Any]] = {
    "use_beam_search": (False,), "length_penalty": (1,), "early_stopping": (False,),
    "min_tokens": (0,), "skip_special_tokens": (True,), "include_stop_str_in_output": (False,),
    "spaces_between_special_tokens": (True, False), "logprob_token_ids": ([],),
    "return_tokens_as_token_ids": (False,), "typical_p": (1,), "tfs_z": (1,), "top_a": (0,),
    "mirostat": (0,), "dynatemp_range": (0,), "xtc_probability": (0,), "dry_multiplier": (0,),
    "repeat_last_n": (-1,), "n_keep": (0,), "n_discard": (0,), "min_keep": (0,),
    "post_sampling_probs": (False,), "t_max_predict_ms": (0,),
}  # fmt: skip


class Sampling(Object):
    """How a completion is sampled."""

    temperature: Annotated[Number, between(0, 100)] = SamplingParams().temperature
    top_k: Annotated[Whole, between(-1)] = 0
    top_p: Share = 1.0
    min_p: Share = 0.0
    repetition_penalty: Repetition | None = None
    repeat_penalty: Repetition = 1.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    stop: Stops = Field(default_factory=list)
    logit_bias: Biases = Field(default_factory=dict)
    seed: Annotated[Whole, between(-1, (1 << 64) - 1)] | None = None


class Body(Sampling):
    """What requests of every API have in common. What one of them lacks has a property here."""

    without_effect = _HABITS
    neutral = NEUTRAL

    model: StrictStr | None = None
    stream: StrictBool = False
    speculation: Annotated[Speculation, BeforeValidator(_speculation)] = Speculation()
    structured_outputs: StructuredOutputs = StructuredOutputs()
    schema_objects: Annotated[StrictStr, one_of(("closed", "open"))] = "closed"
    cache_salt: Annotated[StrictStr, AfterValidator(_salt)] | None = None

    @property
    def sampled(self) -> Sampling:
        """Where the request says how to sample."""
        return self

    @property
    def num_choices(self) -> int:
        """Completions of each prompt."""
        return 1

    @property
    def most_tokens(self) -> int | None:
        """Tokens of a completion; None: as many as the context holds."""
        return None

    @property
    def num_logprobs(self) -> int | None:
        """Alternatives to each token; None: no logprobs."""
        return None

    @property
    def num_prompt_logprobs(self) -> int | None:
        """Alternatives to each token of the prompt; None: no logprobs of it."""
        return None

    @property
    def ignores_end(self) -> bool:
        """The model cannot end a completion."""
        return False

    @property
    def end_tokens(self) -> Sequence[int]:
        """Tokens that end a completion, besides the model's own."""
        return ()

    @property
    def least_tokens(self) -> int:
        """Tokens of a completion before it may end."""
        return 0

    @property
    def formats(self) -> Iterator[tuple[str, str, Any]]:
        """What the text of a completion must be: a field's name, its kind and its value."""
        own = self.structured_outputs
        yield "structured_outputs.json", "json_schema", own.json_schema
        yield "structured_outputs.json_object", "json_object", own.json_object or None
        yield "structured_outputs.regex", "regex", own.regex
        yield "structured_outputs.choice", "choice", own.choice
        yield "structured_outputs.grammar", "grammar", own.grammar

    def sampling(self, grammar: Grammar | None) -> SamplingParams:
        """With a seed, and this grammar. Raises BadOption of values that make no distribution."""
        own = self.sampled
        repetition = own.repetition_penalty
        return seeded(
            SamplingParams(
                temperature=own.temperature,
                top_k=max(0, own.top_k),  # -1: off, as in vLLM
                top_p=own.top_p or 1e-9,  # 0: the likeliest alone
                min_p=own.min_p,
                repetition_penalty=own.repeat_penalty if repetition is None else repetition,
                presence_penalty=own.presence_penalty,
                frequency_penalty=own.frequency_penalty,
                logit_bias={int(token): bias for token, bias in own.logit_bias.items()},
                grammar=grammar,
                seed=None if own.seed == -1 else own.seed,  # as in llama.cpp
                max_tokens=self.most_tokens,
                min_tokens=self.least_tokens,
                stop=tuple(own.stop),
                logprobs=self.num_logprobs,
                prompt_logprobs=self.num_prompt_logprobs,
                stop_token_ids=tuple(self.end_tokens),
            )
        )


def _of_streams(value: Any, info: ValidationInfo) -> Any:
    if not info.data.get("stream"):
        raise refused("is for streams; leave it out, or send stream: true")
    return value


OF_STREAMS = AfterValidator(_of_streams)


def formats_of(name: str, own: ResponseFormat) -> Iterator[tuple[str, str, Any]]:
    """What OpenAI's format says. Raises ApiError."""
    schema = own.schema_
    if own.type == "json_schema" and not isinstance(schema, dict | bool):
        name = f"{name}.json_schema.schema"
        raise bad_field(name, f"{name} is no schema; send an object")
    if own.type == "text" and schema is not None:
        raise bad_field(name, f"{name} has a schema and is of type text; use json_schema")
    kind = "json_schema" if schema is not None else own.type
    yield name, kind, None if kind == "text" else True if schema is None else schema


# --- messages and tools


def _with_function(value: Any, expected: str) -> dict[str, Any]:
    """Something with a function that has a name."""
    if not names_function(value):
        raise refused(f"names no function; send {expected}")
    checked: dict[str, Any] = value
    return checked


def tool_of(value: Any) -> Tool:
    return _with_function(value, "{type, function}")


def _call(value: Any) -> dict[str, Any]:
    """A call with its arguments as an object, as templates want them."""
    call = _with_function(value, "{id, type, function}")
    if (fault := id_fault(call.get("id"))) is not None:
        raise refused(f"has an id that {fault}")
    arguments = call["function"].get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = parse(arguments or "{}")
        except TooMuch as error:
            raise refused(f"has arguments that are too much ({error})") from error
        except ValueError:
            pass  # a model's own slip, sent back: it is shown as it is
    return {**call, "function": {**call["function"], "arguments": arguments}}


class ChatMessage(Object):
    """What templates are shown of it, with fields that they may know and we do not."""

    model_config = ConfigDict(extra="allow", frozen=True)

    role: Annotated[StrictStr, one_of(_ROLES)]
    tool_calls: Annotated[list[Annotated[dict[str, Any], BeforeValidator(_call)]], FailFast()] = (
        Field(default_factory=list)
    )
    tool_call_id: ShortId | None = None
    content: Any = Field(default=None, validate_default=True)

    @field_validator("content", mode="after")
    @classmethod
    def _text(cls, value: Any, info: ValidationInfo) -> str | list[dict[str, Any]]:
        """A text, or the texts of a list of parts; where it has pictures, its parts."""
        try:
            has_calls = bool(info.data.get("tool_calls"))
            return with_files(info.data.get("role"), value, has_calls=has_calls)
        except NoText as error:
            raise refused(str(error)) from None

    def shown(self) -> Message:
        """For the template."""
        role = "system" if self.role == "developer" else self.role
        calls = {"tool_calls": self.tool_calls} if self.tool_calls else {}
        extra = dict(self.model_extra or {})
        if self.tool_call_id is not None:
            extra["tool_call_id"] = self.tool_call_id
        if (thought := extra.get("reasoning_content", extra.get("reasoning"))) is not None:
            # the names that templates have for it
            extra = {"reasoning_content": thought, "thinking": thought, **extra}
        return {**extra, "role": role, "content": self.content, **calls}


def variables_of(value: dict[str, Any]) -> dict[str, Any]:
    if taken := [name for name in _RESERVED if name in value]:
        raise refused(f"sets {taken[0]}, which the request itself does; leave it out")
    return value


class Conversation(Body):
    """What requests of every API for chats have in common: messages, tools that may be called, and
    how the model reasons."""

    messages: Annotated[list[ChatMessage], FailFast()]
    tools: Annotated[list[Annotated[Tool, BeforeValidator(tool_of)]], FailFast()] = Field(
        default_factory=list
    )
    tool_choice: Any = None
    parallel_tool_calls: StrictBool = True
    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(variables_of)] = Field(
        default_factory=dict
    )

    @property
    def choice(self) -> Any:
        """``tool_choice`` as in requests of chat completions."""
        return self.tool_choice

    @property
    def shown(self) -> list[Message]:
        """The messages, for the template."""
        return [message.shown() for message in self.messages]

    @property
    def offered(self) -> list[Tool]:
        """The tools that the model is shown."""
        return [] if self.choice == "none" else self.tools

    @property
    def required(self) -> Sequence[Tool]:
        """The tools of which one must be called; none where the model decides. Raises ApiError."""
        choice = self.choice
        if choice in (None, "auto", "none"):
            return ()
        if not self.tools:
            raise bad_field(
                "tool_choice", "tool_choice wants a call of tools, and none were sent; send tools, "
                "or leave it out",
            )  # fmt: skip
        if choice == "required":
            return self.tools
        function = choice.get("function") if isinstance(choice, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        named = [tool for tool in self.tools if tool["function"]["name"] == name]
        if not named:
            raise bad_field(
                "tool_choice",
                "tool_choice names no tool that was sent; use none, auto, required, or "
                '{"type": "function", "function": {"name": ...}}',
            )
        return named

    @property
    def most_calls(self) -> int:
        return sys.maxsize if self.parallel_tool_calls else 1

    @property
    def effort(self) -> str | None:
        """Of the model's reasoning."""
        return None

    @property
    def variables(self) -> dict[str, Any]:
        """For the template, whose family may know one name or another."""
        if self.effort is None:
            return self.chat_template_kwargs
        thinks = self.effort != "none"
        effort = {"reasoning_effort": self.effort} if thinks else {}
        return {
            "enable_thinking": thinks, "thinking": thinks, **effort, **self.chat_template_kwargs
        }  # fmt: skip


Effort = Annotated[StrictStr, one_of(_EFFORTS)]

"""Describe bodies of Ollama's ``/api/chat`` and ``/api/generate``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, FailFast, Field, StrictBool, StrictStr, model_validator

from duodec.chat.contents import NoText, with_files
from duodec.chat.template import Message
from duodec.server.api.bodies import (
    MAX_LOGPROBS,
    NEUTRAL,
    Body,
    ChatMessage,
    Conversation,
    Sampling,
)
from duodec.server.api.fields import Limit, Object, Whole, between, refused
from duodec.server.errors import bad_field
from duodec.server.http.json_limits import kind

_EFFORTS = {True: "medium", False: "none", "low": "low", "medium": "medium", "high": "high"}


class Options(Sampling):
    """What a request says of sampling. How the model computes is the server's affair."""

    without_effect = frozenset({
        "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "f16_kv",
        "use_mmap", "use_mlock", "mirostat_tau", "mirostat_eta",
    })  # fmt: skip
    neutral = MappingProxyType({
        **NEUTRAL, "penalize_newline": (True,), "vocab_only": (False,), "logits_all": (False,),
        "embedding_only": (False,),
    })  # fmt: skip

    num_predict: Annotated[Whole, between(-2)] = -1  # 0 or less: as many as the context holds
    num_ctx: Limit | None = None


def _effort(value: Any) -> Any:
    if not isinstance(value, bool | str) or value not in _EFFORTS:
        raise refused("is no level of thinking; use true, false, low, medium or high")
    return _EFFORTS[value]


def _messages(value: Any) -> Any:
    """With the names of a chat request."""
    if not isinstance(value, list):
        raise refused(f"is {kind(value)}; send an array of messages")
    return [_message(one, i) if isinstance(one, dict) else one for i, one in enumerate(value)]


def _message(value: dict[str, Any], number: int) -> dict[str, Any]:
    given = {name: own for name, own in value.items() if own is not None}
    images = given.pop("images", None)
    if images and value.get("role") == "tool":
        own = images if isinstance(images, list) else [None]
        parts = [{"type": "image", "source": {"type": "base64", "data": data}} for data in own]
        given["content"] = [{"type": "text", "text": str(given.get("content", ""))}, *parts]
    elif images:
        given["content"] = _seen(given.get("content", ""), images, f"messages[{number}].images")
    renamed = {"thinking": "reasoning_content", "tool_name": "name"}
    return {"content": "", **{renamed.get(name, name): own for name, own in given.items()}}


def _seen(text: Any, images: Any, name: str) -> list[dict[str, Any]]:
    """A content with pictures, which Ollama puts before the text. Raises ApiError."""
    if not isinstance(images, list) or not all(isinstance(own, str) for own in images):
        raise bad_field(name, f"{name} is no array of pictures; send each file as base64")
    urls = [own if own.startswith("data:") else f"data:;base64,{own}" for own in images]
    parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": u}} for u in urls]
    return [*parts, {"type": "text", "text": text}]


class OllamaBody(Conversation):
    """What both kinds of requests have in common. Sampling is a part of it, ``options``."""

    without_effect = Body.without_effect | {"keep_alive"}
    neutral = MappingProxyType({"truncate": (False,), "shift": (False,)})
    elsewhere: ClassVar[frozenset[str]] = frozenset(Sampling.model_fields)

    stream: StrictBool = True
    options: Options = Options()
    format: Any = None
    think: Annotated[StrictStr, BeforeValidator(_effort)] | None = None
    logprobs: StrictBool = False
    top_logprobs: Annotated[Whole, between(0, MAX_LOGPROBS)] = 0
    messages: Annotated[list[ChatMessage], FailFast(), BeforeValidator(_messages)] = Field(
        default_factory=list
    )

    @classmethod
    def names(cls) -> list[str]:
        return [name for name in super().names() if name not in cls.elsewhere]

    @model_validator(mode="after")
    def _served(self) -> OllamaBody:
        if self.format not in (None, "", "json") and not isinstance(self.format, dict):
            raise bad_field("format", 'format is no format; send "json" or a JSON schema')
        return self

    @property
    def sampled(self) -> Sampling:
        return self.options

    @property
    def most_tokens(self) -> int | None:
        return self.options.num_predict if self.options.num_predict > 0 else None

    @property
    def num_logprobs(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @property
    def effort(self) -> str | None:
        return self.think

    @property
    def formats(self) -> Iterator[tuple[str, str, Any]]:
        yield from super().formats
        if self.format == "json":
            yield "format", "json_object", True
        elif self.format:
            yield "format", "json_schema", self.format

    @property
    def is_empty(self) -> bool:
        """The request is for the model to be loaded."""
        return not self.messages

    def text(self, *, has_template: bool) -> str | None:
        """The prompt as it is; None where it goes through the model's template."""
        return None

    def check_context(self, num_context: int) -> None:
        """Raises ApiError where a larger context is wanted than there is."""
        if (wanted := self.options.num_ctx or 0) > num_context:
            raise bad_field(
                "options.num_ctx", f"options.num_ctx is {wanted} and the context holds "
                f"{num_context} tokens; send {num_context} or less, or start the server with a "
                "larger --context",
            )  # fmt: skip


class OllamaChatBody(OllamaBody):
    """Of ``/api/chat``."""

    neutral = MappingProxyType({**OllamaBody.neutral, "images": ([],)})


class GenerateBody(OllamaBody):
    """Of ``/api/generate``."""

    neutral = MappingProxyType({
        **OllamaBody.neutral, "suffix": ("",), "template": ("",), "context": ([],),
    })  # fmt: skip
    elsewhere = OllamaBody.elsewhere | {"messages", "tools", "tool_choice", "parallel_tool_calls"}

    prompt: StrictStr = ""
    images: list[Any] = Field(default_factory=list)
    system: StrictStr = ""
    raw: StrictBool = False

    @model_validator(mode="after")
    def _whole(self) -> GenerateBody:
        if self.raw and self.images:
            raise bad_field("images", "images have no place in a raw prompt; leave out one")
        _ = self.content  # read here, where others do not wait for it
        if self.raw and self.system:
            raise bad_field("system", "system has no place in a raw prompt; leave out one")
        return self

    @property
    def shown(self) -> list[Message]:
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.content}]

    @cached_property
    def content(self) -> str | list[dict[str, Any]]:
        """The prompt, with its pictures. Raises ApiError."""
        if not self.images:
            return self.prompt
        try:
            return with_files("user", _seen(self.prompt, self.images, "images"), has_calls=False)
        except NoText as error:
            raise bad_field("images", f"images {error}") from None

    @property
    def is_empty(self) -> bool:
        return not self.prompt and not self.images

    def text(self, *, has_template: bool) -> str | None:
        is_chat = bool(self.system or self.images or (has_template and not self.raw))
        return None if is_chat else self.prompt


class ShowBody(Object):
    """Of ``/api/show``."""

    without_effect = frozenset({"verbose", "system", "template", "options"})

    model: StrictStr | None = None
    name: StrictStr | None = None  # as it was called before

"""Describe bodies of ``/tokenize`` and ``/detokenize``, in llama.cpp's and vLLM's fields."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    FailFast,
    Field,
    StrictBool,
    StrictStr,
    model_validator,
)

from duodec.server.api.bodies import ChatMessage, Tool, tool_of, variables_of
from duodec.server.api.fields import Object, Whole, between
from duodec.server.errors import bad_field


class TokenizeBody(Object):
    """A text, as ``content`` (llama.cpp) or ``prompt`` (vLLM), or a chat."""

    neutral = MappingProxyType({"parse_special": (False,), "add_generation_prompt": (True,)})

    model: StrictStr | None = None
    content: StrictStr | None = None
    prompt: StrictStr | None = None
    messages: Annotated[list[ChatMessage], FailFast()] = Field(default_factory=list)
    tools: Annotated[list[Annotated[Tool, BeforeValidator(tool_of)]], FailFast()] = Field(
        default_factory=list
    )
    chat_template_kwargs: Annotated[dict[str, Any], AfterValidator(variables_of)] = Field(
        default_factory=dict
    )
    add_special: StrictBool = False
    add_special_tokens: StrictBool = True
    with_pieces: StrictBool = False
    return_token_strs: StrictBool = False

    @model_validator(mode="after")
    def _is_one(self) -> TokenizeBody:
        if len(self.model_fields_set & {"content", "prompt", "messages"}) != 1:
            raise bad_field("prompt", "send one of prompt, content and messages")
        return self

    @property
    def begins(self) -> bool:
        """A text has the model's beginning token."""
        return self.add_special if self.content is not None else self.add_special_tokens


class DetokenizeBody(Object):
    """Tokens."""

    model: StrictStr | None = None
    tokens: Annotated[list[Annotated[Whole, between(0)]], FailFast()]

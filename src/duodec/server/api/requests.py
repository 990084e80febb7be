"""Turn the body of a request into what the scheduler is asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from duodec.chat.template import Message
from duodec.core.grammar import Grammar
from duodec.core.sampling import SamplingParams, seeded
from duodec.server.api.bodies import Body, ChatBody, CompletionBody, validated
from duodec.server.api.formats import wanted_format, wanted_of
from duodec.server.api.methods import base_name
from duodec.server.api.tools.dialects import Dialect, Wanted
from duodec.server.errors import ApiError, bad_field

_PLAIN = "ar"


@dataclass(frozen=True)
class Wish:
    """What both endpoints have in common."""

    sampling: SamplingParams
    num_choices: int
    max_tokens: int | None
    stop: tuple[str, ...]
    method: str | None
    max_draft: int | None
    shows_drafts: bool  # each piece of text says what of it was drafted
    num_logprobs: int | None
    is_streamed: bool
    includes_usage: bool
    shows_progress: bool  # llama.cpp's timings_per_token

    def constrained(self, grammar: Grammar | None) -> Wish:
        """The same, with a grammar."""
        return replace(self, sampling=replace(self.sampling, grammar=grammar))


@dataclass(frozen=True)
class ChatWish:
    wish: Wish
    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)
    variables: dict[str, Any] = field(default_factory=dict)  # of the template
    wanted: Wanted = field(default_factory=Wanted)
    most_calls: int = sys.maxsize


@dataclass(frozen=True)
class CompletionWish:
    wish: Wish
    prompts: list[str | list[int]]
    is_echoed: bool = False


def parse_chat(body: Mapping[str, Any], dialect: Dialect) -> ChatWish:
    """What the response must match is left to its ``wanted``: the prompt's end has a say in it.
    Raises ApiError, and BadOption of values that make no distribution."""
    found = validated(ChatBody, body)
    if found.top_logprobs and not found.logprobs:
        raise bad_field("top_logprobs", "top_logprobs needs logprobs: true")
    if not found.messages:
        raise bad_field("messages", "messages is empty; send at least one message")
    tools = _tools(found, dialect)
    wish = _wish(
        found,
        None,
        found.max_completion_tokens or found.max_tokens,
        found.top_logprobs if found.logprobs else None,
    )
    return ChatWish(
        wish, [message.shown() for message in found.messages], tools, found.variables(),
        wanted_of(found, tools, wanted_format(found)),
        sys.maxsize if found.parallel_tool_calls else 1,
    )  # fmt: skip


def parse_completion(body: Mapping[str, Any]) -> CompletionWish:
    """Raises ApiError, and BadOption of values that make no distribution."""
    found = validated(CompletionBody, body)
    if found.suffix:
        raise bad_field("suffix", "suffix is not served; leave it out")
    if found.best_of > found.n:
        raise bad_field("best_of", "best_of is not served; ask for n answers")
    wish = _wish(found, wanted_format(found), found.max_tokens, found.logprobs)
    return CompletionWish(wish, found.prompt, found.echo)


def _tools(body: ChatBody, dialect: Dialect) -> list[dict[str, Any]]:
    """The tools that the template shall show. Raises ApiError where it has no place for them."""
    if not body.tools or body.tool_choice == "none":
        return []
    if not dialect.has_tools:
        raise ApiError(
            400, "the model's chat template has no tools that are understood here; leave them "
            "out, or serve a model that was trained for them",
            param="tools", code="unsupported_parameter",
        )  # fmt: skip
    return body.tools


def _wish(body: Body, grammar: Grammar | None, limit: int | None, num_logprobs: int | None) -> Wish:
    own = body.speculation
    is_plain = own.max_draft == 0
    return Wish(
        sampling=_sampling(body, grammar),
        num_choices=body.n,
        max_tokens=limit,
        stop=tuple(body.stop),
        method=_PLAIN if is_plain else base_name(own.method) if own.method else None,
        max_draft=None if is_plain else own.max_draft,
        shows_drafts=own.show_drafted,
        num_logprobs=num_logprobs,
        is_streamed=body.stream,
        includes_usage=body.stream and body.stream_options.include_usage,
        shows_progress=body.timings_per_token,
    )


def _sampling(body: Body, grammar: Grammar | None) -> SamplingParams:
    repetition = body.repetition_penalty
    params = SamplingParams(
        temperature=body.temperature,
        top_k=max(0, body.top_k),  # -1: off, as in vLLM
        top_p=body.top_p or 1e-9,  # 0: the likeliest alone
        min_p=body.min_p,
        repetition_penalty=body.repeat_penalty if repetition is None else repetition,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias={int(token): bias for token, bias in body.logit_bias.items()},
        grammar=grammar,
        seed=None if body.seed == -1 else body.seed,  # as in llama.cpp
    )
    return seeded(params)

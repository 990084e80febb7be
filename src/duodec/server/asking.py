"""From the JSON of a request to what is asked of the pool. Unknown fields are ignored."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from duodec.chat import Message
from duodec.core.grammar import Grammar
from duodec.core.sampling import SamplingParams
from duodec.server.choosing import base_name
from duodec.server.errors import bad_field
from duodec.server.fields import Fields
from duodec.server.formats import parse_grammar
from duodec.server.messages import parse_messages, parse_tools

_MAX_CHOICES, _MAX_STOPS, _MAX_DRAFT, _MAX_LOGPROBS = 64, 16, 80, 20
_MAX_BIASES = 1024
_COMPLETION_TOKENS = 16  # of a text completion that says nothing else, as everywhere
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


@dataclass(frozen=True)
class ChatWish:
    wish: Wish
    messages: list[Message]
    tools: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class CompletionWish:
    wish: Wish
    prompts: list[str | list[int]]
    is_echoed: bool = False


def parse_chat(
    body: Mapping[str, Any], check_model: Callable[[str | None], None], template: str | None
) -> ChatWish:
    """Raises ApiError, and BadOption of values that make no law."""
    fields = Fields(body)
    check_model(fields.text("model"))
    limit = fields.whole("max_completion_tokens", None, 1)
    if limit is None:
        limit = fields.whole("max_tokens", None, 1)
    num_logprobs = None
    if fields.truth("logprobs"):
        num_logprobs = fields.whole("top_logprobs", 0, 0, _MAX_LOGPROBS)
    elif fields.value("top_logprobs"):
        raise bad_field("top_logprobs", "top_logprobs needs logprobs: true")
    messages = parse_messages(fields.items("messages"))
    tools = parse_tools(fields, template)
    grammar = parse_grammar(fields, tools)
    return ChatWish(_wish(fields, grammar, limit, num_logprobs), messages, tools)


def parse_completion(
    body: Mapping[str, Any], check_model: Callable[[str | None], None]
) -> CompletionWish:
    """Raises ApiError, and BadOption of values that make no law."""
    fields = Fields(body)
    check_model(fields.text("model"))
    if fields.text("suffix"):
        raise bad_field("suffix", "suffix is not served; leave it out")
    if (fields.whole("best_of", 1, 1) or 1) > (fields.whole("n", 1, 1) or 1):
        raise bad_field("best_of", "best_of is not served; ask for n answers")
    limit = fields.whole("max_tokens", _COMPLETION_TOKENS, 1)
    num_logprobs = fields.whole("logprobs", None, 0, _MAX_LOGPROBS)
    wish = _wish(fields, parse_grammar(fields), limit, num_logprobs)
    return CompletionWish(wish, _prompts(fields), fields.truth("echo"))


def _wish(
    fields: Fields, grammar: Grammar | None, limit: int | None, num_logprobs: int | None
) -> Wish:
    method, max_draft, shows_drafts = _speculation(fields)
    options = fields.object("stream_options")
    is_streamed = fields.truth("stream")
    return Wish(
        sampling=_sampling(fields, grammar),
        num_choices=fields.whole("n", 1, 1, _MAX_CHOICES) or 1,
        max_tokens=limit,
        stop=_stops(fields),
        method=method,
        max_draft=max_draft,
        shows_drafts=shows_drafts,
        num_logprobs=num_logprobs,
        is_streamed=is_streamed,
        includes_usage=is_streamed and options.truth("include_usage"),
        shows_progress=fields.truth("timings_per_token"),
    )


def _sampling(fields: Fields, grammar: Grammar | None) -> SamplingParams:
    top_k = fields.whole("top_k", 0, -1) or 0
    seed = fields.whole("seed", -1, -1, (1 << 64) - 1)
    return SamplingParams(
        temperature=fields.number("temperature", 1.0, 0, 100),
        top_k=max(0, top_k),  # -1: off, as in vLLM
        top_p=fields.number("top_p", 1.0, 0, 1) or 1e-9,  # 0: the likeliest alone
        min_p=fields.number("min_p", 0.0, 0, 1),
        repetition_penalty=fields.number(
            "repetition_penalty", fields.number("repeat_penalty", 1.0, 0.01, 100), 0.01, 100
        ),
        presence_penalty=fields.number("presence_penalty", 0.0, -2, 2),
        frequency_penalty=fields.number("frequency_penalty", 0.0, -2, 2),
        logit_bias=_biases(fields),
        grammar=grammar,
        seed=secrets.randbits(32) if seed in (None, -1) else seed,
    )


def _biases(fields: Fields) -> dict[int, float]:
    if len(fields.mapping("logit_bias")) > _MAX_BIASES:
        raise bad_field(
            "logit_bias",
            f"logit_bias has {len(fields.mapping('logit_bias'))} tokens; use {_MAX_BIASES} or "
            "fewer",
        )
    values = Fields(fields.mapping("logit_bias"), "logit_bias.")
    biases: dict[int, float] = {}
    for name in fields.mapping("logit_bias"):
        if not (name.isdecimal() and len(name) < 10):
            raise bad_field("logit_bias", f"logit_bias names {name!r}; use numbers of tokens")
        biases[int(name)] = values.number(name, 0.0, -100, 100)
    return biases


def _stops(fields: Fields) -> tuple[str, ...]:
    value = fields.value("stop")
    stops: Sequence[Any] = [value] if isinstance(value, str) else fields.items("stop")
    if len(stops) > _MAX_STOPS:
        raise bad_field("stop", f"stop has {len(stops)} texts; use {_MAX_STOPS} or fewer")
    if not all(isinstance(stop, str) and stop for stop in stops):
        raise bad_field("stop", "stop holds something that is no text, or an empty one")
    return tuple(stops)


def _speculation(fields: Fields) -> tuple[str | None, int | None, bool]:
    """The method, the draft tokens of a forward, and whether the text says what was drafted."""
    value = fields.value("speculation")
    if value is None or value is True:
        return None, None, False
    if value is False:
        return _PLAIN, None, False
    own = fields.object("speculation")
    name = own.text("method")
    max_draft = own.whole("max_draft", None, 0, _MAX_DRAFT)
    if max_draft == 0:
        name, max_draft = _PLAIN, None
    return base_name(name) if name else None, max_draft, own.truth("show_drafted")


def _prompts(fields: Fields) -> list[str | list[int]]:
    """One text, or several; each may be given as tokens."""
    value = fields.value("prompt")
    if isinstance(value, str):
        return [value]
    items = fields.items("prompt")
    if not items:
        raise bad_field("prompt", "prompt is missing or empty; send a text")
    if all(_is_token(item) for item in items):
        return [list(items)]
    for item in items:
        is_tokens = isinstance(item, list) and item and all(_is_token(token) for token in item)
        if not (isinstance(item, str) or is_tokens):
            raise bad_field("prompt", "prompt holds something that is no text and no tokens")
    if len(items) > _MAX_CHOICES:
        raise bad_field("prompt", f"prompt has {len(items)} texts; use {_MAX_CHOICES} or fewer")
    return list(items)


def _is_token(item: Any) -> bool:
    return isinstance(item, int) and not isinstance(item, bool)

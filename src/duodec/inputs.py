"""Understand what callers of the library give: prompts, messages, sampling parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from os import PathLike
from typing import Any, TypedDict, cast

import numpy as np

from duodec.chat.contents import Mark, NoText, content_of, names_function
from duodec.chat.pictures import Marked
from duodec.chat.prompting import chat_tokens
from duodec.chat.template import Message
from duodec.core.prompts.pictures import PromptTokens, sight_of
from duodec.core.sampling.grammar import Grammar
from duodec.core.sampling.parameters import made, shown
from duodec.core.sampling.sampler import SamplingParams, seeded
from duodec.core.tokenizers import Tokenizer
from duodec.errors import BadOption, ContextExceeded

Prompt = str | Sequence[Message] | Sequence[int]
"""A text as it is, chat messages, or tokens."""


Params = SamplingParams | Mapping[str, Any]
"""Sampling parameters, or a dictionary of some of them."""

_Path = str | PathLike[str]


class EngineOptions(TypedDict, total=False):
    """List the fields of `EngineConfig`, without the names of the models, as `LLM.load` takes
    them."""

    target_backend: str
    heads: _Path | None
    datastore: _Path | None
    offline: bool
    pace: float | str
    parse_special: bool
    chat_template: _Path | None
    draft_threads: int | None
    draft_device: str
    draft_window: int | None
    draft_head: int | None
    draft_weights: str
    draft_parallel: int | None
    grammar_s: float
    grammar_bytes: int
    exact: bool
    fast: bool
    context: int | None
    threads: int | None
    device: str
    dtype: str
    num_slots: int
    mmproj: _Path | None
    no_mmap: bool
    rows: int | None
    gpu_layers: int
    cpu_moe: bool
    n_cpu_moe: int
    no_repack: bool
    mtp: str
    override_tensor: tuple[str, ...]
    cache_type_k: str
    cache_type_v: str


class SamplingOptions(TypedDict, total=False):
    """List the fields of `SamplingParams`, as `generate`, `chat` and `stream` take them."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    grammar: Grammar | Mapping[str, Any] | None
    seed: int | None
    max_tokens: int | None
    min_tokens: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    logprobs: int | None
    prompt_logprobs: int | None


_BYTES = bytes | bytearray | memoryview  # sequences of numbers that are not tokens

TOO_LONG = "shorten it, or set a larger `context` if the model was trained for one"  # the remedy

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def is_tokens(prompt: object) -> bool:
    """Return whether a prompt is a list of tokens; NumPy's whole numbers are tokens, too."""
    if isinstance(prompt, np.ndarray):
        return prompt.ndim == 1 and prompt.dtype.kind in "iu"
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str | _BYTES)
        and all(isinstance(item, int | np.integer) for item in prompt)
    )


def params_of(params: object, changed: Mapping[str, Any] = {}) -> SamplingParams:
    """Return sampling parameters, also from a dictionary, with some of them ``changed``. Raises
    BadOption."""
    if isinstance(params, SamplingParams):
        return made(SamplingParams, {**vars(params), **changed}) if changed else params
    if params is None or isinstance(params, Mapping):
        return made(SamplingParams, {**(params or {}), **changed})
    raise BadOption(f"params is {params!r}; give SamplingParams, or a dictionary of its fields")


def check_role(number: int, message: Message) -> None:
    """Raise BadOption for a message without a role, or with a misspelled one; the template judges
    other roles."""
    role = message.get("role")
    if not isinstance(role, str):
        raise BadOption(f"message {number} has no role; use {', '.join(ROLES)}")
    near = get_close_matches(role, ROLES, 1) if role not in ROLES else []
    if near:
        raise BadOption(f"the role of message {number} is {role!r}; did you mean {near[0]}?")
    if "content" not in message and "tool_calls" not in message:
        raise BadOption(f"message {number} has no content; give it a text")


def with_text(number: int, message: Message, mark: Mark | None = None) -> Message:
    """Return a message whose content is a text, as templates read it; ``mark`` writes the text for
    pictures. Raises BadOption."""
    has_calls = bool(message.get("tool_calls"))
    try:
        text = content_of(
            message.get("role"), message.get("content"), has_calls=has_calls, mark=mark
        )
        return {**message, "content": text}
    except NoText as error:
        raise BadOption(f"messages[{number}].content {error}") from None


def check_tools(tools: object) -> None:
    """Raise BadOption for tools that a template cannot use."""
    if not isinstance(tools, Sequence) or isinstance(tools, str | _BYTES):
        raise BadOption(f"tools is {shown(tools)}; give a list of {{type, function}}")
    for number, tool in enumerate(tools):
        if not names_function(tool):
            raise BadOption(f"tools[{number}] names no function; send {{type, function}}")


def check_prompt(prompt: object) -> None:
    """Raise BadOption for what is neither a text nor a list."""
    if isinstance(prompt, _BYTES):
        raise BadOption(f"the prompt is {shown(prompt)}, which are bytes; decode them to a text")
    if not isinstance(prompt, Sequence | np.ndarray):
        raise BadOption(
            f"the prompt is {shown(prompt)}; give a text, a list of messages or a list of tokens"
        )


def prompts_of(prompts: Any) -> list[Prompt]:
    """Return one prompt or many, as a list. Raises BadOption for what is neither."""
    if isinstance(prompts, Mapping):
        return [[prompts]]
    check_prompt(prompts)
    if not (isinstance(prompts, str) or len(prompts)):
        return []
    is_one = isinstance(prompts, str) or is_tokens(prompts)
    if is_one or all(isinstance(item, Mapping) for item in prompts):
        return [cast(Prompt, prompts)]
    return list(prompts)


def prompt_tokens(
    tokenizer: Tokenizer,
    prompt: Prompt,
    *,
    parse_special: bool,
    tools: Sequence[Mapping[str, Any]] = (),
    variables: Mapping[str, Any] = {},
    check: Callable[[str], object] = lambda text: None,
) -> list[int]:
    """Return the tokens of a prompt; messages go through the chat template: see `chat_tokens`.
    Raises BadOption."""
    check_prompt(prompt)
    if isinstance(prompt, str):
        return tokenizer.tokenize(prompt, is_templated=parse_special)
    if isinstance(prompt, PromptTokens):
        return prompt
    if is_tokens(prompt):
        tokens: list[int] = np.asarray(prompt).tolist()
        bad = [token for token in tokens if not 0 <= token < tokenizer.num_vocab]
        if bad:
            raise BadOption(f"token {bad[0]} is outside the model's vocabulary")
        return tokens
    messages = [item for item in prompt if isinstance(item, Mapping)]
    if len(messages) < len(prompt):
        other = next(item for item in prompt if not isinstance(item, Mapping))
        raise BadOption(
            f"a prompt holds {other!r} among its items; give a text, a list of messages or a "
            "list of tokens"
        )
    for number, message in enumerate(messages):
        check_role(number, message)
    marked = Marked()
    mark = None if sight_of(tokenizer) is None else marked.mark
    said = [with_text(number, message, mark) for number, message in enumerate(messages)]
    return chat_tokens(
        tokenizer, said, tools=tools, variables=variables,
        parse_special=parse_special, check=check, marked=marked,
    )  # fmt: skip


def params_of_each(
    params: object, num_prompts: int, num_choices: int, changed: Mapping[str, Any]
) -> list[SamplingParams]:
    """Return the sampling parameters of every prompt, with some of them ``changed``. Raises
    BadOption."""
    if num_choices < 1:
        raise BadOption(f"n is {num_choices}; use 1 or more")
    each = [*params] if isinstance(params, list | tuple) else [params] * num_prompts
    if len(each) != num_prompts:
        raise BadOption(
            f"{num_prompts} prompts and {len(each)} params; give one for all, or one for each"
        )
    found = [params_of(own, changed) for own in each]
    return [seeded(own) for own in found] if num_choices > 1 else found  # choices share a seed


def check_length(tokens: Sequence[int], num_context: int) -> None:
    """Raise BadOption for an empty prompt, and ContextExceeded for one that leaves no room."""
    if not tokens:
        raise BadOption("the prompt is empty; write something to complete")
    if len(tokens) >= num_context:
        raise ContextExceeded(
            f"the prompt has {len(tokens)} tokens and the context holds {num_context}; {TOO_LONG}"
        )


def check_bias(params: SamplingParams, num_vocab: int) -> None:
    """Raise BadOption for a bias on a token outside the vocabulary."""
    if any(token >= num_vocab for token in params.logit_bias):
        raise BadOption(
            f"logit_bias names token {max(params.logit_bias)}, and the vocabulary has "
            f"{num_vocab}; use tokens of the model"
        )

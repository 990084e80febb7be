"""Understand what callers of the library give: prompts, messages, sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

import numpy as np

from duodec.chat.template import Message
from duodec.core.parameters import made
from duodec.core.sampling import SamplingParams
from duodec.errors import BadOption

Prompt = str | Sequence[Message] | Sequence[int]
"""A text as it is, chat messages, or tokens."""


Params = SamplingParams | Mapping[str, Any]
"""Sampling parameters, or a dictionary of some of them."""

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def is_tokens(prompt: object) -> bool:
    """Whether a prompt is a list of tokens; NumPy's whole numbers are tokens, too."""
    if isinstance(prompt, np.ndarray):
        return prompt.dtype.kind in "iu"
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, str)
        and all(isinstance(item, int | np.integer) for item in prompt)
    )


def params_of(params: object, changed: Mapping[str, Any] = {}) -> SamplingParams:
    """Sampling parameters, of a dictionary too, with some of them ``changed``. Raises BadOption."""
    if isinstance(params, SamplingParams):
        return made(SamplingParams, {**vars(params), **changed}) if changed else params
    if params is None or isinstance(params, Mapping):
        return made(SamplingParams, {**(params or {}), **changed})
    raise BadOption(f"params is {params!r}; give SamplingParams, or a dictionary of its fields")


def check_role(number: int, message: Message) -> None:
    """Raises BadOption for a message without a role, or with a misspelled one; others are the
    template's to judge."""
    role = message.get("role")
    if not isinstance(role, str):
        raise BadOption(f"message {number} has no role; use {', '.join(ROLES)}")
    near = get_close_matches(role, ROLES, 1) if role not in ROLES else []
    if near:
        raise BadOption(f"the role of message {number} is {role!r}; did you mean {near[0]}?")
    if "content" not in message and "tool_calls" not in message:
        raise BadOption(f"message {number} has no content; give it a text")


def prompts_of(prompts: Any) -> list[Prompt]:
    """One prompt or many, as a list. Raises BadOption for what is neither."""
    if isinstance(prompts, Mapping):
        return [[prompts]]
    if not isinstance(prompts, Sequence | np.ndarray):
        raise BadOption(
            f"the prompt is {prompts!r}; give a text, a list of messages or a list of tokens"
        )
    if not (isinstance(prompts, str) or len(prompts)):
        return []
    is_one = isinstance(prompts, str) or is_tokens(prompts)
    if is_one or all(isinstance(item, Mapping) for item in prompts):
        return [cast(Prompt, prompts)]
    return list(prompts)

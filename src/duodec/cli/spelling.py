"""Understand other programs' spellings of options, and name an option in errors as it was typed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import cast

import typer

# typer exports this one class of its parser's errors; the one above it is their base
UsageError: type[Exception] = cast(type[Exception], typer.BadParameter.__mro__[1])

# How llama.cpp, vLLM and transformers spell options that have another name here.
_OTHER_SPELLINGS = {
    "model": "target",
    "model-draft": "draft",
    "spec-draft-model": "draft",
    "draft-model": "draft",
    "ctx-size": "context",
    "n-ctx": "context",
    "max-model-len": "context",
    "max-new-tokens": "max-tokens",
    "n-predict": "max-tokens",
    "predict": "max-tokens",
    "num-predict": "max-tokens",
    "temp": "temperature",
    "repeat-penalty": "repetition-penalty",
    "system-prompt": "system",
    "threads-draft": "draft-threads",
    "spec-draft-threads": "draft-threads",
    "n-gpu-layers": "gpu-layers",
    "torch-dtype": "dtype",
}


def canonical(name: str) -> str:
    """Our spelling of an option's name (without its dashes)."""
    name = name.replace("_", "-")
    return _OTHER_SPELLINGS.get(name, name)


def _typed(arguments: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Each option of a command line: as typed, our spelling, and what follows it."""
    for argument, after in zip(arguments, [*arguments[1:], ""], strict=True):
        if argument == "--":
            return
        word, has_value, value = argument.partition("=")
        dashes = re.match(r"--?(?=[A-Za-z])", word)
        if dashes:
            ours = dashes[0] + canonical(word[dashes.end() :])
            yield word, ours, value if has_value else after


def typed(flags: Sequence[str], arguments: Sequence[str]) -> tuple[str, str] | None:
    """How one of these flags was typed, the last time, and its value; None if it was not."""
    found = [(word, value) for word, ours, value in _typed(arguments) if ours in flags]
    return found[-1] if found else None


def as_typed(message: str, arguments: Sequence[str]) -> str:
    """A message in which flags of ours are spelled as they were typed."""
    for word, ours, _ in _typed(arguments):
        if word != ours:
            message = re.sub(rf"(?<![\w-]){re.escape(ours)}(?![\w-])", word, message, count=1)
    return message

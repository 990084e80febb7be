"""Understand other programs' spellings of options, and name an option in errors as it was typed.

An option of llama.cpp or vLLM that has another name here is read as ours; one that has none is
refused with what there is in its place. None is taken for a row of one-letter options: `-hf` is no
`-h`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from typing import Any, cast

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


# Options whose value is a name for ours: llama.cpp names repositories of the hub without a prefix.
_WITH_VALUE = {
    **dict.fromkeys(("-hf", "-hfr", "--hf-repo"), ("--target", "hf:")),
    **dict.fromkeys(
        ("-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf", "--spec-draft-hf-repo"),
        ("--draft", "hf:"),
    ),
    **dict.fromkeys(("-mu", "--model-url"), ("--target", "")),
    "--speculative-model": ("--draft", ""),
    "-sys": ("--system", ""),
    **dict.fromkeys(("-cd", "--ctx-size-draft", "--spec-draft-ctx-size"), ("--draft-window", "")),
    "-dev": ("--device", ""),
    "--max-num-seqs": ("--parallel", ""),
}
_NEEDLESS = {  # what they switch on is so here; each with the command that knows them
    "serve": ("--metrics", "-cb", "--cont-batching", "--enable-prefix-caching", "--jinja"),
    "generate": ("--jinja",),
    "chat": ("--jinja", "-cnv", "--conversation"),
    "run": ("--jinja", "-cnv", "--conversation"),
}
_SAMPLING = {
    "temperature": "it is 0, greedy",
    "top-p": "it is off",
    "top-k": "it is off",
    "min-p": "it is off",
    "seed": "it is random",
    "max-tokens": "the context bounds it",
}
_LENGTH = "how much is drafted follows from what pays; --method sps:4 drafts chains of 4"
_BATCH = "batches are as large as the model and its requests need; leave it out"
_ON_CPU = "a draft computes on the CPU, in parallel with the target; leave it out"
_SEVERAL_GPUS = "the GPUs are named by --device, such as --device cuda:0,cuda:1"
_REFUSED = {
    **dict.fromkeys(
        (
            "--draft-max", "--draft-n", "--draft-min", "--draft-n-min", "--draft-p-min",
            "--spec-draft-n-max", "--spec-draft-n-min", "--spec-draft-p-min",
            "--num-speculative-tokens", "--spec-type",
        ),
        _LENGTH,
    ),
    **dict.fromkeys(
        ("-b", "--batch-size", "-ub", "--ubatch-size", "--max-num-batched-tokens"), _BATCH
    ),
    **dict.fromkeys(
        (
            "-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl", "-devd",
            "--device-draft", "--spec-draft-device",
        ),
        _ON_CPU,
    ),
    **dict.fromkeys(
        ("-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu", "-tp",
         "--tensor-parallel-size"),
        _SEVERAL_GPUS,
    ),
    **dict.fromkeys(
        ("-fa", "--flash-attn"),
        "attention is exact at every width; --fast leaves it to llama.cpp",
    ),
    **dict.fromkeys(
        ("-hff", "--hf-file"), "name the file with its repository: -m hf:owner/repo/file.gguf"
    ),
    **dict.fromkeys(("-hft", "--hf-token"), "set HF_TOKEN in the environment"),
    **dict.fromkeys(("-tb", "--threads-batch"), "--threads is for prompts, too"),
    "--gpu-memory-utilization": "memory is taken for the context only; --context bounds it",
    "--speculative-config": "name the draft with --draft; the rest follows from what pays",
    **dict.fromkeys(
        ("-i", "--interactive", "-st", "--single-turn"),
        "`duodec chat` talks, `duodec generate` completes one prompt",
    ),
}  # fmt: skip


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


def read(arguments: Sequence[str], command: Any, context: Any) -> list[str]:
    """A command's arguments in our spelling. Raises UsageError for other programs' options that
    have no counterpart here, and for what would be read as options of one letter in a row."""
    own = {_ours(flag): p for p in command.get_params(context) for flag in p.opts}
    found: list[str] = []
    left = list(arguments)
    while left:
        word = left.pop(0)
        if word == "--":
            return [*found, word, *left]
        name, has_value, value = word.partition("=")
        name = name.replace("_", "-")
        if _ours(name) in own:
            found.append(word)
            if left and not has_value and not getattr(own[_ours(name)], "is_flag", False):
                found.append(left.pop(0))
        elif name in _NEEDLESS.get(str(command.name), ()):
            continue
        elif name in _WITH_VALUE and _WITH_VALUE[name][0] in own:
            ours, prefix = _WITH_VALUE[name]
            if not has_value and not left:
                raise cast(Any, UsageError)(f"Option '{name}' requires an argument", ctx=context)
            value = value if has_value else left.pop(0)
            found += [ours, value if value.startswith(("hf:", "http")) else prefix + value]
        elif why := _why_not(name, str(command.name), own):
            raise cast(Any, UsageError)(why, ctx=context)
        else:
            found.append(word)
    return found


def _ours(flag: str) -> str:
    """Our spelling of an option, with its dashes."""
    bare = flag.lstrip("-")
    return flag[: len(flag) - len(bare)] + canonical(bare)


def _why_not(name: str, command: str, own: Container[str]) -> str | None:
    """Why this is no option of a command; None if it is none at all, or the parser tells."""
    if name in _REFUSED:
        return f"{name}: {_REFUSED[name]}"
    if command == "serve" and _ours(name)[2:] in _SAMPLING:
        return f"{name}: each request names its own; without one, {_SAMPLING[_ours(name)[2:]]}"
    if re.match(r"-[A-Za-z]{2}", name):
        return f"No such option: {name}"
    return None

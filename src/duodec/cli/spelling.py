"""Understand other programs' spellings of options, and name an option in errors as it was typed.

An option of llama.cpp or vLLM that has another name here is read as ours. An option without a
counterpart is refused, with what there is in its place. None is read as a row of one-letter
options: `-hf` is not `-h`.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from functools import cache
from typing import Any, cast

import typer

from duodec.core.sampling.parameters import fields_of
from duodec.loading.config import EngineConfig

# typer exports only this class of its parser's errors; the class above it is their base.
UsageError: type[Exception] = cast(type[Exception], typer.BadParameter.__mro__[1])


def _each(table: dict[str, str]) -> dict[str, str]:
    """Return the table with an entry for each word of its values."""
    return {word: key for key, words in table.items() for word in words.split()}


# These are our options, and the spellings of llama.cpp, vLLM, Ollama and transformers.
_OTHER_SPELLINGS = _each({
    "target": "model",
    "draft": "model-draft spec-draft-model draft-model speculative-model",
    "context": "ctx-size n-ctx num-ctx max-model-len",
    "max-tokens": "max-new-tokens n-predict predict num-predict",
    "temperature": "temp",
    "repetition-penalty": "repeat-penalty",
    "system": "system-prompt",
    "draft-threads": "threads-draft spec-draft-threads",
    "draft-window": "ctx-size-draft spec-draft-ctx-size",
    "gpu-layers": "n-gpu-layers",
    "parallel": "max-num-seqs",
    "dtype": "torch-dtype",
})  # fmt: skip
_SHORT = {"-sys": "--system", "-cd": "--draft-window", "-dev": "--device"}
_ADDRESSES = _each({"--target": "-mu --model-url"})
_REPOSITORIES = _each({  # repositories of the hub, which llama.cpp names without a prefix
    "--target": "-hf -hfr --hf-repo",
    "--draft": "-hfd -hfrd --hf-repo-draft --spec-draft-hf --spec-draft-hf-repo",
})  # fmt: skip
_NEEDLESS = {  # what these switch on is always on here; by the command that knows them
    "serve": "--metrics -cb --cont-batching --enable-prefix-caching --jinja",
    "generate": "--jinja",
    "chat": "--jinja -cnv --conversation",
    "run": "--jinja -cnv --conversation",
}
_SAMPLING = {
    "seed": "it is random", "max-tokens": "the context bounds it",
}  # fmt: skip
_REFUSED = _each({
    "how much is drafted follows from what pays; --method sps:4 drafts chains of 4":
        "--draft-max --draft-n --draft-min --draft-n-min --draft-p-min --spec-draft-n-max "
        "--spec-draft-n-min --spec-draft-p-min --num-speculative-tokens --spec-type",
    "batches are as large as the model and its requests need; leave it out":
        "-b --batch-size -ub --ubatch-size --max-num-batched-tokens",
    "a draft computes on the CPU, in parallel with the target; leave it out":
        "-ngld --gpu-layers-draft --n-gpu-layers-draft --spec-draft-ngl -devd --device-draft "
        "--spec-draft-device",
    "the GPUs are named by --device, such as --device cuda:0,cuda:1":
        "-sm --split-mode -ts --tensor-split -mg --main-gpu -tp --tensor-parallel-size",
    "attention is chosen here, for it must be exact at every width": "-fa --flash-attn",
    "name the file with its repository: -m hf:owner/repo/file.gguf": "-hff --hf-file",
    "set HF_TOKEN in the environment": "-hft --hf-token",
    "--threads is for prompts, too": "-tb --threads-batch",
    "memory is taken for the context only; --context bounds it": "--gpu-memory-utilization",
    "name the draft with --draft; the rest follows from what pays": "--speculative-config",
    "`duodec chat` talks, `duodec generate` completes one prompt":
        "-i --interactive -st --single-turn",
})  # fmt: skip


def canonical(name: str) -> str:
    """Return our spelling of an option's name (without its dashes)."""
    name = name.replace("_", "-")
    return _OTHER_SPELLINGS.get(name, name)


def _typed(arguments: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield each option of a command line: as typed, our spelling, and what follows it."""
    for argument, after in zip(arguments, [*arguments[1:], ""], strict=True):
        if argument == "--":
            return
        word, has_value, value = argument.partition("=")
        dashes = re.match(r"--?(?=[A-Za-z])", word)
        if dashes:
            ours = dashes[0] + canonical(word[dashes.end() :])
            yield word, ours, value if has_value else after


def typed(flags: Sequence[str], arguments: Sequence[str]) -> tuple[str, str] | None:
    """Return how one of these flags was last typed, and its value; None if it was not typed."""
    found = [(word, value) for word, ours, value in _typed(arguments) if ours in flags]
    return found[-1] if found else None


def as_typed(message: str, arguments: Sequence[str]) -> str:
    """Return a message in which our flags are spelled as they were typed."""
    for word, ours, _ in _typed(arguments):
        if word != ours:
            message = re.sub(rf"(?<![\w-]){re.escape(ours)}(?![\w-])", word, message, count=1)
    return message


_PARAMETER = re.compile(r"`(\w+)(?:=([^`]*))?`|^(\w+)(?= )")


def as_options(message: str) -> str:
    """Return a message of the library, in which options replace parameters: `context=8` is
    --context 8."""

    def spelled(found: re.Match[str]) -> str:
        flag = _flags().get(found[1] or found[3])
        if flag is None:
            return found[0]
        value = found[2] if found[2] not in (None, "True") else ""
        return f"{flag} {value}".rstrip() if found[1] else flag.lstrip("-")

    return _PARAMETER.sub(spelled, message.replace("in place of `messages`", "with --raw"))


@cache
def _flags() -> dict[str, str]:
    """Return the options of the library's parameters."""
    flags = {name: field.flags[0] for name, field in fields_of(EngineConfig).items()}
    return {**flags, "method": "--method", "num_slots": "--parallel"}


def read(arguments: Sequence[str], command: Any, context: Any) -> list[str]:
    """Return a command's arguments in our spelling. Raises UsageError for other programs' options
    that have no counterpart here, and for what would be read as a row of one-letter options."""
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
        elif name in _NEEDLESS.get(str(command.name), "").split():
            continue
        elif (ours := _SHORT.get(name) or _ADDRESSES.get(name) or _REPOSITORIES.get(name)) in own:
            if not has_value and not left:
                raise cast(Any, UsageError)(f"Option '{name}' requires an argument", ctx=context)
            value = value if has_value else left.pop(0)
            is_bare = name in _REPOSITORIES and not value.startswith(("hf:", "http"))
            found += [str(ours), f"hf:{value}" if is_bare else value]
        elif why := _why_not(name, str(command.name), own):
            raise cast(Any, UsageError)(why, ctx=context)
        else:
            found.append(word)
    return found


def _ours(flag: str) -> str:
    """Return our spelling of an option, with its dashes."""
    bare = flag.lstrip("-")
    return flag[: len(flag) - len(bare)] + canonical(bare)


def _why_not(name: str, command: str, own: Container[str]) -> str | None:
    """Return why this is not an option of a command; None if it is not one at all, or the parser
    reports it."""
    if name in _REFUSED:
        return f"{name}: {_REFUSED[name]}"
    is_target = name == "-m" or "--target" in (_ours(name), _REPOSITORIES.get(name))
    if is_target and "target" in own:  # an argument
        return f"{name}: the model comes first, without an option: duodec {command} MODEL"
    if command == "serve" and _ours(name)[2:] in _SAMPLING:
        return f"{name}: each request names its own; without one, {_SAMPLING[_ours(name)[2:]]}"
    if re.match(r"-[A-Za-z]{2}", name):
        return f"No such option: {name}"
    return None

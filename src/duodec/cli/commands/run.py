"""Run `duodec run MODEL`: a chat, or the completion of one prompt."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from duodec.cli import options
from duodec.cli.commands import chat, generate
from duodec.cli.output import warn

EPILOG = """
Examples:
duodec run smollm2
duodec run smollm2 "Why is the sky blue?"
duodec run qwen2.5-coder:1.5b  # if Ollama has it
duodec run ./Qwen2.5-7B-Instruct-Q4_K_M.gguf -md hf:Qwen/Qwen2.5-0.5B-Instruct-GGUF
duodec run qwen2.5-coder-1.5b -f sort.py -p "Explain this."
duodec run smollm2 "Name three colours." --json
cat question.txt | duodec run smollm2

With a prompt it is `duodec generate --target MODEL`, without one `duodec chat --target MODEL`.
"""


def _options(command: Callable[..., None]) -> dict[str, inspect.Parameter]:
    """Return the options of another command; here the model is an argument."""
    found = dict(inspect.signature(command).parameters)
    del found["target"]
    return found


def _run(
    *,
    model: Annotated[str, typer.Argument(
        help="A name of Ollama's, an alias (see `duodec list`), hf:owner/repo[:quant], a GGUF "
        "file, or a folder of safetensors.",
        show_default=False
    )],
    prompt: Annotated[
        str | None, typer.Argument(help="What to complete; without it, a chat.", show_default=False)
    ] = None,
    prompt_option: options.Prompt = None,
    file: options.PromptFile = None,
    **shared: Any,
) -> None:  # fmt: skip
    """Chat with a model, or complete one prompt."""
    given = (prompt, prompt_option, file)
    if given == (None, None, None) and sys.stdin is not None and sys.stdin.isatty():
        for name in _OF_PROMPTS:
            if shared.pop(name) != _OF_PROMPTS[name].default:
                warn(f"--{name.replace('_', '-')} has no effect in a chat; it is for a prompt")
        chat.chat(target=model, **shared)
        return
    own = inspect.signature(generate.generate).parameters
    values: dict[str, Any] = {name: parameter.default for name, parameter in own.items()}
    values |= {"prompt": prompt, "prompt_option": prompt_option, "file": file, "target": model}
    generate.generate(**{**values, **{name: shared[name] for name in shared if name in own}})


def run(**values: Any) -> None:
    """Chat with a model, or complete one prompt."""
    _run(**values)


_OWN = {
    name: parameter
    for name, parameter in inspect.signature(_run, eval_str=True).parameters.items()
    if parameter.kind is not inspect.Parameter.VAR_KEYWORD
}
_OF_CHATS = _options(chat.chat)
_OF_PROMPTS = {  # only a single completion has these
    name: parameter
    for name, parameter in _options(generate.generate).items()
    if name not in {**_OWN, **_OF_CHATS}
}
_ALL = {**_OWN, **_OF_CHATS, **_OF_PROMPTS}
run.__annotations__ = {name: parameter.annotation for name, parameter in _ALL.items()}
run.__signature__ = inspect.Signature(list(_ALL.values()))  # type: ignore[attr-defined]

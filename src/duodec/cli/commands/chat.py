"""Run `duodec chat`: a conversation in the terminal, or over a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from typing import Annotated

from duodec.cli import opening, options
from duodec.cli.chat import slash
from duodec.cli.chat.conversation import Conversation, as_messages, as_text
from duodec.cli.chat.models import ChatModels
from duodec.cli.markdown import writer_for
from duodec.cli.output import say_dim, warn
from duodec.core.sampling.sampler import SamplingParams, seeded
from duodec.errors import BadOption, ContextExceeded
from duodec.loading.config import EngineConfig

EPILOG = """
Inside:
/? lists the commands, Tab completes them; Ctrl-C stops a response; Ctrl-D or /bye leaves.

Examples:
duodec chat --system "Answer in one sentence."
duodec chat -m qwen2.5-coder-1.5b --temperature 0.7
"""

_QUOTES = '"""'
_PROMPT, _MORE = ">>> ", "... "

ReadLine = Callable[[str], str]
"""A function that reads a line typed after a prompt. Raises EOFError at the end, KeyboardInterrupt
on Ctrl-C."""


@options.derived
def chat(
    *,
    method: options.MethodName = "auto",
    max_tokens: Annotated[int | None, options.option(
        "--max-tokens -n", "Most tokens of a response; by default as many as the context holds.",
        "Decoding"
    )] = None,
    raw: Annotated[bool, options.option(
        "--raw", "Continue the text as it is, without the model's chat template: for base models.",
        "Decoding"
    )] = False,
    system: options.System = None,
    show_draft: options.ShowDraft = False,
    plain: options.Plain = False,
    quiet: options.Quiet = False,
    config: Annotated[EngineConfig, options.Options(
        without=options.GRAMMAR_LIMITS, defaults={"datastore": "auto"}
    )],
    sampling: Annotated[SamplingParams, options.Options()],
) -> None:  # fmt: skip
    """Talk with a model in the terminal.

    The history is kept; Ctrl-C stops a response and not the chat.
    """
    opening.check_length(max_tokens, ())
    config = opening.with_datastore(config, method)
    chosen = opening.method_or_none(method)
    if raw and system is not None:
        raise BadOption("--system needs the chat template that --raw leaves out; choose one")
    writer = writer_for(show_draft=show_draft, is_plain=plain or raw)
    with closing(writer), ChatModels(config, chosen, writer.warn, quiet, raw) as models:
        models.open(config.target)
        conversation = Conversation(
            models=models,
            writer=writer,
            sampling=seeded(sampling),
            method=chosen,
            max_tokens=max_tokens,
            system=system,
            is_quiet=quiet,
            prompt_of=as_text if raw else as_messages,
        )
        if sys.stdin is not None and sys.stdin.isatty():
            if not quiet:
                names = models.name + (f" with {models.draft}" if models.draft else "")
                say_dim(f"{names}, seed {conversation.sampling.seed}; /? for help, Ctrl-D leaves")
            _talk(conversation, terminal_reader())
        else:
            _talk(conversation, _pipe_reader)


def _talk(conversation: Conversation, read: ReadLine) -> None:
    """Handle one message after another until the user leaves; an error in one is reported, and the
    chat continues."""
    while True:
        try:
            text = _message(read)
            if text.startswith("/"):
                slash.run(text, conversation)
            elif text.strip():
                conversation.send(text)
        except (EOFError, slash.Leave):
            return
        except ContextExceeded as error:
            warn(f"{error}; /clear forgets the conversation")
        except BadOption as error:
            warn(str(error))


def _message(read: ReadLine) -> str:
    '''One message: a line, or the lines between """ and """. Raises EOFError.'''
    line = read(_PROMPT)
    if not line.lstrip().startswith(_QUOTES):
        return line.strip()
    lines = [line.lstrip()[len(_QUOTES) :]]
    while not lines[-1].rstrip().endswith(_QUOTES):
        try:
            lines.append(read(_MORE))
        except EOFError:  # the end of input closes an open message
            lines.append(_QUOTES)
    lines[-1] = lines[-1].rstrip()[: -len(_QUOTES)]
    return "\n".join(lines).strip("\n")


def _pipe_reader(prompt: str) -> str:
    """Return a line of standard input; bytes that are not UTF-8 are replaced."""
    line = sys.stdin.buffer.readline() if sys.stdin is not None else b""
    if not line:
        raise EOFError
    return line.decode("utf-8", "replace").rstrip("\r\n")


def terminal_reader() -> ReadLine:
    """Return a line editor with the history of this chat; it writes to stderr."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import InMemoryHistory
    from prompt_toolkit.output import create_output

    from duodec.cli.chat.slash_completer import SlashCompleter

    session: PromptSession[str] = PromptSession(
        history=InMemoryHistory(),
        completer=SlashCompleter(),
        complete_while_typing=False,
        output=create_output(stdout=sys.stderr),
    )

    def read(prompt: str) -> str:
        while True:
            try:
                return session.prompt(prompt)
            except KeyboardInterrupt:
                if not session.default_buffer.text:
                    say_dim("Ctrl-D or /bye leaves")
                prompt = _PROMPT

    return read

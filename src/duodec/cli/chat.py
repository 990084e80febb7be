"""Run `duodec chat`: a conversation in the terminal, or over a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import typer

from duodec.cli import choices, options, slash
from duodec.cli.conversation import Conversation
from duodec.cli.opening import open_engine
from duodec.cli.output import AnswerWriter, say_dim, warn
from duodec.core.sampling import SamplingParams
from duodec.errors import BadOption, ContextExceeded
from duodec.models.config import EngineConfig

EPILOG = f"""
[bold]Inside[/bold]

/? lists the commands; Ctrl-C stops a response; Ctrl-D or /bye leaves.

[bold]Examples[/bold]

duodec chat --system "Answer in one sentence."

duodec chat -m qwen2.5-coder-1.5b --temperature 0.7

{options.methods_help()}
"""

_QUOTES = '"""'
_PROMPT, _MORE = ">>> ", "... "

ReadLine = Callable[[str], str]
"""Reads a line typed after a prompt. Raises EOFError at the end, KeyboardInterrupt on Ctrl-C."""


@options.derived
def chat(
    *,
    method: options.MethodName = "auto",
    max_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-tokens",
            "-n",
            help="Most tokens of a response; by default as many as the context holds.",
            rich_help_panel="Decoding",
            show_default=False,
        ),
    ] = None,
    system: options.System = None,
    show_draft: options.ShowDraft = False,
    quiet: options.Quiet = False,
    config: Annotated[
        EngineConfig,
        options.Options(without=options.GRAMMAR_LIMITS, defaults={"datastore": "auto"}),
    ],
    sampling: Annotated[SamplingParams, options.Options(defaults={"seed": choices.random_seed})],
) -> None:
    """Talk with a model: the history is kept, Ctrl-C stops a response and not the chat."""
    from duodec.loading import draft_for

    choices.check_length(max_tokens, ())
    config = choices.with_datastore(config, method)
    chosen = choices.method_or_none(method, config.draft)
    # loaded even if it may not pay: `/draft on` uses it, and until then it sleeps
    draft_name = draft_for(config) if chosen is None else choices.draft_reference(config, chosen)
    writer = AnswerWriter(show_draft=show_draft)
    with open_engine(
        replace(config, draft=config.draft if draft_name else None),
        on_warning=writer.warn,
        is_quiet=quiet,
    ) as engine:
        conversation = Conversation(
            engine=engine,
            writer=writer,
            target=config.target,
            draft=draft_name,
            sampling=sampling,
            method=chosen,
            max_tokens=max_tokens,
            system=system,
            is_quiet=quiet,
        )
        if sys.stdin.isatty():
            if not quiet:
                models = config.target + (f" with {draft_name}" if draft_name else "")
                say_dim(f"{models}, seed {sampling.seed}; /? for help, Ctrl-D leaves")
            _talk(conversation, _terminal_reader())
        else:
            _talk(conversation, _pipe_reader)


def _talk(conversation: Conversation, read: ReadLine) -> None:
    """Message after message until the user leaves; an error in one is reported, and the chat
    continues."""
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
    """A line of standard input; bytes that are not UTF-8 are replaced."""
    line = sys.stdin.buffer.readline()
    if not line:
        raise EOFError
    return line.decode("utf-8", "replace").rstrip("\r\n")


def _terminal_reader() -> ReadLine:
    """A line editor with the history of this chat; it writes to stderr."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import InMemoryHistory
    from prompt_toolkit.output import create_output

    session: PromptSession[str] = PromptSession(
        history=InMemoryHistory(), output=create_output(stdout=sys.stderr)
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

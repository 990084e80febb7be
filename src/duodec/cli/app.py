"""Run the command line's commands and report their errors.

An error that a user can cause is one line on stderr and the exit status of its class; a traceback
is a bug of ours.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from duodec.__main__ import INTERRUPTED, ended_quietly, is_server, leave
from duodec.backends.interrupts import listen
from duodec.cli import (
    bench,
    chat,
    datastore,
    demo,
    distill,
    doctor,
    generate,
    models,
    plan,
    profile,
    ps,
    report,
    serve,
    setup,
    vllm,
)
from duodec.cli import run as run_verb
from duodec.cli.common import register
from duodec.cli.deadline import Deadline
from duodec.cli.help import Group
from duodec.cli.options import CONTEXT_SETTINGS
from duodec.cli.output import OutputClosed, say_dim, warn
from duodec.cli.spelling import UsageError, as_typed, typed
from duodec.errors import BadOption, DuodecError
from duodec.machine.files import is_full

_CLOSED = 141  # as a shell reports SIGPIPE


class _Commands(Group):
    """The commands; a Ctrl-C that none of them handled ends with one line."""

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            say_dim("interrupted")
            raise typer.Exit(INTERRUPTED) from None


EPILOG = """
duodec demo

duodec run smollm2 "Why is the sky blue?"

duodec serve

duodec doctor -m MODEL.gguf
"""

app = typer.Typer(
    name="duodec",
    cls=_Commands,
    context_settings=CONTEXT_SETTINGS,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=True,
    epilog='[bold]Start here[/bold]\n\nduodec demo\n\nduodec run smollm2 "Why is the sky blue?"\n\n'
    "duodec serve\n\nduodec doctor -m MODEL.gguf",
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"duodec {version('duodec')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", help="Show the version.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """A large language model decodes faster with drafts that the CPU makes in parallel, and its
    text stays exactly its own."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


_COMMANDS = (
    ("run", run_verb.run),
    ("demo", demo.demo),
    ("generate", generate.generate),
    ("chat", chat.chat),
    ("serve", serve.serve),
    ("ps", ps.ps),
    ("list", models.list_models),
    ("pull", models.pull),
    ("doctor", doctor.doctor),
    ("bench", bench.bench),
    ("report", report.report),
    ("profile", profile.profile),
    ("plan", plan.plan),
    ("distill", distill.distill),
    ("setup", setup.setup),
    ("vllm", vllm.vllm),
)
register(app, _COMMANDS)
for _group in (models, datastore):
    app.add_typer(_group.app, name=_group.__name__.rpartition(".")[2])


def main() -> None:
    """Run the command that the arguments name, and end the process."""
    status = run(sys.argv[1:])
    if status == INTERRUPTED:  # a library may still work in a thread: do not wait for it
        leave()
    sys.exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status."""
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # text that the terminal cannot show is not an error
            stream.reconfigure(errors="replace")
    listen()
    with Deadline() as deadline, ended_quietly() if is_server(arguments) else nullcontext():
        try:
            status = app(args=list(arguments), prog_name="duodec", standalone_mode=False)
            sys.stdout.flush()
        except (typer.Abort, KeyboardInterrupt):
            return INTERRUPTED
        except Exception as error:  # noqa: BLE001  raised again where it is none of ours
            if deadline.is_interrupted:  # of which something made another exception
                say_dim("interrupted")
                return INTERRUPTED
            return _told(error, arguments)
    return status if isinstance(status, int) else 0


def _told(error: Exception, arguments: Sequence[str]) -> int:
    """The exit status of an error that users can cause, once they are told; raises any other."""
    if isinstance(error, DuodecError):
        warn(_words(error, arguments))
        return error.exit_status
    if isinstance(error, UsageError):
        warn(_usage_words(error, arguments))
        return 2
    if isinstance(error, OutputClosed | BrokenPipeError):
        _forget_stdout()
        return _CLOSED
    if isinstance(error, OSError) and is_full(error):
        _forget_stdout()
        is_disk = error.errno == errno.ENOSPC
        remedy = "free space on its disk" if is_disk else "raise your quota, or `ulimit -f`"
        warn(f"cannot write the output: {error.strerror}; {remedy}")
        return 1
    raise error


def _open_missing_streams() -> None:
    """Open stdout and stderr on the null device if the shell closed them (`>&-`), so that no file
    opened later takes their place."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  open for good


def _words(error: DuodecError, arguments: Sequence[str]) -> str:
    """A message that names the option as it was typed, if one is at fault."""
    words = str(error)
    if isinstance(error, BadOption) and (found := typed(error.flags, arguments)):
        return f"{found[0]} {words.removeprefix(error.option).lstrip()}"
    return words


def _usage_words(error: Exception, arguments: Sequence[str]) -> str:
    """The parser's message, with options as they were typed and the value."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else _command_of(arguments)
    words = str(getattr(error, "format_message", error.__str__)()).rstrip(".")
    found = typed(getattr(getattr(error, "param", None), "opts", ()), arguments)
    if found and (hint := re.match(r"Invalid value for [^:]*: (.*)", words, re.DOTALL)):
        words = f"{found[0]} is {found[1]!r}: {hint[1]}"
    return f"{as_typed(words, arguments)}; see {command} --help"


def _command_of(arguments: Sequence[str]) -> str:
    names = [name for name, _ in _COMMANDS]
    return " ".join(["duodec", *(word for word in arguments[:1] if word in names)])


def _forget_stdout() -> None:
    """Discard what would be flushed at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)

"""Run the command line's commands and report their errors.

An error that a user can cause is one line on stderr and the exit status of its class; a traceback
is a bug of ours.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

from duodec.__main__ import INTERRUPTED, leave
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
    report,
    serve,
    setup,
    vllm,
)
from duodec.cli.deadline import Deadline
from duodec.cli.options import CONTEXT_SETTINGS
from duodec.cli.output import OutputClosed, say_dim, warn
from duodec.errors import DuodecError

_CLOSED = 141  # as a shell reports SIGPIPE
# typer exports this one class of its parser's errors; the one above it is their base
_UsageError: type[Exception] = cast(type[Exception], typer.BadParameter.__mro__[1])


class _Commands(TyperGroup):
    """The commands; a Ctrl-C that none of them handled ends with one line."""

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            say_dim("interrupted")
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="duodec",
    cls=_Commands,
    context_settings=CONTEXT_SETTINGS,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    add_completion=True,
    epilog="[bold]Start here[/bold]\n\n"
    'duodec generate "Why is the sky blue?"     duodec chat     duodec doctor',
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


app.command(epilog=demo.EPILOG, context_settings=CONTEXT_SETTINGS)(demo.demo)
app.command(epilog=generate.EPILOG, context_settings=CONTEXT_SETTINGS)(generate.generate)
app.command(epilog=chat.EPILOG, context_settings=CONTEXT_SETTINGS)(chat.chat)
app.command(
    epilog=serve.EPILOG, context_settings={**CONTEXT_SETTINGS, "auto_envvar_prefix": "DUODEC"}
)(serve.serve)
app.command(epilog=doctor.EPILOG, context_settings=CONTEXT_SETTINGS)(doctor.doctor)
app.command(epilog=bench.EPILOG, context_settings=CONTEXT_SETTINGS)(bench.bench)
app.command(epilog=profile.EPILOG, context_settings=CONTEXT_SETTINGS)(profile.profile)
app.command(epilog=plan.EPILOG, context_settings=CONTEXT_SETTINGS)(plan.plan)
app.command(epilog=report.EPILOG, context_settings=CONTEXT_SETTINGS)(report.report)
app.command(epilog=distill.EPILOG, context_settings=CONTEXT_SETTINGS)(distill.distill)
app.command(epilog=setup.EPILOG, context_settings=CONTEXT_SETTINGS)(setup.setup)
app.command(epilog=vllm.EPILOG, context_settings=CONTEXT_SETTINGS)(vllm.vllm)
app.add_typer(models.app, name="models")
app.add_typer(datastore.app, name="datastore")


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
    with Deadline() as deadline:
        try:
            status = app(args=list(arguments), prog_name="duodec", standalone_mode=False)
            sys.stdout.flush()
        except (typer.Abort, KeyboardInterrupt):
            return INTERRUPTED
        except Exception as error:  # noqa: BLE001  raised again where it is none of ours
            if deadline.is_interrupted:  # of which something made another exception
                say_dim("interrupted")
                return INTERRUPTED
            return _told(error)
    return status if isinstance(status, int) else 0


def _told(error: Exception) -> int:
    """The exit status of an error that users can cause, once they are told; raises any other."""
    if isinstance(error, DuodecError):
        warn(str(error))
        return error.exit_status
    if isinstance(error, _UsageError):
        warn(_usage_words(error))
        return 2
    if isinstance(error, OutputClosed | BrokenPipeError):
        _forget_stdout()
        return _CLOSED
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        _forget_stdout()
        warn(f"cannot write the output: {error.strerror}; free space on its disk")
        return 1
    raise error


def _open_missing_streams() -> None:
    """Open stdout and stderr on the null device if the shell closed them (`>&-`), so that no file
    opened later takes their place."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  open for good


def _usage_words(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "duodec"
    words = str(getattr(error, "format_message", error.__str__)())
    return f"{words.rstrip('.')}; see {command} --help"


def _forget_stdout() -> None:
    """Discard what would be flushed at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)

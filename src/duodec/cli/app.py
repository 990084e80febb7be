"""The command line: its commands, and how errors leave it.

An error that a user can cause is one line on stderr and the exit status of its class;
what has a traceback is a mistake of ours.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, cast

import typer

from duodec.cli import (
    bench,
    chat,
    datastore,
    demo,
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
from duodec.cli.options import CONTEXT_SETTINGS
from duodec.cli.output import OutputClosed, warn
from duodec.errors import DuodecError

_INTERRUPTED, _CLOSED = 130, 141  # as a shell reports SIGINT and SIGPIPE
# typer exports this one class of its parser's errors; the one above it is their base
_UsageError: type[Exception] = cast(type[Exception], typer.BadParameter.__mro__[1])

app = typer.Typer(
    name="duodec",
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
    """A large language model decodes faster with drafts from the CPU beside it, and its text
    stays exactly its own."""
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
app.command(epilog=setup.EPILOG, context_settings=CONTEXT_SETTINGS)(setup.setup)
app.command(epilog=vllm.EPILOG, context_settings=CONTEXT_SETTINGS)(vllm.vllm)
app.add_typer(models.app, name="models")
app.add_typer(datastore.app, name="datastore")


def main() -> None:
    """The entry point of the `duodec` program."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit status."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # text that the terminal cannot show is no error
            stream.reconfigure(errors="replace")
    try:
        status = app(args=list(arguments), prog_name="duodec", standalone_mode=False)
        sys.stdout.flush()
    except DuodecError as error:
        warn(str(error))
        return error.exit_status
    except _UsageError as error:
        warn(_usage_words(error))
        return 2
    except (typer.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except (OutputClosed, BrokenPipeError):
        _forget_stdout()
        return _CLOSED
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _forget_stdout()
        warn(f"cannot write the output: {error.strerror}; free space on its disk")
        return 1
    return status if isinstance(status, int) else 0


def _usage_words(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context else "duodec"
    words = str(getattr(error, "format_message", error.__str__)())
    return f"{words.rstrip('.')}; see {command} --help"


def _forget_stdout() -> None:
    """What is still to be flushed at exit goes nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)

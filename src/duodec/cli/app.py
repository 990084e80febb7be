"""Run the command line's commands. A traceback is a bug of ours: see `errors`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from duodec.backends.interrupts import listen
from duodec.cli.commands import OWN, Commands
from duodec.cli.errors import report_error
from duodec.cli.help import Group
from duodec.cli.interrupts import Deadline
from duodec.cli.options import CONTEXT_SETTINGS
from duodec.cli.output import say_dim
from duodec.machine.signals import INTERRUPTED, ended_quietly, is_server, leave


class _Root(Group):
    """Hold all commands; a Ctrl-C that none of them handled ends with one line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands(OWN)

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except KeyboardInterrupt:
            say_dim("interrupted")
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="duodec",
    cls=_Root,
    context_settings=CONTEXT_SETTINGS,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=True,
    epilog='Start here:\nduodec demo\nduodec run smollm2 "Why is the sky blue?"\nduodec serve\n'
    "duodec doctor -m MODEL.gguf",
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"duodec {version('duodec')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    show_version: Annotated[bool, typer.Option(
        "--version", "-V", help="Show the version.", callback=_show_version, is_eager=True
    )] = False,
) -> None:  # fmt: skip
    """A large language model decodes faster with drafts that the CPU makes in parallel, and its
    text stays exactly its own."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Run the command that the arguments name, and end the process."""
    status = run(sys.argv[1:])
    if status == INTERRUPTED:  # a library may still work in a thread: do not wait for it
        leave()
    sys.exit(status)


def run(arguments: Sequence[str]) -> int:
    """Run one command; return the exit status."""
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
            if deadline.is_interrupted:  # some code made another exception of the interrupt
                say_dim("interrupted")
                return INTERRUPTED
            return report_error(error, arguments, Commands(OWN))
    return status if isinstance(status, int) else 0


def _open_missing_streams() -> None:
    """Open stdout and stderr on the null device if the shell closed them (`>&-`), so that no file
    opened later takes their place."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115  open for good

"""Run `duodec datastore`: show what the method `rest` drafts from; the lab adds `build`."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from duodec.cli.commands import Commands
from duodec.cli.help import Group
from duodec.cli.options import CONTEXT_SETTINGS, Json
from duodec.cli.output import put, put_table, say_dim, size, warn
from duodec.errors import DatastoreUnreadable

if TYPE_CHECKING:
    from duodec.drafting.datastore_file import Header

EPILOG = {"info": "Examples:\nduodec datastore info\nduodec datastore info --json"}

_SCHEMA_VERSION = 1


class _Datastore(Group):
    """Group the commands of `duodec datastore`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands({"info": "datastore"}, "datastore")


app = typer.Typer(
    cls=_Datastore,
    context_settings=CONTEXT_SETTINGS,
    rich_markup_mode=None,
    epilog="Examples:\nduodec datastore build ~/notes\nduodec datastore info",
)


@app.callback(invoke_without_command=True)
def datastore(context: typer.Context) -> None:
    """Build datastores of text, which `rest` drafts from, or show them."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def info(
    path: Annotated[
        Path | None, typer.Argument(help="A datastore; all in the default folder if absent.")
    ] = None,
    json: Json = False,
) -> None:
    """Show what a datastore was built from."""
    found = _headers(path)
    if json:
        listed = [{"path": str(place), **asdict(header)} for place, header in found]
        record = {"schema_version": _SCHEMA_VERSION, "datastores": listed}
        put(f"{json_format.dumps(record, ensure_ascii=False)}\n")
        return
    put_table(
        ("TOKENS", "DOCUMENTS", "FILES", "TEXT", "VOCABULARY", "BUILT", "PATH"),
        [
            (
                f"{header.num_tokens:,}",
                f"{header.num_documents:,}",
                f"{header.num_files:,}",
                size(header.num_bytes),
                f"{header.vocabulary} ({header.num_vocab:,})",
                header.built,
                str(place),
            )
            for place, header in found
        ],
    )
    if not found:
        say_dim("none yet; build one with duodec datastore build FILES...")


def _headers(path: Path | None) -> list[tuple[Path, Header]]:
    """Return the named datastore, or those of the default folder that can be read."""
    from duodec.datastores import default_folder
    from duodec.drafting.datastore import Datastore

    if path is not None:
        return [(path, Datastore.open(path).header)]
    found = []
    for place in sorted(default_folder().glob("*.duods")):
        try:
            found.append((place, Datastore.open(place).header))
        except DatastoreUnreadable as error:
            warn(str(error))
    return found

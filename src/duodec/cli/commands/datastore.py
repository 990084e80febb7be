"""Run `duodec datastore`: build what the method `rest` drafts from, and show what it is."""

from __future__ import annotations

import json as json_format
import sys
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from duodec.cli.help import Group
from duodec.cli.options import CONTEXT_SETTINGS, Json, Options, derived, option, register
from duodec.cli.output import is_terminal, progress_bar, put, put_table, say_dim, size, warn
from duodec.errors import DatastoreUnreadable
from duodec.loading.config import EngineConfig

if TYPE_CHECKING:
    from duodec.drafting.datastore_file import Header

EPILOG = {
    "build": """
Examples:
duodec datastore build ~/project/src notes.md chats.jsonl
duodec datastore build -m qwen2.5-coder-1.5b ~/project
""",
    "info": "Examples:\nduodec datastore info\nduodec datastore info --json",
}

_SCHEMA_VERSION = 1

app = typer.Typer(
    cls=Group,
    context_settings=CONTEXT_SETTINGS,
    rich_markup_mode=None,
    epilog="Examples:\nduodec datastore build ~/notes\nduodec datastore info",
)


@app.callback(invoke_without_command=True)
def datastore(context: typer.Context) -> None:
    """Build datastores of text, which `rest` drafts from, or show them."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@derived
def build(
    *,
    files: Annotated[list[Path], typer.Argument(
        help="Files of text or chats (.jsonl, .json), or folders of them.", metavar="FILES",
        show_default=False
    )],
    output: Annotated[Path | None, option(
        "--output -o PATH", "Where to write it; by default where the method rest finds it."
    )] = None,
    config: Annotated[EngineConfig, Options(only=("target", "offline"))],
) -> None:  # fmt: skip
    """Build a datastore of text and chats, in the target's tokens; its path to stdout."""
    from duodec import datastores
    from duodec.loading.resolve import resolve_target

    begin_s = time.perf_counter()
    with closing(resolve_target(config).open_vocabulary()) as vocabulary:
        place = output or datastores.default_path(datastores.fingerprint(vocabulary))
        with progress_bar(is_quiet=not is_terminal(sys.stderr)) as on_progress:
            built = datastores.build(files, vocabulary, place, on_progress=on_progress)
    header = built.header
    if built.num_skipped:
        say_dim(f"skipped {built.num_skipped} hidden, binary or unreadable files and folders")
    if built.num_plain_chats:
        say_dim(f"{built.num_plain_chats} chats without the chat template, which refuses them")
    say_dim(
        f"{header.num_tokens:,} tokens from {header.num_files:,} files "
        f"({size(header.num_bytes)}) in {time.perf_counter() - begin_s:.1f} s; "
        f"{size(built.num_bytes)} on the disk"
    )
    put(f"{place}\n")


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


register(app, [("build", build), ("info", info)])


def _headers(path: Path | None) -> list[tuple[Path, Header]]:
    """The named datastore, or those of the default folder that can be read."""
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

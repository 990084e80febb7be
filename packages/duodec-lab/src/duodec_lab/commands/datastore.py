"""Run `duodec datastore build`: build what the method `rest` drafts from."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from duodec.cli.options import Options, derived, option
from duodec.cli.output import is_terminal, progress_bar, put, say_dim, size
from duodec.loading.config import EngineConfig

EPILOG = """
Examples:
duodec datastore build ~/project/src notes.md chats.jsonl
duodec datastore build -m qwen2.5-coder-1.5b ~/project
"""


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
    from duodec.datastores import default_path, fingerprint
    from duodec.loading.resolve import resolve_target
    from duodec_lab import datastores

    begin_s = time.perf_counter()
    with closing(resolve_target(config).open_vocabulary()) as vocabulary:
        place = output or default_path(fingerprint(vocabulary))
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

"""Run `duodec cache`: show what duodec keeps on this machine, and clear it."""

from __future__ import annotations

import json as json_format
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from duodec.cli.help import Group
from duodec.cli.options import CONTEXT_SETTINGS, Json, option, register
from duodec.cli.output import put, put_table, say_dim, size
from duodec.errors import BadOption, CacheUnwritable
from duodec.machine.files import cache_folder
from duodec.models.discovery import hub_folder

EPILOG = {"clear": "Examples:\nduodec cache clear --yes\nduodec cache clear wheels data --yes"}

_SCHEMA_VERSION = 1
_MEANING = {
    "models": "models that were fetched by their aliases",
    "wheels": "llama.cpp, built for this processor",
    "cuda": "NVIDIA's compiler, for a build",
    "data": "prompts of benchmarks",
    "datastores": "what you made with duodec datastore",
    "profiles": "measured costs of pairs",
    "checked": "which files and kernels were found right",
    "tried-model": "which models could be opened",
}

app = typer.Typer(
    cls=Group,
    context_settings=CONTEXT_SETTINGS,
    rich_markup_mode=None,
    epilog="Examples:\nduodec cache\nduodec cache clear --yes",
)


@dataclass(frozen=True)
class Kept:
    """Describe a folder of the cache."""

    name: str
    path: Path
    num_bytes: int

    @property
    def meaning(self) -> str:
        return _MEANING[self.name]


@app.callback(invoke_without_command=True)
def cache(context: typer.Context, json: Json = False) -> None:
    """Show what duodec keeps on this machine, and clear it.

    Models of the hub, Ollama and LM Studio are theirs; `duodec list` shows them.
    """
    if context.invoked_subcommand is not None:
        return
    found = list(_kept())
    if json:
        listed = [{"name": k.name, "path": str(k.path), "num_bytes": k.num_bytes} for k in found]
        record = {"schema_version": _SCHEMA_VERSION, "folder": str(cache_folder()), "kept": listed}
        put(f"{json_format.dumps(record, ensure_ascii=False)}\n")
        return
    put_table(
        ("NAME", "SIZE", "WHAT IT IS"), [(k.name, size(k.num_bytes), k.meaning) for k in found]
    )
    say_dim(f"{size(sum(k.num_bytes for k in found))} in {cache_folder()}")
    say_dim(f"models of the hub are in {hub_folder()}: duodec rm NAME removes one")


def clear(
    *,
    names: Annotated[list[str] | None, typer.Argument(
        help="What to remove, as `duodec cache` names it; by default all.", metavar="NAMES",
        show_default=False
    )] = None,
    yes: Annotated[bool, option("--yes -y", "Remove without being asked.")] = False,
) -> None:  # fmt: skip
    """Remove what duodec keeps, which is fetched or measured again at need."""
    found = {kept.name: kept for kept in _kept()}
    for name in names or ():
        if name not in found:
            raise BadOption(f"there is no '{name}' to clear; choose from: {', '.join(found)}")
    chosen = [found[name] for name in names or found]
    total = size(sum(kept.num_bytes for kept in chosen))
    if not chosen:
        say_dim(f"nothing is kept in {cache_folder()}")
        return
    if not yes:
        what = ", ".join(kept.name for kept in chosen)
        if not typer.confirm(f"Remove {what} ({total}) from {cache_folder()}?", err=True):
            say_dim("nothing was removed")
            raise typer.Exit(1)
    for kept in chosen:
        _remove(kept.path)
    say_dim(f"{total} freed")


def _remove(path: Path) -> None:
    """Remove a folder. Raises CacheUnwritable."""
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise CacheUnwritable(
            f"cannot remove {error.filename} ({error.strerror}); check its owner"
        ) from error


def _kept() -> Iterator[Kept]:
    """Yield the folders of the cache that are ours by name, as DUODEC_CACHE may name any folder.
    Those of running servers are excluded; the servers remove them."""
    for name in _MEANING:
        folder = cache_folder() / name
        if folder.is_dir() and not folder.is_symlink():
            files = [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
            yield Kept(name, folder, sum(file.stat().st_size for file in files))


register(app, [("clear", clear)])

"""Remove a model from the cache that it was fetched into."""

from __future__ import annotations

from pathlib import Path

from duodec.errors import CacheUnwritable, ModelNotFound
from duodec.models.base import ModelFile
from duodec.models.hub import parts_of

_YOURS = "it is your own file, which you may delete"
_NOT_FETCHED = {"file": _YOURS, "folder": _YOURS, "bundled": "it is a part of duodec"}


def remove(file: ModelFile) -> int:
    """Delete a model's files, as `resolve` or `resolve_folder` found them; returns the bytes freed.

    Raises ModelNotFound for what was not fetched: a file of the user, or one of this package; and
    CacheUnwritable.
    """
    if file.source in _NOT_FETCHED:
        raise ModelNotFound(
            f"{file.reference} was not fetched, so it is not removed; {_NOT_FETCHED[file.source]}"
        )
    path = file.path
    try:
        freed = sum(map(_unlink, [*path.iterdir()] if path.is_dir() else parts_of(path)))
        if path.is_dir():
            path.rmdir()
    except OSError as error:
        raise CacheUnwritable(
            f"cannot remove {error.filename} ({error.strerror}); check its owner"
        ) from error
    return freed


def _unlink(path: Path) -> int:
    """Delete a file, and what only it links to: the hub's cache keeps contents apart from names."""
    content = path.resolve()
    size = content.stat().st_size
    path.unlink()
    if content == path:
        return size
    repository = next(folder.parent for folder in path.parents if folder.name == "snapshots")
    others = repository.joinpath("snapshots").rglob("*")
    if any(other.is_symlink() and other.resolve() == content for other in others):
        return 0
    content.unlink()
    return size

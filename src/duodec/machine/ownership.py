"""Find out who may change a file that is run.

It uses only the standard library: `scripts/setup.py` needs this file before anything is installed.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

_MOST_LINKS = 40  # the kernel's limit
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Unsafe(Exception):
    """Raised if another user could change what is run: one line, with the remedy."""


def check_owned(path: Path) -> None:
    """Raise Unsafe if a user other than this one and root can change what is at ``path``, and
    OSError if there is no such file."""
    if (place := others_place(path)) is not None:
        raise Unsafe(
            f"{path} is not run: others may change {place}; take that from them (chmod go-w), or "
            "set DUODEC_CACHE to a folder of your own"
        )


def others_place(path: Path) -> Path | None:
    """Return the first file or folder on the way to ``path``, through all links, that another user
    owns or may write; None if only this user and root can change what is there. In a folder like
    /tmp, where all users may write and none may touch what others own, only the entry counts.

    Raises OSError if there is no such file.
    """
    for step, is_entry in _steps(path):
        status = step.lstat()
        if status.st_uid not in {0, os.getuid()}:
            return step
        if stat.S_ISLNK(status.st_mode):  # its mode says nothing
            continue
        is_shared = bool(status.st_mode & stat.S_ISVTX) and not is_entry
        if status.st_mode & _OTHERS_MAY_WRITE and not is_shared and not is_own_group(status):
            return step
    return None


def _steps(path: Path) -> Iterator[tuple[Path, bool]]:
    """Yield every folder, link and file on the way; the last one is marked."""
    here = Path("/")
    left = list(path.absolute().parts[1:])[::-1]
    num_links = 0
    yield here, False
    while left:
        name = left.pop()
        if name == "..":
            here = here.parent
            continue
        step = here / name
        yield step, not left and not step.is_symlink()
        if not step.is_symlink():
            here = step
            continue
        num_links += 1
        if num_links > _MOST_LINKS:
            raise OSError(f"too many links on the way to {path}")
        target = step.readlink()
        if target.is_absolute():
            here = Path("/")
        left += [part for part in target.parts if part != "/"][::-1]


def is_own_group(status: os.stat_result) -> bool:
    """Return whether only the group may write, and the group is the user's alone, as many systems
    make one for each user."""
    if status.st_mode & stat.S_IWOTH:
        return False
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
        group = grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    return group.gr_name == name and not set(group.gr_mem) - {name}

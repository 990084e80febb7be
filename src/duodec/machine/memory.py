"""Find how much memory this process may still use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import psutil

_MEMBERSHIP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")


def available_bytes(membership: Path = _MEMBERSHIP, cgroups: Path = _CGROUPS) -> int:
    """Return how much memory the machine, or a lower limit of a container, has left. Memory that
    caches files counts as free."""
    return min([psutil.virtual_memory().available, *_left_by_limits(membership, cgroups)])


def _left_by_limits(membership: Path, cgroups: Path) -> Iterator[int]:
    """Yield what each limit on this process leaves."""
    for folder in _folders(membership, cgroups):
        for limit_name, used_name, cached_name in (
            ("memory.max", "memory.current", "file"),  # cgroups version 2
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache"),
        ):
            limit, used = (_number(folder / name) for name in (limit_name, used_name))
            if limit is not None and used is not None:
                yield max(0, limit - max(0, used - _cached(folder, cached_name)))


def _folders(membership: Path, cgroups: Path) -> Iterator[Path]:
    """Yield the folders of this process's limits: its own groups and their ancestors."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        kinds, _, path = rest.partition(":")
        if kinds and "memory" not in kinds.split(","):
            continue
        root = cgroups / "memory" if kinds else cgroups
        own = PurePosixPath(path.lstrip("/"))
        yield from (root / part for part in (own, *own.parents))


def _number(file: Path) -> int | None:
    """Return the number in a file; None if there is none, or it is `max`."""
    try:
        words = file.read_text().strip()
    except OSError:
        return None
    return int(words) if words.isdecimal() else None


def _cached(folder: Path, name: str) -> int:
    """Return how many bytes of files a group caches."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    found = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return int(found.get(name, 0))

"""Find the folder that duodec keeps its own files in, and write files whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PROBE_BYTES = 1 << 16  # more than a full disk has left


def cache_folder() -> Path:
    """Return where downloads, builds and what was measured are kept; it may not exist yet."""
    if os.environ.get("DUODEC_CACHE"):
        return Path(os.environ["DUODEC_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "duodec"


def profile_place(key: str) -> Path:
    """Return the file that keeps measurements of a model, or of a pair, on this machine."""
    return cache_folder() / "profiles" / f"{key}.json"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path in the same folder to write to. What is written there replaces ``path`` at the
    end, and is removed if anything fails. Raises OSError, for example if the disk is full; then the
    old file stays."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        # torch and gguf do not report that the disk was full.
        if (full := _refusal(part)) is not None:
            raise full from error
        raise
    finally:
        part.unlink(missing_ok=True)


def is_full(error: OSError) -> bool:
    """Return whether the error says that the disk, or this user's quota, is full."""
    return error.errno in _FULL


def _refusal(part: Path) -> OSError | None:
    """Return the error of a disk that accepts no more of a file; None if it does."""
    try:
        with part.open("ab") as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error if is_full(error) else None
    return None

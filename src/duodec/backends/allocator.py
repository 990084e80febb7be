"""Keep freed memory in the process: rows of logits are large, and allocated at every draw.

Training, whose blocks have many sizes, returns it.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_TRIM_BYTES, _MMAP_BYTES, _NUM_ARENAS = 256 << 20, 32 << 20, 1


def keep_freed_memory() -> None:
    """Tell glibc not to return every freed array to the system.

    Otherwise each array of a draw is mapped, faulted in page by page and unmapped: measured at two
    thirds of the time of a draw from 150,000 logits. All threads share what one has freed, or each
    of a server's threads would keep as much of its own. It does nothing with other C libraries.
    """
    if mallopt := _of_glibc("mallopt"):
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_ARENA_MAX, _NUM_ARENAS)


def give_back_freed_memory() -> None:
    """Return all freed memory to the system, also memory that lies before blocks in use. It takes a
    tenth of a second for some gigabytes. It does nothing with other C libraries."""
    if trim := _of_glibc("malloc_trim"):
        trim(0)


def _of_glibc(name: str) -> Any:
    """Return one of glibc's functions; None with other libraries, such as musl, which has
    neither."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None

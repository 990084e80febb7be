"""Keep freed memory in the process: rows of logits are large, and allocated at every draw."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_TRIM_BYTES, _MMAP_BYTES, _NUM_ARENAS = 256 << 20, 32 << 20, 1


def keep_freed_memory() -> None:
    """Tell glibc not to return every freed array to the system.

    Otherwise each array of a draw is mapped, faulted in page by page and unmapped: measured at
    two thirds of the time of a draw from 150,000 logits. All threads share what one has freed, or
    each of a server's threads would keep as much of its own. Does nothing with other C libraries.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt:
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_ARENA_MAX, _NUM_ARENAS)

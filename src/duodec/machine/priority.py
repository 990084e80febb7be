"""Lower the priority of a thread whose work may wait, where the system has one for each thread."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from threading import get_native_id

LOW = 10  # the niceness of work that others shall not feel: a tenth of their share of a core


def niceness() -> int:
    """That of this thread; that of the process where threads have none of their own."""
    return os.getpriority(os.PRIO_PROCESS, _this_thread())


def be_nice(least: int = LOW) -> None:
    """Give this thread, and the threads and processes that it starts, this niceness or what it has
    if that is more. Where threads have none of their own, nothing changes."""
    if sys.platform == "linux" and niceness() < least:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, _this_thread(), least)


def _this_thread() -> int:
    return get_native_id() if sys.platform == "linux" else 0

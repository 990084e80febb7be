"""Start processes of ours in a group of their own, lower their priority, and end them.

They stay in our session: Linux shares the cores between sessions first (`sched_autogroup_enabled`),
and a priority counts only within one. Threads keep their priority: one that waits for a core while
it holds the interpreter's lock would stop all others.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import get_native_id

OWN_GROUP = "import os\nos.setpgid(0, 0)\n"
"""The start of the program of our processes, so that the terminal's Ctrl-C and Ctrl-Z do not reach
them. Popen has this only since Python 3.11."""

NO_GPU = {
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "-1",  # empty has the same effect as unset there
    "ROCR_VISIBLE_DEVICES": "",
    "GGML_VK_VISIBLE_DEVICES": "",  # a number beyond the last device ends the process
}
"""The environment of our processes that compute on the CPU. A library that sees a GPU reserves some
hundred megabytes on it as it loads, and fails on one that belongs to another process."""

_LESS, _LEAST = 5, 19  # niceness: more than our own, and at most


def share_with_others(pid: int) -> None:
    """Give this process about a third of the time that our other processes get on the same core.
    This is permanent if the system does not allow it to be undone. Nothing happens if the process
    has ended."""
    with suppress(OSError):
        own = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, pid, min(own + _LESS, _LEAST))


def share_thread_with_others() -> None:
    """Do the same for the calling thread, on Linux, where threads have priorities of their own."""
    if sys.platform == "linux":
        share_with_others(get_native_id())


def yield_to_all(pid: int) -> None:
    """Give this process only the time that is left over. This is permanent if the system does not
    allow it to be undone. Nothing happens if the process has ended."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, _LEAST)
        if hasattr(os, "SCHED_IDLE"):  # Linux: it makes way at once, not at the end of its turn
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


@dataclass(frozen=True)
class Activity:
    """Say what a process does. ``is_busy``: one of its threads runs, or waits for a core or the
    disk. ``cpu_s``: seconds that all of them have computed so far."""

    is_busy: bool
    cpu_s: float


def activity(pid: int) -> Activity | None:
    """Return what a process does now; None if the system does not tell, or the process has
    ended."""
    is_busy, num_ticks = False, 0
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            state, *numbers = (thread / "stat").read_text().rpartition(")")[2].split()
            is_busy = is_busy or state in ("R", "D")
            num_ticks += int(numbers[10]) + int(numbers[11])  # user and system time
    except OSError:  # a thread, or all of them, ended meanwhile
        return None
    return Activity(is_busy, num_ticks / os.sysconf("SC_CLK_TCK"))


def end_group(pid: int) -> None:
    """Kill a process of ours with what it has forked."""
    with suppress(ProcessLookupError):
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:  # it has just begun
            os.kill(pid, signal.SIGKILL)

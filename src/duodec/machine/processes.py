"""Start processes of ours in a group of their own, lower their priority, and end them.

They stay in our session: Linux shares the cores between sessions first (`sched_autogroup_enabled`),
and a priority counts only within one. Threads keep theirs: one that waits for a core while it holds
the interpreter's lock would stop all others.
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
"""How the program of a process of ours begins, so that the terminal's Ctrl-C and Ctrl-Z do not
reach it."""  # Popen has this since Python 3.11 only

NO_GPU = {
    "CUDA_VISIBLE_DEVICES": "",
    "HIP_VISIBLE_DEVICES": "-1",  # empty is as good as unset there
    "ROCR_VISIBLE_DEVICES": "",
    "GGML_VK_VISIBLE_DEVICES": "",  # a number beyond the last device ends the process
}
"""The environment of a process of ours that computes on the CPU: a library that sees a GPU sets
some hundred megabytes aside on it as it loads, and fails on one that belongs to another process."""

_LESS, _LEAST = 5, 19  # niceness: beyond our own, and at most


def share_with_others(pid: int) -> None:
    """From now on this process gets about a third of the time that another one of ours gets on the
    same core; for good where the system does not allow to take that back. Nothing happens if it
    has ended."""
    with suppress(OSError):
        own = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, pid, min(own + _LESS, _LEAST))


def share_thread_with_others() -> None:
    """The same for the calling thread, on Linux, where threads have priorities of their own."""
    if sys.platform == "linux":
        share_with_others(get_native_id())


def yield_to_all(pid: int) -> None:
    """From now on this process gets the time that is left over; for good where the system does not
    allow to take that back. Nothing happens if it has ended."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, _LEAST)
        if hasattr(os, "SCHED_IDLE"):  # Linux: it makes way at once, not at the end of its turn
            os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))


@dataclass(frozen=True)
class Activity:
    """What a process does: ``is_busy`` if one of its threads runs, or waits for a core or the
    disk; ``cpu_s``: seconds that all of them have computed so far."""

    is_busy: bool
    cpu_s: float


def activity(pid: int) -> Activity | None:
    """What a process does now; None where the system does not tell, or if it has ended."""
    is_busy, num_ticks = False, 0
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            state, *numbers = (thread / "stat").read_text().rpartition(")")[2].split()
            is_busy = is_busy or state in ("R", "D")
            num_ticks += int(numbers[10]) + int(numbers[11])  # of the user and of the system
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

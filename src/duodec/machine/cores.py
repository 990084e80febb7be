"""Share the cores of this machine between target and drafter."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

MOST_DRAFT_THREADS = 8  # a small model gains nothing beyond

Cores = tuple[int, ...]


def available_cores() -> Cores:
    """Return the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def listed_cores(text: str) -> set[int]:
    """Parse Linux's notation of a set: ``0-3,8``."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def keep_to(cores: Cores) -> None:
    """Let the calling thread, and threads that it starts, run on these cores only, if the system
    supports it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


@dataclass(frozen=True)
class CoreSharing:
    """Say how a loaded target and its drafter share the cores of this machine."""

    is_shared: bool = False  # both compute on the same cores
    num_for_target: int = 1  # cores left to the target while the drafter works
    takes_turns: Callable[[], bool] = lambda: False
    """Return whether the drafter rests while the target computes now."""
    prepare: Callable[[bool], None] = lambda is_drafting: None
    """Share the cores before each completion, with a drafter or without."""

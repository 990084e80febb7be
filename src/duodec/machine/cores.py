"""Share the cores of this machine between target and drafter."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_DRAFT_THREADS = 8  # a small model gains nothing beyond
_NODES = Path("/sys/devices/system/node")  # where Linux lists which memory is near which core

Cores = tuple[int, ...]


def available_cores() -> Cores:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


def memory_nodes(cores: Cores, folder: Path = _NODES) -> tuple[Cores, ...]:
    """The cores by the memory near them; all of them together if the system does not report it."""
    lists = [file.read_text() for file in sorted(folder.glob("node[0-9]*/cpulist"))]
    nodes = (tuple(sorted(listed_cores(text) & set(cores))) for text in lists)
    return tuple(node for node in nodes if node) or (cores,)


def listed_cores(text: str) -> set[int]:
    """Parse Linux's notation of a set: ``0-3,8``."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _together(cores: Cores, count: int, nodes: Sequence[Cores]) -> Cores:
    """The last ``count`` cores, of one node if one has so many: threads that share a model's
    weights should share the memory that holds them."""
    own = [tuple(core for core in node if core in cores) for node in nodes]
    roomy = [node for node in own if len(node) >= count]
    return (roomy[-1] if roomy else cores)[-count:]


def keep_to(cores: Cores) -> None:
    """Let the calling thread, and threads that it starts, run on these cores only, if the system
    supports it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


@dataclass(frozen=True)
class CorePlan:
    """A plan in which busy threads never exceed cores: llama.cpp's workers spin, and two
    oversubscribed pools were measured at less than a tenth of their speed.

    ``target_alone`` threads compute the target while nothing is drafted, ``target_beside``
    while the drafter works on ``draft_cores``. A target that computes elsewhere needs one thread,
    which launches its work and keeps to ``launch_cores``.
    """

    target_alone: int
    target_beside: int
    draft_cores: Cores
    shares_cores: bool
    launch_cores: Cores

    @classmethod
    def make(
        cls,
        cores: Cores,
        *,
        target_is_on_cpu: bool,
        num_threads: int | None = None,
        num_draft_threads: int | None = None,
        nodes: Sequence[Cores] = (),
    ) -> CorePlan:
        """The plan for these cores; a target that computes elsewhere leaves all but one to the
        draft."""
        usable = num_threads or len(cores)
        if num_draft_threads:
            num_draft = num_draft_threads
        elif target_is_on_cpu:
            num_draft = max(1, usable // 4)
        else:
            num_draft = max(1, min(MOST_DRAFT_THREADS, len(cores) - 1))
        num_draft = min(num_draft, max(1, len(cores) - 1))
        own = cores if target_is_on_cpu else cores[1:] or cores
        draft_cores = _together(own, num_draft, nodes)
        beside = max(1, min(usable, len(cores) - num_draft))
        return cls(
            target_alone=usable if target_is_on_cpu else 1,
            target_beside=beside if target_is_on_cpu else 1,
            draft_cores=draft_cores,
            shares_cores=target_is_on_cpu,
            launch_cores=tuple(core for core in cores if core not in draft_cores) or cores,
        )


@dataclass(frozen=True)
class CoreSharing:
    """How a loaded target and its drafter share the cores of this machine."""

    is_shared: bool = False  # both compute on the same cores
    num_for_target: int = 1  # of those, while the drafter works
    takes_turns: bool = False  # the drafter rests while the target computes
    prepare: Callable[[bool], None] = lambda is_drafting: None
    """Called before each completion: shares the cores, with a drafter or without."""

"""How the machine's cores are shared between target and drafter."""

from __future__ import annotations

import os
from dataclasses import dataclass

_MOST_DRAFT_THREADS = 8  # a small model gains nothing beyond


def available_cores() -> tuple[int, ...]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    return tuple(range(os.cpu_count() or 1))


@dataclass(frozen=True)
class CorePlan:
    """Busy threads never exceed cores: llama.cpp's workers spin, and two oversubscribed pools
    were measured at less than a tenth of their speed.

    ``target_alone`` threads compute the target while nothing is drafted, ``target_beside``
    while the drafter is at work on ``draft_cores``.
    """

    target_alone: int
    target_beside: int
    draft_cores: tuple[int, ...]
    shares_cores: bool

    @classmethod
    def make(
        cls,
        cores: tuple[int, ...],
        *,
        target_is_on_cpu: bool,
        num_threads: int | None = None,
        num_draft_threads: int | None = None,
    ) -> CorePlan:
        """The plan for these cores; a target elsewhere leaves all of them but one to the draft."""
        usable = num_threads or len(cores)
        if num_draft_threads:
            num_draft = num_draft_threads
        elif target_is_on_cpu:
            num_draft = max(1, usable // 4)
        else:
            num_draft = max(1, min(_MOST_DRAFT_THREADS, len(cores) - 1))
        num_draft = min(num_draft, max(1, len(cores) - 1))
        return cls(
            target_alone=usable if target_is_on_cpu else 1,
            target_beside=max(1, min(usable, len(cores) - num_draft)),
            draft_cores=cores[-num_draft:],
            shares_cores=target_is_on_cpu,
        )

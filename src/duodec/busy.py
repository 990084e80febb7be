"""Were other programs at work on our cores while something was timed?"""

from __future__ import annotations

from time import perf_counter

import psutil

from duodec.config import available_cores

NOTABLE = 0.5  # cores: from here on a timing is not to be trusted
_IDLE = ("idle", "iowait", "guest", "guest_nice")  # guests are counted as user time already


class OtherPrograms:
    """Watches from its creation on."""

    def __init__(self) -> None:
        self._start_s = perf_counter()
        self._busy_s = _busy_s()
        self._own_s = _own_s()

    @property
    def num_cores(self) -> float:
        """Cores that others kept busy since, on average; 0 where the system does not tell."""
        elapsed_s = perf_counter() - self._start_s
        others_s = (_busy_s() - self._busy_s) - (_own_s() - self._own_s)
        return max(0.0, others_s / elapsed_s)


def _busy_s() -> float:
    """Seconds that our cores have been busy in all."""
    cores = set(available_cores())
    return sum(
        sum(seconds for name, seconds in times._asdict().items() if name not in _IDLE)
        for core, times in enumerate(psutil.cpu_times(percpu=True))
        if core in cores
    )


def _own_s() -> float:
    """Seconds that this process and the drafter's have computed."""
    total = 0.0
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:  # it ended while we looked
            continue
        total += times.user + times.system
    return total

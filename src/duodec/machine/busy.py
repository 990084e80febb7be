"""Watch the load of other programs on our cores: it spoils timings, and our threads yield to it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import perf_counter, sleep

import psutil

from duodec.machine.cores import available_cores

NOTABLE = 0.5  # cores; above this a timing is unreliable
_LOOK_S = 0.5  # length of a look at busy programs
_MOST_NAMED = 3  # programs
_EVERY_S = 0.25  # between two looks at the load of others
_RECENT_S = 2.0  # a longer window may contain a pause and does not describe the present
_AT_WORK = 0.25  # share of our threads' time in the window; below it there was a pause
_CHILDREN_S = 5.0  # between two searches for our processes, which take milliseconds
_TAKEN = 0.3  # share of a core above which a program uses it
_FREE = 0.8  # share of a core above which no other program uses it
_IDLE = ("idle", "iowait", "guest", "guest_nice")  # guests are already counted as user time


class OtherPrograms:
    """Watch other programs from its creation on."""

    def __init__(self) -> None:
        self._start_s = perf_counter()
        self._busy_s = _busy_s()
        self._own_s = _own_s()

    @property
    def num_cores(self) -> float:
        """Return the cores that others have kept busy since then, on average; 0 if the system does
        not report it."""
        elapsed_s = perf_counter() - self._start_s
        others_s = (_busy_s() - self._busy_s) - (_own_s() - self._own_s)
        return max(0.0, others_s / elapsed_s)


class LoadMeter:
    """Measure what other programs keep busy, from one look to the next."""

    def __init__(self) -> None:
        self._since_s = perf_counter()
        self._others = OtherPrograms()
        self._num_cores = 0.0

    def look(self) -> float:
        """Return the cores that others have kept busy since the last look, or the last result if
        that was just now."""
        if perf_counter() - self._since_s >= _EVERY_S:
            self._num_cores = self._others.num_cores
            self._since_s, self._others = perf_counter(), OtherPrograms()
        return self._num_cores


def wait_until_idle(
    patience_s: float,
    *,
    sleep: Callable[[float], None] = sleep,
    clock: Callable[[], float] = perf_counter,
) -> str | None:
    """Wait while other programs use our cores, at most ``patience_s`` seconds. Return None once
    they do not, otherwise the names of the programs. It takes a second or two if the cores are
    idle."""
    end_s = clock() + patience_s
    while True:
        others = OtherPrograms()
        before = _seconds_by_process()
        sleep(_LOOK_S)
        if (num_cores := others.num_cores) < NOTABLE:
            return None
        if clock() >= end_s:
            return f"other programs keep {num_cores:.1f} cores busy{_busiest(before)}"


def _busiest(before: dict[int, float]) -> str:
    """Return the names of the processes that have computed most since ``before``."""
    here = psutil.Process()
    own = {one.pid for one in (here, *here.children(recursive=True))}
    used = {pid: s - before.get(pid, s) for pid, s in _seconds_by_process().items()}
    found = sorted((s, pid) for pid, s in used.items() if pid not in own and s > _TAKEN * _LOOK_S)
    named = []
    for _, pid in found[: -1 - _MOST_NAMED : -1]:
        with suppress(psutil.Error):  # it has ended
            named.append(f"{psutil.Process(pid).name()} (process {pid})")
    return f": {', '.join(named)}" if named else ""


def _seconds_by_process() -> dict[int, float]:
    """Return the seconds that each process of this machine has computed."""
    found = {}
    for process in psutil.process_iter(["cpu_times"]):
        if times := process.info["cpu_times"]:  # none: it is another user's
            found[process.pid] = times.user + times.system
    return found


class SpareCores:
    """Return how many threads may compute now, so that none waits for a core that another program
    uses.

    Threads of one forward pass synchronise hundreds of times. Two of them on two cores, one of
    which was busy, were measured at a thirtieth of the speed of one. Call it before each forward
    pass. It looks four times a second, yields to a program at once and takes a core back when it is
    free.
    """

    def __init__(
        self,
        num_cores: int,
        *,
        clock: Callable[[], float] = perf_counter,
        busy_s: Callable[[], float] | None = None,
        own_s: Callable[[], float] | None = None,
    ) -> None:
        self._num_cores = self._limit = num_cores
        self._clock = clock
        self._busy_s = busy_s or _busy_s
        self._own_s = own_s or _OwnTime()
        self._look()

    def __call__(self) -> int:
        elapsed_s = self._clock() - self._then_s
        if elapsed_s < _EVERY_S:
            return self._limit
        busy_s, own_s = self._seen
        self._look()
        used_s = self._seen[1] - own_s
        if elapsed_s <= _RECENT_S or used_s >= _AT_WORK * self._limit * elapsed_s:
            others_s = self._seen[0] - busy_s - used_s
            self._limit = self._fitting(max(0.0, others_s / elapsed_s))
        return self._limit

    def _fitting(self, others: float) -> int:
        """Return the threads to use while other programs use ``others`` cores."""
        free = self._num_cores - others
        if others >= _TAKEN and self._limit > free:
            return max(1, int(free + 1 - _FREE))
        if free - self._limit >= _FREE:
            return min(self._num_cores, int(free + 1 - _FREE))
        return self._limit

    def _look(self) -> None:
        self._then_s = self._clock()
        self._seen = (self._busy_s(), self._own_s())


class _OwnTime:
    """Count the seconds that this process and its children have computed."""

    def __init__(self) -> None:
        self._processes: list[psutil.Process] = []
        self._searched_s = float("-inf")
        self._total_s = 0.0
        self._before: dict[int, float] = {}
        self._num_searches = 0

    def __call__(self) -> float:
        # The first two calls search: the drafter starts after the first look.
        if self._num_searches < 2 or perf_counter() - self._searched_s > _CHILDREN_S:
            here = psutil.Process()
            self._processes = [here, *here.children(recursive=True)]
            self._searched_s = perf_counter()
            self._num_searches += 1
        now: dict[int, float] = {}
        for process in self._processes:
            try:
                times = process.cpu_times()
            except psutil.Error:  # it has ended
                continue
            now[process.pid] = times.user + times.system
        # These are sums of differences: a process that ends subtracts nothing, and a new one counts
        # whole.
        self._total_s += sum(s - self._before.get(pid, 0.0) for pid, s in now.items())
        self._before = now
        return self._total_s


def _busy_s() -> float:
    """Return the seconds that our cores have been busy in all."""
    cores = set(available_cores())
    return sum(
        sum(seconds for name, seconds in times._asdict().items() if name not in _IDLE)
        for core, times in enumerate(psutil.cpu_times(percpu=True))
        if core in cores
    )


def _own_s() -> float:
    """Return the seconds that this process and the drafter's have computed."""
    total = 0.0
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:  # it has ended meanwhile
            continue
        total += times.user + times.system
    return total

"""When a drafter's process is called hung, when it is started anew, and what is said of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median
from time import perf_counter

from duodec.machine.processes import Activity, activity

DOUBT_S = 0.05  # before one that may be gone, or hang, is given up
HANG_S = 1.0  # silence that is never called hanging
_HANG_STEPS = 5.0  # nor is less than this many expected steps
_UNKNOWN_STEP_S = 2.0  # expected before one was measured
_STARVED_S = 10.0  # beyond that: of one that gets no core, on a loaded machine
_GLANCE_S = 0.05  # of silence, before it is looked at what the process does
_BACKOFF_S = 1.0  # before the second restart; doubled for each one more
_MAX_BACKOFF_S = 30.0


class Pace:
    """What a step takes, and so how long silence is no reason for worry."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=16)

    def observe(self, seconds: float) -> None:
        if seconds > 0:
            self._recent.append(seconds)

    def limit_s(self) -> float:
        return max(HANG_S, _HANG_STEPS * (median(self._recent or (_UNKNOWN_STEP_S,))))


class Silence:
    """For how long a process that owes us a word has said nothing."""

    def __init__(self) -> None:
        self._since_s: float | None = None  # None: it owes us nothing

    @property
    def since_s(self) -> float | None:
        """When it began; None: it owes us nothing."""
        return self._since_s

    def ask(self) -> None:
        """It owes us a word from now on, if it did not already."""
        if self._since_s is None:
            self._since_s = perf_counter()

    def end(self, *, is_more_owed: bool) -> None:
        self._since_s = perf_counter() if is_more_owed else None


class HangDetector:
    """Whether a silent process hangs, by what it does meanwhile.

    On a loaded machine it may get no core for seconds. It hangs if it is silent for longer than
    expected and does nothing, or has computed for so long since, or is silent for much longer.
    """

    def __init__(
        self,
        clock: Callable[[], float] = perf_counter,
        look: Callable[[int], Activity | None] = activity,
    ) -> None:
        self._clock, self._look = clock, look
        self._silence: tuple[int, float] | None = None  # the process, and since when it is silent
        self._before: Activity | None = None  # what it had done early in that silence

    def hung_s(self, pid: int, since_s: float | None, limit_s: float) -> float:
        """Return how long a process that hangs has been silent, where silence of ``limit_s``
        seconds is nothing odd; 0 for one that does not hang."""
        silent_s = 0.0 if since_s is None else self._clock() - since_s
        if since_s is None or silent_s < _GLANCE_S:
            return 0.0
        if self._silence != (pid, since_s):
            self._silence, self._before = (pid, since_s), self._look(pid)
        if silent_s <= limit_s:
            return 0.0
        if silent_s <= limit_s + _STARVED_S and self._is_starved(pid, limit_s):
            return 0.0
        return silent_s

    def _is_starved(self, pid: int, limit_s: float) -> bool:
        before, now = self._before, self._look(pid)
        if before is None or now is None:
            return False
        return now.is_busy and now.cpu_s - before.cpu_s <= limit_s


class Incidents:
    """The failures since the drafter last worked: when to try again, and what to tell."""

    def __init__(self) -> None:
        self._num_failures = 0
        self._num_told = 0

    def forget(self) -> None:
        """It works again."""
        self._num_failures = self._num_told = 0

    def pause_s(self, *, was_ready: bool) -> float:
        """Count a failure. Nothing to wait for after the first in work; later 1 s, 2 s, 4 s."""
        num_before = self._num_failures
        self._num_failures += 1
        if was_ready and not num_before:
            return 0.0
        return min(_MAX_BACKOFF_S, _BACKOFF_S * 2.0 ** min(max(0, num_before - 1), 10))

    def remedy(self) -> str | None:
        """Return what to say is being done; None when enough was said."""
        self._num_told += 1
        if self._num_told == 1:
            return "going on without drafts until a restart works"
        return None

"""Decide when a drafter's process hangs, when it is restarted, and what is reported about it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median
from time import perf_counter

from duodec.machine.processes import Activity, activity

DOUBT_S = 0.05  # a process that may be gone, or hang, is given up after this time
HANG_S = 1.0  # shorter silence never counts as hanging
_HANG_STEPS = 5.0  # nor does silence of fewer expected steps than this
_UNKNOWN_STEP_S = 2.0  # expected before a step was measured
_STARVED_S = 10.0  # longer silence counts as hanging, even without a core on a loaded machine
_GLANCE_S = 0.05  # silence after which the process's activity is checked
BACKOFF_S = 1.0  # wait before the second restart; doubled for each one more
_MAX_BACKOFF_S = 30.0


class Pace:
    """Track how long a step takes, and so how long silence is normal."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=16)

    def observe(self, seconds: float) -> None:
        if seconds > 0:
            self._recent.append(seconds)

    def limit_s(self) -> float:
        return max(HANG_S, _HANG_STEPS * (median(self._recent or (_UNKNOWN_STEP_S,))))


class Silence:
    """Track for how long a process that owes a response has been silent."""

    def __init__(self) -> None:
        self._since_s: float | None = None  # None: it owes no response

    @property
    def since_s(self) -> float | None:
        """Return when the silence began; None: it owes no response."""
        return self._since_s

    def ask(self) -> None:
        """Expect a response from now on, if none was expected already."""
        if self._since_s is None:
            self._since_s = perf_counter()

    def end(self, *, is_more_owed: bool) -> None:
        self._since_s = perf_counter() if is_more_owed else None


class HangDetector:
    """Decide whether a silent process hangs, by what it does meanwhile.

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
        """Return how long a process that hangs has been silent; 0 if it does not hang. Silence of
        ``limit_s`` seconds is normal."""
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
    """Count the failures since the drafter last worked; they decide when to try again, and what to
    report."""

    def __init__(self) -> None:
        self._num_failures = 0
        self._num_reported = 0

    def forget(self) -> None:
        """Record that the drafter works again."""
        self._num_failures = self._num_reported = 0

    def pause_s(self, *, was_ready: bool) -> float:
        """Count a failure. Return no pause after the first failure of a working drafter; later 1 s,
        2 s, 4 s."""
        num_before = self._num_failures
        self._num_failures += 1
        if was_ready and not num_before:
            return 0.0
        return min(_MAX_BACKOFF_S, BACKOFF_S * 2.0 ** min(max(0, num_before - 1), 10))

    def remedy(self) -> str | None:
        """Return what to report about it; None if enough was reported."""
        self._num_reported += 1
        if self._num_reported == 1:
            return "going on without drafts until a restart works"
        return None

"""Let one of several models compute at a time, in the order in which they ask."""

from __future__ import annotations

from threading import Condition
from types import TracebackType


class Turns:
    """A lock whose owner cannot take it again before those who wait: forward passes of several
    models alternate, and their threads never exceed the cores."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._num_asked = self._num_done = 0

    def __enter__(self) -> None:
        with self._changed:
            own = self._num_asked
            self._num_asked += 1
            self._changed.wait_for(lambda: self._num_done == own)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._num_done += 1
            self._changed.notify_all()

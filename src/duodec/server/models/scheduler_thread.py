"""Run the scheduler in a thread of its own: admit up to a limit, abort, drain, close."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from threading import Condition, Thread
from types import TracebackType

from duodec.errors import BadOption
from duodec.scheduler.outputs import Failed
from duodec.scheduler.scheduled_request import ScheduledRequest
from duodec.scheduler.scheduler import Scheduler
from duodec.scheduler.slots import Slot
from duodec.server.errors import busy, unavailable


class SchedulerThread:
    """Steps a scheduler while there is work. As many requests run at once as there are slots;
    ``num_queued`` more may wait; a request with many completions leaves half of these places to
    others. ``lock`` is held during each step. All methods may be called from any thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        num_queued: int,
        lock: AbstractContextManager[None] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._lock = lock or nullcontext()
        self._num_queued = num_queued
        self._is_draining = False
        self._is_closed = False
        self._thread = Thread(target=self._run, name="duodec-scheduler", daemon=True)
        self._thread.start()

    # --- what it does

    @property
    def num_slots(self) -> int:
        return self._scheduler.num_slots

    @property
    def num_running(self) -> int:
        return len(self._scheduler.running)

    @property
    def num_waiting(self) -> int:
        return len(self._scheduler.waiting)

    @property
    def num_taken(self) -> int:
        """Places in slots and in the queue that others cannot have."""
        with self._scheduler.changed:
            return self.num_running + self._scheduler.waiting.num_places(self._most_places)

    @property
    def _most_places(self) -> int:
        """That one request takes, however many completions it has."""
        return self.num_slots + self._num_queued // 2

    @property
    def num_forwards(self) -> int:
        return self._scheduler.num_forwards

    @property
    def slots(self) -> list[tuple[ScheduledRequest | None, Slot]]:
        """By slot, what runs there."""
        with self._scheduler.changed:
            running = {request.slot.number: request for request in self._scheduler.running}
        return [(running.get(slot.number), slot) for slot in self._scheduler.slots]

    # --- requests

    def submit(self, requests: Sequence[ScheduledRequest]) -> None:
        """Admit all of them, or none: raises ApiError when the queue is full, or at the end."""
        with self._scheduler.changed:
            if self._is_draining:
                raise unavailable("the server is shutting down; ask again in a moment")
            most = self.num_slots + self._num_queued
            if len(requests) > most:
                raise BadOption(
                    f"{len(requests)} completions are requested at once, and this server takes "
                    f"{most}; ask for fewer"
                )
            if min(len(requests), self._most_places) > most - self.num_taken:
                raise busy(
                    1 + self.num_waiting // self.num_slots,
                    f"{self.num_running} requests are running and {self.num_waiting} wait; "
                    "ask again in a moment",
                )
            self._scheduler.submit(requests)

    def abort(self, request: ScheduledRequest) -> None:
        """The request's client is gone."""
        request.abort()
        self._scheduler.drop_waiting()

    def drain(self, wait_s: float) -> bool:
        """Admit nothing any more, and wait for what is there: whether it came to its end."""
        with self._scheduler.changed:
            self._is_draining = True
            return self._scheduler.changed.wait_for(lambda: not self._scheduler.has_work, wait_s)

    def end_all(self, error: Exception) -> None:
        """End what runs or waits."""
        with self._scheduler.changed:
            self._is_draining = True
            requests = [*self._scheduler.waiting, *self._scheduler.running]
        for request in requests:
            if not request.is_aborted:
                request.on_output(Failed(error))
            self.abort(request)

    def close(self, wait_s: float | None = None) -> bool:
        """End the thread: whether it has ended by then. Can be called twice."""
        self.end_all(unavailable("the server is shutting down"))
        with self._scheduler.changed:
            self._is_closed = True
            self._scheduler.changed.notify_all()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    # --- the thread

    def _run(self) -> None:
        scheduler = self._scheduler
        while True:
            with scheduler.changed:
                scheduler.changed.wait_for(lambda: scheduler.has_work or self._is_closed)
                if self._is_closed and not scheduler.has_work:
                    return
            try:
                while self._step():
                    pass
            except Exception as error:  # noqa: BLE001  a mistake of ours must not end this thread
                with suppress(Exception):  # those that can be told are
                    scheduler.close(error)

    def _step(self) -> bool:
        with self._lock:
            return self._scheduler.step()


class FairLock:
    """A lock whose owner cannot take it again before those who wait: forward passes of several
    models alternate, and their threads never exceed the cores."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._num_taken = self._num_done = 0

    def __enter__(self) -> None:
        with self._changed:
            own = self._num_taken
            self._num_taken += 1
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

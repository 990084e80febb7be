"""A drafter that a thread of its own listens to: who takes its drafts never waits for it.

Every message of a drafter costs its reader some microseconds, and there are hundreds between two
forward passes of a large model. So a thread takes them in while the target computes, and hands
over what is asked. Texts are sent whole: the draft model decides how much of a long one it reads.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Condition, RLock, Thread
from time import sleep
from typing import Protocol

from duodec.core.candidates import CandidateTree
from duodec.core.protocols import Drafted, Drafter, DraftRequest
from duodec.methods.request import NoDrafter
from duodec.planning.costs import Costs

_PAUSE_S = 0.002  # between two looks at a drafter at work
_IDLE_S = 0.2  # and at one with nothing to do, which may have died
_log = logging.getLogger("vllm.duodec")


@dataclass
class _Seat:
    """One slot: what is wanted of it, and what the drafter was given last."""

    wanted: DraftRequest | None = None
    given: DraftRequest | None = None
    is_new: bool = False  # what is wanted was not given yet
    is_at_work: bool = False  # the drafter owes it more


class ListeningDrafter(Drafter, Protocol):
    """A drafter that takes in what all slots are sent whenever it is called."""

    def heard(self, slot: int) -> Drafted:
        """What had been drafted for the slot's last request by the last call of another verb."""


class Beside:
    """``drafter`` for one caller, and a thread."""

    def __init__(self, drafter: ListeningDrafter) -> None:
        self._drafter = drafter
        self._lock = RLock()
        self._woken = Condition()
        self._has_news = False
        self._is_closed = False
        self._seats: dict[int, _Seat] = {}
        self._chores: deque[Callable[[], None]] = deque()
        self._restarts = drafter.restarts
        self._num_turns = 0
        self._last_busy_s = 0.0
        self.costs = Costs()  # of the drafter's steps
        self.busy_s = 0.0  # of the drafter's work, over all of its processes
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = Thread(target=self._run, name="duodec-drafter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; the drafter is the caller's."""
        with self._woken:
            self._is_closed = True
            self._woken.notify()
        if self._thread is not None:
            self._thread.join()

    @property
    def has_drafter(self) -> bool:
        return not isinstance(self._drafter, NoDrafter)

    @property
    def restarts(self) -> int:
        return self._drafter.restarts

    # --- for the caller

    def looking(self) -> AbstractContextManager[object]:
        """What was drawn stands still as long as this is held."""
        return self._lock

    def drawn(self, slot: int) -> tuple[int, CandidateTree] | None:
        """The tree under the slot's text as the thread knows it, and that text's length; to be used
        within `looking`."""
        seat = self._seats.get(slot)
        if seat is None or seat.given is None:
            return None
        tree = self._drafter.heard(slot).tree
        return None if tree is None else (len(seat.given.text), tree)

    def finish(self) -> None:
        """Do the chores that the thread had no time for."""
        with self._lock:
            while self._chores:
                self._chores.popleft()()

    def ask(
        self,
        wanted: Mapping[int, DraftRequest | None],
        chores: Sequence[Callable[[], None]] = (),
    ) -> None:
        """Draft this, or rest, by slot, and do these chores in turn; returns at once."""
        with self._lock:
            self._chores.extend(chores)
            for slot, request in wanted.items():
                seat = self._seats.setdefault(slot, _Seat())
                if request is not None or seat.wanted is not None:
                    seat.wanted, seat.is_new = request, True
        with self._woken:
            self._has_news = True
            self._woken.notify()

    # --- the thread

    def _run(self) -> None:
        while not self._is_closed:
            try:
                is_busy = self.turn()
            except Exception:  # noqa: BLE001  vLLM goes on without drafts
                _log.exception("duodec: the drafter is not listened to any more")
                return
            if is_busy:
                sleep(_PAUSE_S)
                continue
            with self._woken:
                if not self._has_news and not self._is_closed:
                    self._woken.wait(_IDLE_S)
                self._has_news = False

    def turn(self) -> bool:
        """Hand over what is asked and take in what was drafted; whether the drafter is at work."""
        for slot in self._due():
            with self._lock:  # once a slot: the caller gets in between
                self._serve(slot, self._seats[slot])
        while self._chores:
            with self._lock:
                if self._chores:
                    self._chores.popleft()()
        return any(seat.is_at_work for seat in list(self._seats.values()))

    def _due(self) -> list[int]:
        """Slots with something to do, and one more: looking at it takes in what all are sent."""
        seats = dict(self._seats)
        due = [slot for slot, seat in seats.items() if seat.is_new]
        others = [slot for slot, seat in seats.items() if seat.is_at_work] or list(seats)
        self._num_turns += 1
        return due or others[self._num_turns % len(others) :][:1] if others else []

    def _serve(self, slot: int, seat: _Seat) -> None:
        drafted = self._drafter.poll(slot)
        self._hear(drafted)
        if seat.wanted is None:
            if seat.is_new:
                self._drafter.cancel(slot)
            seat.is_new = seat.is_at_work = False
        elif seat.is_new:
            self._give(seat, seat.wanted, drafted)
        else:
            seat.is_at_work = not drafted.is_complete

    def _give(self, seat: _Seat, wanted: DraftRequest, before: Drafted) -> None:
        if before.step_s is not None:
            self.costs.observe_step(before.step_s, before.step_leaves)
        seat.given, seat.is_new, seat.is_at_work = wanted, False, True
        self._drafter.submit(wanted)

    def _hear(self, drafted: Drafted) -> None:
        """Notice a new process, which has read nothing, and how busy it is."""
        if self._drafter.restarts != self._restarts:
            self._restarts, self._last_busy_s = self._drafter.restarts, 0.0
            for seat in self._seats.values():
                seat.given, seat.is_new = None, seat.wanted is not None
        self.busy_s += max(0.0, drafted.busy_s - self._last_busy_s)
        self._last_busy_s = max(self._last_busy_s, drafted.busy_s)

"""Run a drafter with a thread that reads its messages, so that callers never wait for it.

Every message of a drafter costs its reader some microseconds, and there are hundreds between two
forward passes of a large model. So a thread reads them while the target computes, and sends
requests. Texts are sent whole: the draft model decides how much of a long one it prefills.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Condition, RLock, Thread
from time import sleep

from duodec.core.candidates import CandidateTree
from duodec.core.drafters import Drafted, Drafter, DraftRequest
from duodec.methods.request import NoDrafter
from duodec.planning.costs import Costs

_PAUSE_S = 0.002  # between two polls of a working drafter
_IDLE_S = 0.2  # and of an idle one, which may have died
_log = logging.getLogger("vllm.duodec")


@dataclass
class _SlotState:
    """One slot: its request, and the last one sent to the drafter."""

    wanted: DraftRequest | None = None
    given: DraftRequest | None = None
    is_new: bool = False  # the request was not sent yet
    is_at_work: bool = False  # the drafter is still drafting for it


class DrafterThread:
    """``drafter``, shared by one caller and a thread."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._lock = RLock()
        self._woken = Condition()
        self._has_news = False
        self._is_closed = False
        self._states: dict[int, _SlotState] = {}
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
        """End the thread; the caller closes the drafter."""
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
        """Trees do not change while this is held."""
        return self._lock

    def drawn(self, slot: int) -> tuple[int, CandidateTree] | None:
        """The tree under the slot's text, as read by the thread, and that text's length; use it
        within `looking`."""
        state = self._states.get(slot)
        if state is None or state.given is None:
            return None
        tree = self._drafter.heard(slot).tree
        return None if tree is None else (len(state.given.text), tree)

    def finish(self) -> None:
        """Run the chores that the thread had no time for."""
        with self._lock:
            while self._chores:
                self._chores.popleft()()

    def request(
        self, wanted: Mapping[int, DraftRequest | None], chores: Sequence[Callable[[], None]] = ()
    ) -> None:
        """Draft these requests (None: rest), by slot, and run these chores in turn; returns at
        once."""
        with self._lock:
            self._chores.extend(chores)
            for slot, request in wanted.items():
                state = self._states.setdefault(slot, _SlotState())
                if request is not None or state.wanted is not None:
                    state.wanted, state.is_new = request, True
        with self._woken:
            self._has_news = True
            self._woken.notify()

    # --- the thread

    def _run(self) -> None:
        while not self._is_closed:
            try:
                is_busy = self.turn()
            except Exception:  # noqa: BLE001  vLLM continues without drafts
                _log.exception("duodec: the drafter's thread has failed")
                return
            if is_busy:
                sleep(_PAUSE_S)
                continue
            with self._woken:
                if not self._has_news and not self._is_closed:
                    self._woken.wait(_IDLE_S)
                self._has_news = False

    def turn(self) -> bool:
        """Send requests and read drafts; returns whether the drafter is working."""
        for slot in self._due():
            with self._lock:  # per slot, so that the caller can take it in between
                self._serve(slot, self._states[slot])
        while self._chores:
            with self._lock:
                if self._chores:
                    self._chores.popleft()()
        return any(state.is_at_work for state in list(self._states.values()))

    def _due(self) -> list[int]:
        """Slots with something to do, and one more: polling it reads the messages of all slots."""
        states = dict(self._states)
        due = [slot for slot, state in states.items() if state.is_new]
        others = [slot for slot, state in states.items() if state.is_at_work] or list(states)
        self._num_turns += 1
        return due or others[self._num_turns % len(others) :][:1] if others else []

    def _serve(self, slot: int, state: _SlotState) -> None:
        drafted = self._drafter.poll(slot)
        self._observe(drafted)
        if state.wanted is None:
            if state.is_new:
                self._drafter.cancel(slot)
            state.is_new = state.is_at_work = False
        elif state.is_new:
            self._submit(state, state.wanted, drafted)
        else:
            state.is_at_work = not drafted.is_complete

    def _submit(self, state: _SlotState, wanted: DraftRequest, before: Drafted) -> None:
        if before.step_s is not None:
            self.costs.observe_step(before.step_s, before.step_leaves)
        state.given, state.is_new, state.is_at_work = wanted, False, True
        self._drafter.submit(wanted)

    def _observe(self, drafted: Drafted) -> None:
        """Notice a new process, which has prefilled nothing, and how busy it is."""
        if self._drafter.restarts != self._restarts:
            self._restarts, self._last_busy_s = self._drafter.restarts, 0.0
            for state in self._states.values():
                state.given, state.is_new = None, state.wanted is not None
        self.busy_s += max(0.0, drafted.busy_s - self._last_busy_s)
        self._last_busy_s = max(self._last_busy_s, drafted.busy_s)

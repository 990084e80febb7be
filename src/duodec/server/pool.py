"""Jobs into slots, first come, first served; what a slot learned and read stays with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from threading import Condition, Thread

import numpy as np

from duodec.core.protocols import Target
from duodec.core.sampling import Tokens
from duodec.engine import Engine
from duodec.errors import BadOption
from duodec.server.answering import Slot
from duodec.server.drafting import SharedDrafter
from duodec.server.errors import busy, unavailable
from duodec.server.jobs import Failed, Job, Word
from duodec.server.load import Load
from duodec.server.seats import Left, Seat, SharedTarget

Ended = Callable[[Job, str], None]
"""Told of each job that ends, and how: as OpenAI's finish reasons, ``abort`` or ``error``."""


class Pool:
    """As many answers at once as there are slots, the others wait.

    ``target`` scores several queries at once; the engine's own is not used. Where it leaves out
    branches of trees, ``trees`` computes for methods that read all of them, and ``lone`` may
    compute what is alone in the first slot.
    """

    def __init__(
        self,
        engine: Engine,
        target: Target,
        trees: Target | None = None,
        lone: Target | None = None,
        *,
        num_slots: int,
        num_queued: int,
        on_end: Ended = lambda job, reason: None,
        prepare: Callable[[bool], None] | None = None,
        num_chunk: int = 512,
    ) -> None:
        self._engine = engine
        self._on_end = on_end
        self._num_queued = num_queued
        self._load = Load(engine.costs, engine.cores_beside if engine.shares_cores else None)
        self._shared = SharedTarget(
            target, self._load, prepare=prepare or engine.prepare, num_chunk=num_chunk,
            clock=engine.clock,
        )  # fmt: skip
        drafter = SharedDrafter(engine.drafter) if engine.drafter else None
        self._slots = [
            self._slot(i, drafter, target if i or lone is None else lone, trees or target)
            for i in range(num_slots)
        ]
        self._idle = set(range(num_slots))
        self._waiting: deque[Job] = deque()
        self._condition = Condition()
        self._is_draining = False
        self._threads = [
            Thread(target=self._work, args=(slot,), name=f"duodec-slot-{slot.number}", daemon=True)
            for slot in self._slots
        ]
        for thread in self._threads:
            thread.start()

    def _slot(
        self, number: int, drafter: SharedDrafter | None, lone: Target, trees: Target
    ) -> Slot:
        seat = Seat(self._shared, number)
        engine = replace(
            self._engine, target=seat, drafter=drafter, prepare=seat.prepare,
            costs=self._load.costs(number), resources=ExitStack(), _methods={},
        )  # fmt: skip
        return Slot(number, engine, self._shared, seat, lone, trees)

    # --- for the clients' side

    @property
    def num_slots(self) -> int:
        return len(self._slots)

    @property
    def num_running(self) -> int:
        return self.num_slots - len(self._idle)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_forwards(self) -> int:
        return self._shared.num_forwards

    @property
    def states(self) -> list[tuple[Job | None, int]]:
        """By slot, what it works at, and how many tokens it has read and not forgotten."""
        return [(slot.job, self._shared.num_read(slot.number)) for slot in self._slots]

    def submit(self, jobs: Sequence[Job]) -> None:
        """Admit all of them, or none: raises ApiError when there is no room, or at the end."""
        with self._condition:
            if self._is_draining:
                raise unavailable("the server is shutting down; ask again in a moment")
            room = len(self._idle) + self._num_queued - len(self._waiting)
            if len(jobs) > self.num_slots + self._num_queued:
                raise BadOption(
                    f"{len(jobs)} answers are asked for at once, and this server takes "
                    f"{self.num_slots + self._num_queued}; ask for fewer"
                )
            if len(jobs) > room:
                raise busy(
                    1 + len(self._waiting) // self.num_slots,
                    f"{self.num_running} answers are in work and {self.num_waiting} wait; "
                    "ask again in a moment",
                )
            self._waiting.extend(jobs)
            self._assign()

    def leave(self, job: Job) -> None:
        """The job's client is gone."""
        with self._condition:
            job.leave()
            if job in self._waiting:
                self._waiting.remove(job)
                self._on_end(job, "abort")
                self._condition.notify_all()

    def drain(self, wait_s: float) -> bool:
        """Admit nothing any more, and wait for what is in work: whether it came to its end."""
        with self._condition:
            self._is_draining = True
            return self._condition.wait_for(
                lambda: not self._waiting and len(self._idle) == self.num_slots, wait_s
            )

    def end_all(self, error: Exception) -> None:
        """End what is still in work, or waits."""
        with self._condition:
            self._is_draining = True
            waiting = list(self._waiting)
            running = [slot.job for slot in self._slots if slot.job is not None]
        for job in (*waiting, *running):
            job.say(Failed(error))
            self.leave(job)

    def close(self) -> None:
        """End the threads; the engine is the caller's. Can be called twice."""
        self.end_all(unavailable("the server is shutting down"))
        for slot in self._slots:
            slot.inbox.put(None)
        for thread in self._threads:
            thread.join()
        self._shared.close()

    def warm_up(self, job: Job) -> None:
        """Answer a job that nobody counts, before there are others."""
        self._slots[0].job = job
        try:
            self._slots[0].answer(job)
        finally:
            self._slots[0].job = None

    # --- slots

    def _assign(self) -> None:
        """Waiting jobs to idle slots."""
        while self._waiting and self._idle:
            job = self._waiting.popleft()
            slot = self._slots[self._best_idle(np.array(job.ask.tokens, dtype=np.int32))]
            self._idle.remove(slot.number)
            slot.job = job
            slot.inbox.put(job)

    def _best_idle(self, text: Tokens) -> int:
        """The slot that knows most of the prompt; where none knows half of it, the first: it has
        learned most, and neighbours at the target share its forwards."""
        known = {number: self._shared.num_known(number, text) for number in sorted(self._idle)}
        number = max(known, key=lambda number: known[number])
        return number if 2 * known[number] >= len(text) else min(known)

    def _work(self, slot: Slot) -> None:
        """A slot's thread."""
        while (job := slot.inbox.get()) is not None:
            reason, word = self._outcome(slot, job)
            self._end(slot, job, reason)
            if word is not None:
                job.say(word)

    def _outcome(self, slot: Slot, job: Job) -> tuple[str, Word | None]:
        """How a job ended, and its last word where somebody waits for it."""
        if job.is_left:
            return "abort", None
        try:
            done = slot.answer(job)
        except Left:
            return "abort", None
        except Exception as error:  # noqa: BLE001  one answer ends, the slot goes on
            return "error", Failed(error)
        return done.finished.finish_reason, done

    def _end(self, slot: Slot, job: Job, reason: str) -> None:
        """The slot is free; before the job's last word, so that counters are never behind it."""
        self._on_end(job, reason)
        with self._condition:
            slot.job = None
            self._idle.add(slot.number)
            self._assign()
            self._condition.notify_all()

"""Jobs into slots, first come, first served; what a slot learned and read stays with it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from threading import Condition, Thread

import numpy as np

from duodec.core.protocols import Target
from duodec.core.round import Round
from duodec.decoding.method import Method
from duodec.decoding.session import Session
from duodec.engine import Engine
from duodec.errors import BadOption
from duodec.events import Delta, Finished, Started
from duodec.server.choosing import keep_for, method_for
from duodec.server.drafting import SharedDrafter
from duodec.server.errors import busy, unavailable
from duodec.server.jobs import Done, Failed, Job, Piece, Word
from duodec.server.load import Load
from duodec.server.logprobs import Mark
from duodec.server.seats import Left, Seat, SharedTarget

Ended = Callable[[Job, str], None]
"""Told of each job that ends, and how: as OpenAI's finish reasons, ``abort`` or ``error``."""


class _Watched(Method):
    """A method, and somebody who sees its rounds as they come."""

    def __init__(self, method: Method, watch: Callable[[Round], None]) -> None:
        self._method, self._watch = method, watch
        # of an object, what is a class's otherwise
        for name in ("name", "needs_draft_model", "uses_draft_model", "needs_datastore",
                     "is_overlapped", "reads_off_path", "learns"):  # fmt: skip
            setattr(self, name, getattr(method, name))

    def rounds(self, session: Session) -> Iterator[Round]:
        with closing(self._method.rounds(session)) as rounds:  # type: ignore[type-var]
            for done in rounds:
                self._watch(done)
                yield done


@dataclass
class _Slot:
    """A place at the target: a view of the engine with what was learned here."""

    number: int
    engine: Engine
    seat: Seat
    inbox: SimpleQueue[Job | None] = field(default_factory=SimpleQueue)
    job: Job | None = None


class Pool:
    """As many answers at once as there are slots, the others wait.

    ``target`` scores several queries at once; the engine's own is not used.
    """

    def __init__(
        self,
        engine: Engine,
        target: Target,
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
        self._load = Load(engine.costs)
        self._shared = SharedTarget(
            target, self._load, prepare=prepare or engine.prepare, num_chunk=num_chunk,
            clock=engine.clock,
        )  # fmt: skip
        drafter = SharedDrafter(engine.drafter) if engine.drafter else None
        self._slots = [self._slot(number, drafter) for number in range(num_slots)]
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

    def _slot(self, number: int, drafter: SharedDrafter | None) -> _Slot:
        seat = Seat(self._shared, number)
        engine = replace(
            self._engine, target=seat, drafter=drafter, prepare=seat.prepare,
            costs=self._load.costs(number), resources=ExitStack(), _methods={},
        )  # fmt: skip
        return _Slot(number, engine, seat)

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
    def states(self) -> list[Job | None]:
        """By slot, what it works at."""
        return [slot.job for slot in self._slots]

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
            self._answer(self._slots[0], job)
        finally:
            self._slots[0].job = None

    # --- slots

    def _assign(self) -> None:
        """Waiting jobs to idle slots: the slot that knows most of the prompt, of alike ones the
        first, which has learned most."""
        while self._waiting and self._idle:
            job = self._waiting.popleft()
            text = np.array(job.ask.tokens, dtype=np.int32)
            number = max(
                sorted(self._idle), key=lambda number: self._shared.num_known(number, text)
            )
            self._idle.remove(number)
            slot = self._slots[number]
            slot.job = job
            slot.inbox.put(job)

    def _work(self, slot: _Slot) -> None:
        """A slot's thread."""
        while (job := slot.inbox.get()) is not None:
            reason, word = self._outcome(slot, job)
            self._end(slot, job, reason)
            if word is not None:
                job.say(word)

    def _outcome(self, slot: _Slot, job: Job) -> tuple[str, Word | None]:
        """How a job ended, and its last word where somebody waits for it."""
        if job.is_left:
            return "abort", None
        try:
            done = self._answer(slot, job)
        except Left:
            return "abort", None
        except Exception as error:  # noqa: BLE001  one answer ends, the slot goes on
            return "error", Failed(error)
        return done.finished.finish_reason, done

    def _end(self, slot: _Slot, job: Job, reason: str) -> None:
        """The slot is free; before the job's last word, so that counters are never behind it."""
        self._on_end(job, reason)
        with self._condition:
            slot.job = None
            self._idle.add(slot.number)
            self._assign()
            self._condition.notify_all()

    def _answer(self, slot: _Slot, job: Job) -> Done:
        """Run the slot's engine for a job. Raises Left, and what the engine raises."""
        ask, engine, seat = job.ask, slot.engine, slot.seat
        job.start_s = engine.clock()
        method = method_for(engine, ask.method, ask.max_draft)
        seat.keep = keep_for(method, job.marks, ask.num_logprobs)
        seat.is_left = lambda: job.is_left
        job.on_leave = lambda: self._shared.wake(seat)
        num_cached = self._shared.num_known(slot.number, np.array(ask.tokens, dtype=np.int32))
        num_cached = min(num_cached, len(ask.tokens) - 1)
        events = engine.generate(
            ask.tokens, ask.sampling, method=_Watched(method, job.observe),
            max_tokens=ask.max_tokens, stop=ask.stop, choice=ask.choice, slot=slot.number,
        )  # fmt: skip
        marked, last = 0, None
        self._shared.begin(seat)
        try:
            for event in events:
                if job.is_left:
                    raise Left
                if isinstance(event, Delta):
                    # tokens of the last round may lie behind the end of the answer
                    sure = job.counts.num_tokens - len(job.rounds[-1].tokens)
                    job.say(Piece(event, tuple(job.marks[marked:sure]), job.counts))
                    marked = max(marked, min(sure, len(job.marks)))
                elif isinstance(event, Finished):
                    last = event
                else:
                    assert isinstance(event, Started)
        finally:
            events.close()  # type: ignore[attr-defined]
            self._shared.end(seat)
            job.on_leave = lambda: None
        assert last is not None, "an answer ends with Finished"
        job.rounds = list(last.stats.rounds)  # without what was drawn behind the end
        marks = _until_end(engine, job.marks[: len(last.tokens)])
        return Done(
            last, method.name, ask.sampling.seed, tuple(marks[marked:]), num_cached,
            job.arrive_s, job.start_s,
        )  # fmt: skip


def _until_end(engine: Engine, marks: list[Mark]) -> list[Mark]:
    """The marks without that of the end token."""
    return [mark for mark in marks if not engine.tokenizer.is_end(mark.token)]

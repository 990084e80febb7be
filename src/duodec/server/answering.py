"""One answer in one slot: what the engine does becomes what a job says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue

import numpy as np

from duodec.core.protocols import Target
from duodec.core.round import Round
from duodec.decoding.method import Method
from duodec.decoding.session import Session
from duodec.engine import Engine
from duodec.events import Delta, Finished
from duodec.server.choosing import keep_for, method_for
from duodec.server.jobs import Done, Job, Piece
from duodec.server.load import Load
from duodec.server.seats import Left, Seat, SharedTarget


class _Watched(Method):
    """A method whose rounds a job and the load see as they come."""

    def __init__(self, method: Method, job: Job, load: Load) -> None:
        self._method, self._job, self._load = method, job, load
        # of an object, what is a class's otherwise
        for name in ("name", "needs_draft_model", "uses_draft_model", "needs_datastore",
                     "is_overlapped", "reads_off_path", "learns"):  # fmt: skip
            setattr(self, name, getattr(method, name))

    def rounds(self, session: Session) -> Iterator[Round]:
        with closing(self._method.rounds(session)) as rounds:  # type: ignore[type-var]
            for done in rounds:
                self._job.observe(done)
                self._load.took(len(done.tokens))
                yield done


@dataclass
class Slot:
    """A place at the target: a view of the engine with what was learned here."""

    number: int
    engine: Engine
    shared: SharedTarget
    seat: Seat
    lone: Target  # computes what is alone
    trees: Target  # computes for methods that read all branches
    inbox: SimpleQueue[Job | None] = field(default_factory=SimpleQueue)
    job: Job | None = None

    def answer(self, job: Job) -> Done:
        """Run the engine for a job. Raises Left, and what the engine raises."""
        ask = job.ask
        job.start_s = self.engine.clock()
        method = method_for(self.engine, ask.method, ask.max_draft)
        self.seat.use(*self._targets(method))
        self.seat.keep = keep_for(method, job.marks, ask.num_logprobs)
        num_known = self.shared.num_known(self.number, np.array(ask.tokens, dtype=np.int32))
        with self._seated(job):
            last, num_marked = self._told(job, method)
        job.rounds = list(last.stats.rounds)  # without what was drawn behind the end
        is_end = self.engine.tokenizer.is_end
        marks = [m for m in job.marks[num_marked : len(last.tokens)] if not is_end(m.token)]
        return Done(
            last, method.name, ask.sampling.seed, tuple(marks),
            min(num_known, len(ask.tokens) - 1), job.arrive_s, job.start_s,
        )  # fmt: skip

    def _targets(self, method: Method) -> tuple[Target, Target]:
        """What computes an answer alone, and beside others."""
        if method.reads_off_path:
            return self.trees, self.trees
        return self.lone, self.shared.target

    @contextmanager
    def _seated(self, job: Job) -> Iterator[None]:
        """The job's forwards are waited for, until it leaves or ends."""
        self.seat.is_left = lambda: job.is_left
        job.on_leave = lambda: self.shared.wake(self.seat)
        self.shared.begin(self.seat)
        try:
            yield
        finally:
            self.shared.end(self.seat)
            job.on_leave = lambda: None

    def _told(self, job: Job, method: Method) -> tuple[Finished, int]:
        """Say the text as it comes: the end, and how many marks were told before it."""
        ask, num_marked = job.ask, 0
        events = self.engine.generate(
            ask.tokens, ask.sampling, method=_Watched(method, job, self.shared.load),
            max_tokens=ask.max_tokens,
            stop=ask.stop, choice=ask.choice, slot=self.number,
        )  # fmt: skip
        with closing(events):  # type: ignore[type-var]
            for event in events:
                if job.is_left:
                    raise Left
                if isinstance(event, Finished):
                    return event, num_marked
                if isinstance(event, Delta):
                    # tokens of the last round may lie behind the end of the answer
                    sure = job.counts.num_tokens - len(job.rounds[-1].tokens)
                    job.say(Piece(event, tuple(job.marks[num_marked:sure]), job.counts))
                    num_marked = max(num_marked, min(sure, len(job.marks)))
        raise AssertionError("an answer ends with Finished")

"""Step all requests together: one forward pass of the target for all that are ready.

The scheduler owns the target and the drafter's connection. It admits requests into slots, takes
each one's next need, launches one forward pass, does while the target computes all that need not
wait for its result, and sends every request its scores. A library's single completion and a
server's thirty-two run the same loop; a server runs it in a thread of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Condition
from time import perf_counter, process_time

from duodec.core.events import Delta, Finished, FinishReason
from duodec.core.protocols import (
    Drafted,
    InThisThread,
    Launched,
    Query,
    Scores,
    Target,
    has_branches,
    launch,
)
from duodec.core.round import Stats
from duodec.core.sampling import Tokens
from duodec.methods.method import Method
from duodec.methods.request import Forward, Loop, Need, Request, Score, Wait
from duodec.planning.budget import BatchBudget
from duodec.planning.costs import Costs
from duodec.scheduler.outputs import Counts, Done, Failed, Output, Piece
from duodec.scheduler.slots import Slot, Targets, best_slot

_POLL_S = 0.0005  # of waiting for one slot's draft, before others are looked at

Ended = Callable[["Task", str], None]
"""Told of each task that ends, and how: as OpenAI's finish reasons, ``abort`` or ``error``."""


class Task:
    """A request with its method, in the queue or in a slot. ``say`` is called with `Piece`s and
    then with one `Done` or `Failed`, from the thread that steps the scheduler; after `abort` with
    nothing more. `abort` may be called from any thread."""

    slot: Slot  # from admission on
    loop: Loop

    def __init__(
        self,
        request: Request,
        method: Method,
        say: Callable[[Output], None],
        *,
        full: FinishReason = "length",
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.request = request
        self.method = method
        self.say = say
        self.full = full  # why the completion ends when its text is full
        self.should_stop = should_stop  # asked each round: end with what there is
        self.arrive_s = self.start_s = request.clock()
        self.counts = Counts()
        self.is_aborted = False
        self.is_over = False  # all is said
        self.need: Need | None = None  # what it waits for
        self.deadline_s = 0.0  # of a `Wait`
        self.part: Tokens | None = None  # of a long prompt, in the next forward pass
        self.num_cached = 0
        self.num_said = 0  # logprobs that pieces have told
        self.restarts = 0
        self.first_s: float | None = None
        self.finish_s = self.arrive_s

    def abort(self) -> None:
        """Nobody waits for it any more: its slot is free within a round."""
        self.is_aborted = True


@dataclass
class _Flight:
    """One forward pass on its way."""

    start_s: float
    tasks: list[Task] = field(default_factory=list)
    queries: list[Query] = field(default_factory=list)
    launched: list[Launched] = field(default_factory=list)  # one a target
    is_here: bool = True  # computed in this thread, when its result is wanted


@dataclass
class Scheduler:
    """Use `submit`, then `launch` and `land` in turn while `launch` is true (`step` does both)."""

    targets: Targets
    costs: Costs = field(default_factory=Costs)
    num_slots: int = 1
    cores_beside: int | None = None
    """Cores that a drafter at work leaves a target on the same ones; None: it shares none."""
    prepare: Callable[[bool], None] = lambda is_beside: None
    """Shares the cores, with a drafter at work beside the target or not."""
    num_chunk: int | None = None  # tokens of a long prompt in one forward pass; None: all
    on_end: Ended = lambda task, reason: None
    clock: Callable[[], float] = perf_counter

    def __post_init__(self) -> None:
        self.budget = BatchBudget(self.costs, self.cores_beside)
        self.slots = [
            Slot(i, self.targets.of(i, reads_off_path=False, is_alone=True))
            for i in range(self.num_slots)
        ]
        self.changed = Condition()  # of what waits and what runs
        self.waiting: deque[Task] = deque()
        self.running: list[Task] = []  # by slot
        self.num_forwards = 0
        self._last_reader = -1
        self._flight: _Flight | None = None
        self._is_beside: bool | None = None  # how the cores are shared now

    # --- for its owner; `submit` and `Task.abort` also for other threads

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def submit(self, tasks: Sequence[Task]) -> None:
        """Queue them."""
        with self.changed:
            self.waiting.extend(tasks)
            self.changed.notify_all()

    def step(self) -> bool:
        """One forward pass; False when there is nothing to do."""
        if not self.launch():
            return False
        self.land()
        return True

    def launch(self) -> bool:
        """Start the next forward pass, and deliver the last one's text while it runs. False when
        nothing is left to do; then all is delivered."""
        self.land()  # where somebody else launched
        self.drop_aborted()
        self._admit()
        while self.running:
            self._await_drafts()
            if batch := self._batch():
                break
        else:
            return self.launch() if self.waiting else False
        self._share_cores()
        try:
            self._flight = self._launched(batch)
        except Exception as error:  # noqa: BLE001  whoever caused it is told
            self._flight = None
            self._blame(batch, error)
            return self.launch()
        for task in list(self.running):
            self._deliver(task)
        return True

    def land(self) -> None:
        """Wait for the forward pass in flight, if any, and send every request its scores."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        if flight.is_here:
            flight.start_s = self.clock()
        try:
            scores = [s for launched in flight.launched for s in launched.result()]
        except Exception as error:  # noqa: BLE001  whoever caused it is told
            self._blame(flight.tasks, error)
            return
        except BaseException:  # an interrupt: what these slots hold is not known
            for task in flight.tasks:
                task.slot.forget()
            raise
        self._landed(flight, scores)
        for task in list(self.running):
            if isinstance(task.need, Wait):  # its text does not wait with it
                self._deliver(task)

    @property
    def is_computing_elsewhere(self) -> bool:
        """A forward pass is in flight that this thread does not compute."""
        return self._flight is not None and not self._flight.is_here

    def release_cores(self) -> None:
        """Give the calling thread its cores back, until the next forward pass."""
        if self._is_beside:
            self.prepare(False)
            self._is_beside = False

    def close(self, error: Exception | None = None) -> None:
        """End what runs or waits; whoever waits for it is told ``error``, if there is one."""
        with self.changed:
            tasks = [*self.running, *self.waiting]
        for task in tasks:
            if error is not None and not task.is_aborted:
                task.say(Failed(error))
            task.abort()
        self.drop_aborted()
        self._flight = None

    # --- admission

    def drop_waiting(self) -> None:
        """End what was aborted in the queue; any thread may call it."""
        with self.changed:
            dropped = [task for task in self.waiting if task.is_aborted]
            for task in dropped:
                self.waiting.remove(task)
            self.changed.notify_all()
        for task in dropped:
            self.on_end(task, "abort")

    def drop_aborted(self) -> None:
        """End what nobody waits for any more."""
        if self.waiting:
            self.drop_waiting()
        for task in [task for task in self.running if task.is_aborted]:
            self._end(task, "abort")
        if not self.running and self._flight is not None and self._flight.is_here:
            self._flight = None  # nobody wants what it would compute

    def _admit(self) -> None:
        """Waiting tasks into idle slots, first come, first served."""
        while self.waiting and len(self.running) < self.num_slots:
            used = [task.slot for task in self.running]
            idle = [slot for slot in self.slots if slot not in used]
            with self.changed:
                if not self.waiting:  # aborted meanwhile
                    return
                task = self.waiting.popleft()
                task.slot = best_slot(idle, task.request.text)
                task.request.slot = task.slot.number
                self.running.append(task)
                self.running.sort(key=lambda task: task.slot.number)
            self._begin(task)

    def _begin(self, task: Task) -> None:
        request, slot = task.request, task.slot
        slot.use(self._target_of(task))
        task.start_s = self.clock()
        task.num_cached = min(slot.num_known(request.text), len(request.prompt) - 1)
        task.restarts = request.drafter.restarts
        if self.num_slots > 1:
            request.costs = self.budget.costs(slot.number)
        self.budget.begin(slot.number)
        try:
            task.loop = task.method.decode(request)
        except Exception as error:  # noqa: BLE001  one request ends, the others go on
            self._fail(task, error)
        else:
            self._advance(task, None)

    def _target_of(self, task: Task) -> Target:
        return self.targets.of(
            task.slot.number,
            reads_off_path=task.method.reads_off_path,
            is_alone=len(self.running) == 1,
        )

    # --- needs

    def _advance(self, task: Task, result: Forward | Drafted | None) -> None:
        """Send a request what it waited for, and take its next need."""
        request = task.request
        request.has_branches = has_branches(task.slot.target)
        num_rounds = request.num_rounds
        try:
            need = task.loop.send(result)
        except StopIteration:
            self._note_rounds(task, num_rounds)
            self._finish(task)
            return
        except Exception as error:  # noqa: BLE001  one request ends, the others go on
            self._fail(task, error)
            return
        self._note_rounds(task, num_rounds)
        if request.num_rounds > num_rounds and task.should_stop():
            self._finish(task)
            return
        task.need = need
        if isinstance(need, Wait):
            task.deadline_s = self.clock() + need.seconds

    def _note_rounds(self, task: Task, num_known: int) -> None:
        for done in task.request.rounds[num_known:]:
            task.counts = task.counts.plus(done)
            self.budget.took(len(done.tokens))
            task.finish_s = self.clock()
            if task.first_s is None:
                task.first_s = task.finish_s

    def _await_drafts(self) -> None:
        """Let those who wait for drafts have them, for as long as others can be kept waiting."""
        end_s: float | None = None
        while waiting := [task for task in self.running if isinstance(task.need, Wait)]:
            if len(waiting) < len(self.running):  # somebody is ready
                end_s = self.clock() + self.budget.patience_s() if end_s is None else end_s
                if self.clock() >= end_s:
                    return
            for task in waiting:
                try:
                    self._poll(task)
                except Exception as error:  # noqa: BLE001  one request ends, the others go on
                    self._fail(task, error)

    def _poll(self, task: Task) -> None:
        request, need, begin_s = task.request, task.need, self.clock()
        assert isinstance(need, Wait)
        if len(self.running) == 1:
            drafted = request.drafter.poll(request.slot, need.seconds, need.beyond)
            self._advance(task, drafted)
            return
        slice_s = min(_POLL_S, max(0.0, task.deadline_s - begin_s))
        drafted = request.drafter.poll(request.slot, slice_s, need.beyond)
        now_s = self.clock()
        # it returns early with what was waited for, or because that will not come
        if task.is_aborted or now_s - begin_s < slice_s or now_s >= task.deadline_s:
            self._advance(task, drafted)

    # --- the forward pass

    def _batch(self) -> list[Task]:
        """All who go on with a text, and one of those who read a long one."""
        batch: list[Task] = []
        readers: list[Task] = []
        for task in self.running:
            if isinstance(task.need, Score):
                if len(self.running) > 1:
                    task.slot.use(self._target_of(task))
                (readers if self._is_long(task) else batch).append(task)
        if readers:
            later = [task for task in readers if task.request.slot > self._last_reader]
            reader = (later or readers)[0]  # they take turns
            self._last_reader = reader.request.slot
            batch.append(reader)
        return batch

    def _is_long(self, task: Task) -> bool:
        """More of its text is unread than one part; then it is cut."""
        text, task.part = task.request.text, None
        if self.num_chunk is None or len(text) <= self.num_chunk:
            return False
        num_known = task.slot.num_known(text)
        if len(text) - num_known <= self.num_chunk:
            return False
        # parts end at multiples of their length, however much was known before
        task.part = text[: (num_known // self.num_chunk + 1) * self.num_chunk]
        return True

    def _launched(self, batch: Sequence[Task]) -> _Flight:
        groups: dict[int, tuple[Target, list[Task]]] = {}
        for task in batch:
            groups.setdefault(id(task.slot.target), (task.slot.target, []))[1].append(task)
        flight = _Flight(start_s=self.clock())
        for target, tasks in groups.values():
            queries = [_query(task) for task in tasks]
            flight.tasks += tasks
            flight.queries += queries
            flight.launched.append(launch(target, queries))
        flight.is_here = any(isinstance(one, InThisThread) for one in flight.launched)
        return flight

    def _landed(self, flight: _Flight, scores: Sequence[Scores]) -> None:
        end_s = self.clock()
        seconds = end_s - flight.start_s
        self.num_forwards += 1
        is_plain_work = not any(map(_reads_prompt, flight.tasks, flight.queries))
        self.budget.ended(len(self.running), end_s, process_time(), is_plain_work=is_plain_work)
        if is_plain_work:
            rows = zip(flight.queries, scores, strict=True)
            self.budget.observe({query.slot: own.num_rows for query, own in rows}, seconds)
        for task, query, own in zip(flight.tasks, flight.queries, scores, strict=True):
            task.slot.known = query.text
            if task.part is None and task in self.running:
                self._advance(task, Forward(own, flight.start_s, end_s))

    def _blame(self, tasks: Sequence[Task], error: Exception) -> None:
        """Alone, each of them shows whose fault it was; the others go on."""
        tasks = [task for task in tasks if task in self.running]
        for task in tasks:
            task.slot.forget()
        if len(tasks) == 1:
            self._fail(tasks[0], error)
            return
        for task in tasks:
            try:
                self._flight = self._launched([task])
            except Exception as own:  # noqa: BLE001  of a target that computes at once
                self._flight = None
                self._fail(task, own)
            self.land()

    def _share_cores(self) -> None:
        is_beside = any(task.request.is_drafting for task in self.running)
        if is_beside != self._is_beside:
            self.prepare(is_beside)
            self._is_beside = is_beside

    # --- what is said

    def _deliver(self, task: Task) -> None:
        """Do what was put off, and say the new text."""
        request = task.request
        try:
            request.run_deferred()
        except Exception as error:  # noqa: BLE001  one request ends, the others go on
            self._fail(task, error)
            return
        if segments := request.take_segments():
            new = tuple(request.logprobs[task.num_said :])
            task.num_said += len(new)
            task.say(Piece(Delta(segments), new, task.counts))

    def _finish(self, task: Task) -> None:
        """The completion came to its end."""
        request = task.request
        try:
            request.run_deferred()
            self._leave(task)
        except Exception as error:  # noqa: BLE001  one request ends, the others go on
            self._fail(task, error)
            return
        finished = self._finished(task)
        task.is_over = True
        self.on_end(task, finished.finish_reason)
        if segments := request.take_segments():
            task.say(Piece(Delta(segments), (), task.counts))
        logprobs = request.logprobs[task.num_said :]
        task.say(
            Done(
                finished,
                task.method.name,
                request.sampler.params.seed,
                tuple(one for one in logprobs if not request.is_end(one.token)),
                task.num_cached,
                task.arrive_s,
                task.start_s,
            )
        )

    def _finished(self, task: Task) -> Finished:
        request = task.request
        stream = request.stream
        if stream is not None:
            request.segments += stream.finish()
        return Finished(
            text=stream.text if stream is not None else "",
            tokens=tuple(request.text[len(request.prompt) :].tolist()),
            finish_reason=request.finish_reason or task.full,
            stats=Stats(
                num_prompt_tokens=len(request.prompt),
                rounds=tuple(request.rounds),
                begin_s=task.arrive_s,
                first_s=task.arrive_s if task.first_s is None else task.first_s,
                finish_s=task.finish_s,
                drafter_restarts=request.drafter.restarts - task.restarts,
            ),
        )

    def _fail(self, task: Task, error: Exception) -> None:
        self._end(task, "error")
        if not task.is_aborted:
            task.say(Failed(error))

    def _end(self, task: Task, reason: str) -> None:
        """It does not come to its end."""
        task.is_over = True
        with suppress(Exception):
            self._leave(task)
        self.on_end(task, reason)

    def _leave(self, task: Task) -> None:
        """Free the task's slot, and let its method put away what it learned."""
        with self.changed:
            if task not in self.running:
                return
            self.running.remove(task)
            self.changed.notify_all()
        request = task.request
        task.need = None
        self.budget.end(request.slot)
        try:
            task.loop.close()
        finally:
            request.drafter.cancel(request.slot)
            if not self.running:
                self.release_cores()


def _query(task: Task) -> Query:
    """What the next forward pass scores of it."""
    request, need = task.request, task.need
    assert isinstance(need, Score)
    if task.part is not None:
        return Query(request.slot, task.part, sampler=request.sampler)
    return request.query(need)


def _reads_prompt(task: Task, query: Query) -> bool:
    """More than a round's tokens are unread: a prompt, or a text that another target knew."""
    if len(query.text) <= query.sampler.num_prompt_tokens or not len(task.slot.known):
        return True
    return len(query.text) - task.slot.num_known(query.text) > task.request.max_width + 1

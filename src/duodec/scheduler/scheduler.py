"""Step all requests together: one forward pass of the target for all that are ready.

The scheduler owns the target and the drafter's connection. It admits requests into slots, takes
each one's next need, and launches one forward pass. While the target computes, it does all work
that need not wait for the result. Then it sends every request its scores. A library's single
completion and a server's thirty-two run the same loop; a server runs it in a thread of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Condition
from time import perf_counter, process_time

from duodec.core.drafters import Drafted
from duodec.core.sampling.grammar import GrammarEnded
from duodec.core.sampling.sampler import Tokens
from duodec.core.targets import Launched, Proposed, Query, Scores, Target
from duodec.errors import ComputeFailed
from duodec.methods.prompt_logprobs import decode
from duodec.methods.request import Forward, Score, Wait
from duodec.planning.budget import BatchBudget
from duodec.planning.costs import Costs
from duodec.scheduler.outputs import Failed
from duodec.scheduler.queue import Queue
from duodec.scheduler.rehearsal import Rehearsal
from duodec.scheduler.scheduled_request import ScheduledRequest
from duodec.scheduler.slots import Slot, best_slot

_POLL_S = 0.0005  # wait for one slot's draft, before others are looked at

Ended = Callable[[ScheduledRequest, str], None]
"""A callback for each entry that ends. The reason is one of OpenAI's finish reasons, ``abort`` or
``error``."""


@dataclass
class _Flight:
    """Hold one forward pass in flight."""

    start_s: float
    entries: Sequence[ScheduledRequest]
    queries: Sequence[Query]
    caches: Set[int]  # caches that compute it
    launched: Launched
    is_here: bool  # computed in this thread, when its result is requested


@dataclass
class Scheduler:
    """Call `submit`, then `launch` and `finish_forward` in turn while `launch` is true; `step` does
    both."""

    target: Target
    costs: Costs = field(default_factory=Costs)
    num_slots: int = 1
    cores_for_target: int | None = None
    """The cores that a working drafter leaves to a target on the same cores; None if it shares
    none."""
    prepare: Callable[[bool], None] = lambda is_drafting: None
    """Share the cores of the target, or give it all of them."""
    is_crowded: Callable[[], bool] = lambda: False
    """Return whether another thread computes for long. Then the target leaves cores as for a
    drafter: with more threads than cores, those that have a core spin until the others do."""
    num_chunk: int | None = None  # tokens of a long prompt in one forward pass; None: all
    num_chunk_in_company: int | None = None  # the same while others decode; None: as many
    most_slots: int | None = None  # slots for entries that were submitted together; None: all
    on_end: Ended = lambda entry, reason: None
    warm_up: Callable[[], None] = lambda: None
    """Run the code between two forward passes once, so that it is in the processor's caches."""
    clock: Callable[[], float] = perf_counter

    def __post_init__(self) -> None:
        cache_for = partial(self.target.cache_for, reads_off_path=False)
        shared = cache_for(0, is_alone=False).number
        self.budget = BatchBudget(self.costs, self.cores_for_target, shared=shared)
        self.slots = [Slot(i, cache_for(i, is_alone=True)) for i in range(self.num_slots)]
        self.changed = Condition()  # notified of changes to waiting and running requests
        self.waiting = Queue()
        self.running: list[ScheduledRequest] = []  # by slot
        self.num_forwards = 0
        self._last_prefill = -1
        self._is_postponed = False  # the last forward pass postponed prefills
        self._flight: _Flight | None = None
        self._is_sharing: bool | None = None  # the last forward pass shared the cores
        self.has_all_cores = False  # a forward pass computes on all of them now
        self._rehearsal = Rehearsal(self.warm_up, self.clock)
        # Bookkeeping of forward passes that is still to be done.
        self._accounts: list[Callable[[], None]] = []

    # --- for its owner; `submit` and `ScheduledRequest.abort` also for other threads

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def submit(self, entries: Sequence[ScheduledRequest]) -> None:
        """Queue entries; they take turns with those of other calls."""
        with self.changed:
            self.waiting.extend(entries)
            self.changed.notify_all()

    def step(self) -> bool:
        """Run one forward pass; return False when there is nothing to do."""
        if not self.launch():
            return False
        self.finish_forward()
        return True

    def launch(self) -> bool:
        """Start the next forward pass, and deliver the last one's text while it runs. Returns False
        when nothing is left to do; then all is delivered."""
        if self._flight is not None:  # another caller launched
            self.finish_forward()
        self.drop_aborted()
        if self.waiting:
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
        self._settle()
        for entry in list(self.running):
            self._deliver(entry)
        return True

    def finish_forward(self) -> None:
        """Wait for the forward pass in flight, if any, and send every request its scores."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        begin_s = self.clock()
        if flight.is_here:
            flight.start_s = begin_s
            self.has_all_cores = not self._is_sharing
        due_s = flight.launched.due_s
        late_s = max(0.0, begin_s - due_s)
        try:
            if len(flight.entries) == 1 and not flight.is_here:
                self._rehearse(flight)
            scores = flight.launched.result()
        except Exception as error:  # noqa: BLE001  whoever caused it is told
            self._blame(flight.entries, error)
            return
        except BaseException:  # after an interrupt the content of these slots is not known
            for entry in flight.entries:
                entry.slot.forget()
            raise
        finally:
            self.has_all_cores = False
        if late_s:  # this is the caller's time, not the target's
            for entry in flight.entries:
                entry.request.outside_s += late_s
        self._take_scores(flight, scores, due_s if late_s else self.clock())

    @property
    def is_computing_elsewhere(self) -> bool:
        """Return whether a forward pass is in flight that this thread does not compute."""
        return self._flight is not None and not self._flight.is_here

    def release_cores(self) -> None:
        """Give the calling thread its cores back, until the next forward pass."""
        if self._is_sharing:
            self.prepare(False)
            self._is_sharing = False

    def close(self, error: Exception | None = None) -> None:
        """End all running and waiting requests, and send them ``error``, if there is one."""
        with self.changed:
            entries = [*self.running, *self.waiting]
        for entry in entries:
            if error is not None and not entry.is_aborted:
                entry.on_output(Failed(error))
            entry.abort()
        self.drop_aborted()
        self._flight = None

    # --- admission

    def drop_waiting(self) -> None:
        """End aborted requests in the queue; any thread may call it."""
        with self.changed:
            dropped = [entry for entry in self.waiting if entry.is_aborted]
            if dropped:
                self.waiting.drop(dropped)
            self.changed.notify_all()
        for entry in dropped:
            self.on_end(entry, "abort")

    def drop_aborted(self) -> None:
        """End aborted requests."""
        if self.waiting:
            self.drop_waiting()
        for entry in [entry for entry in self.running if entry.is_aborted]:
            self._end(entry, "abort")
        if not self.running and self._flight is not None and self._flight.is_here:
            self._flight = None  # its result is not needed

    def _admit(self) -> None:
        """Admit waiting entries into idle slots, in the order of the queue."""
        while self.waiting and len(self.running) < self.num_slots:
            used = [entry.slot for entry in self.running]
            idle = [slot for slot in self.slots if slot not in used]
            with self.changed:
                taken = Counter(entry.submission for entry in self.running)
                most = self.most_slots or self.num_slots
                entry = self.waiting.pop([own for own, num in taken.items() if num >= most])
                if entry is None:  # all were aborted meanwhile, or have as many as they may
                    return
                entry.slot = best_slot(idle, entry.request.scored_text, entry.request.owner)
                entry.request.slot = entry.slot.number
                self.running.append(entry)
                self.running.sort(key=lambda entry: entry.slot.number)
            self._begin(entry)

    def _begin(self, entry: ScheduledRequest) -> None:
        request, slot = entry.request, entry.slot
        self._settle()
        if slot.owner != request.owner:
            slot.belong_to(request.owner)
            self.target.forget(slot.number)
        self._choose_cache(entry)
        entry.start_s = self.clock()
        if self.target.traits.copies_texts:
            entry.others = tuple(own for own in self.slots if own is not slot)
        entry.num_restarts = request.drafter.restarts
        if self.num_slots > 1:
            request.costs = self.budget.costs(slot.number)
        self.budget.begin(slot.number)
        try:
            entry.loop = decode(entry.method, request)
        except Exception as error:  # noqa: BLE001  one request ends, the others go on
            self._fail(entry, error)
        else:
            self._advance(entry, None)

    def _choose_cache(self, entry: ScheduledRequest) -> None:
        """Choose the cache that computes a request, given the other requests that are running
        now."""
        slot = entry.slot
        slot.cache = self.target.cache_for(
            slot.number,
            reads_off_path=entry.method.reads_off_path,
            is_alone=len(self.running) == 1,
        )
        self.budget.use(slot.number, slot.cache.number)

    # --- needs

    def _advance(self, entry: ScheduledRequest, result: Forward | Drafted | None) -> None:
        """Send a request what it waited for, and take its next need."""
        if entry.is_aborted:  # while the target or the drafter worked for it
            self._end(entry, "abort")
            return
        request = entry.request
        request.traits = entry.slot.cache.traits
        num_rounds = request.num_rounds
        need = None
        try:
            need = entry.loop.send(result)
        except StopIteration:
            pass
        except GrammarEnded:
            request.finish_reason = "stop"
        except Exception as error:  # noqa: BLE001  one request ends, the others go on
            self._fail(entry, error)
            return
        except BaseException:  # an interrupt ends the coroutine that it hits
            self._fail(entry, ComputeFailed("an interrupt ended this completion; ask again"))
            raise
        if request.num_rounds > num_rounds:
            self._accounts.append(partial(self._note_round, entry, num_rounds, self.clock()))
            if entry.should_stop is not None and entry.should_stop():
                need = None
        entry.need = need
        if need is None:
            self._finish(entry)
        elif isinstance(need, Wait):
            entry.deadline_s = self.clock() + need.seconds
            self._settle()
            self._deliver(entry)  # its text does not wait with it

    def _await_drafts(self) -> None:
        """Wait for drafts that requests need, as long as other requests can be kept waiting."""
        end_s: float | None = None
        while waiting := [entry for entry in self.running if isinstance(entry.need, Wait)]:
            for entry in waiting:
                if len(waiting) < len(self.running):  # some request is ready
                    end_s = self.clock() + self.budget.patience_s() if end_s is None else end_s
                    if self.clock() >= end_s:
                        return
                try:
                    self._poll(entry)
                except Exception as error:  # noqa: BLE001  one request ends, the others go on
                    self._fail(entry, error)

    def _poll(self, entry: ScheduledRequest) -> None:
        request, need, begin_s = entry.request, entry.need, self.clock()
        assert isinstance(need, Wait)
        if len(self.running) == 1:
            drafted = request.drafter.poll(request.slot, need.seconds, need.beyond)
            self._advance(entry, drafted)
            return
        slice_s = min(_POLL_S, max(0.0, entry.deadline_s - begin_s))
        drafted = request.drafter.poll(request.slot, slice_s, need.beyond)
        now_s = self.clock()
        # It returns early with what was waited for, or because that will not come.
        if entry.is_aborted or now_s - begin_s < slice_s or now_s >= entry.deadline_s:
            self._advance(entry, drafted)

    # --- the forward pass

    def _batch(self) -> list[ScheduledRequest]:
        """Return the requests of the next forward pass. All that decode are in it. Requests that
        prefill take turns: together they have at most the tokens of one part of a long text, or
        there is one of them. None prefills together with drafts that are longer than that, but then
        one does in the next forward pass."""
        due = [entry for entry in self.running if isinstance(entry.need, Score)]
        if len(self.running) > 1:
            for entry in due:
                self._choose_cache(entry)
        num_chunk = self.num_chunk_in_company or self.num_chunk
        if num_chunk is None:
            return due
        prefills = [entry for entry in due if entry.is_long(num_chunk) or entry.is_at_prompt]
        batch = [entry for entry in due if entry not in prefills]
        if all(entry.is_at_prompt for entry in self.running):
            num_chunk = self.num_chunk  # no request waits for a larger part
        elif self.is_crowded():
            num_chunk = -(-num_chunk // 2)  # fewer cores compute it
        num_drafted = sum(entry.num_unread - 1 for entry in batch)
        self._is_postponed = (
            bool(prefills) and not self._is_postponed and num_drafted > (num_chunk or num_drafted)
        )
        if self._is_postponed:
            return batch
        num_read = 0
        for entry in sorted(prefills, key=lambda one: one.request.slot <= self._last_prefill):
            entry.is_long(num_chunk)
            num_own = entry.num_unread
            if num_read and num_chunk is not None and num_read + num_own > num_chunk:
                break
            num_read += num_own
            self._last_prefill = entry.request.slot
            batch.append(entry)
        return batch

    def _launched(self, batch: Sequence[ScheduledRequest]) -> _Flight:
        start_s, queries = self.clock(), [entry.query() for entry in batch]
        return _Flight(
            start_s,
            batch,
            queries,
            {query.cache for query in queries},
            self.target.launch(queries),
            is_here=not self.target.traits.launches,
        )

    def _rehearse(self, flight: _Flight) -> None:
        """Prepare what follows the forward pass of a single request."""
        (entry,), (query,) = flight.entries, flight.queries
        if entry.part is not None or entry not in self.running:
            return
        try:
            self._rehearsal.before_end(entry.request, flight.start_s, len(query.draft))
        except Exception as error:  # noqa: BLE001  one request ends, the others go on
            self._fail(entry, error)

    def _take_scores(self, flight: _Flight, scores: Sequence[Scores], end_s: float) -> None:
        known = [entry.slot.known for entry in flight.entries]
        num_rows = [own.num_rows for own in scores]  # these end with the next forward pass
        proposed = {
            query.slot: own.proposed()
            for query, own in zip(flight.queries, scores, strict=True)
            if query.heads is not None
        }
        account = partial(
            self._note_forward, flight, num_rows, proposed, known, len(self.running), end_s
        )
        self._accounts.append(account)
        if flight.is_here or len(self.running) > 1:  # nothing to gain, or the cost is shared
            self._settle()
        parts = zip(flight.entries, flight.queries, scores, known, strict=True)
        for entry, query, own, before in parts:
            entry.slot.know(query.text)
            if entry.is_at_prompt:
                entry.note_computed(query, own, before)
            if entry.part is None and entry in self.running:
                self._advance(entry, Forward(own, flight.start_s, end_s))
        if len(self.running) > 1:
            self._settle()

    def _blame(self, entries: Sequence[ScheduledRequest], error: Exception) -> None:
        """Run each request alone to find which one failed; the others go on."""
        entries = [entry for entry in entries if entry in self.running]
        for entry in entries:
            entry.slot.forget()
        if len(entries) == 1:
            self._fail(entries[0], error)
            return
        for entry in entries:
            try:
                self._flight = self._launched([entry])
            except Exception as own:  # noqa: BLE001  of a target that computes at once
                self._flight = None
                self._fail(entry, own)
            self.finish_forward()

    def _share_cores(self) -> None:
        requests = [entry.request for entry in self.running]
        is_drafting = any(one.is_drafting and not one.takes_turns for one in requests)
        is_sharing = is_drafting or self.is_crowded()
        if is_sharing != self._is_sharing:
            self.prepare(is_sharing)
            self._is_sharing = is_sharing

    # --- accounts: what one request's next forward pass need not wait for

    def _settle(self) -> None:
        """Record what forward passes brought and cost, in their order."""
        while self._accounts:
            self._accounts.pop(0)()

    def _note_forward(
        self,
        flight: _Flight,
        num_rows: Sequence[int],
        proposed: Mapping[int, Proposed],
        known: Sequence[Tokens],
        num_running: int,
        end_s: float,
    ) -> None:
        self.num_forwards += 1
        for slot, own in proposed.items():
            self.budget.observe_heads(slot, own)
        parts = zip(flight.entries, flight.queries, known, strict=True)
        is_plain_work = not any(entry.has_prefill(query, text) for entry, query, text in parts)
        self.budget.ended(num_running, end_s, process_time(), is_plain_work=is_plain_work)
        if is_plain_work and not any(entry.request.is_contended for entry in flight.entries):
            by_slot = dict(zip([query.slot for query in flight.queries], num_rows, strict=True))
            heads_s = sum(own.seconds for own in proposed.values())
            self.budget.observe(by_slot, end_s - flight.start_s - heads_s, flight.caches)

    def _note_round(self, entry: ScheduledRequest, number: int, now_s: float) -> None:
        done = entry.request.rounds[number]
        entry.counts = entry.counts.plus(done)
        self.budget.count_tokens(len(done.tokens))
        entry.finish_s = now_s
        if entry.first_s is None:
            entry.first_s = now_s

    # --- what is said

    def _deliver(self, entry: ScheduledRequest) -> None:
        """Do deferred work, and send the new text."""
        try:
            entry.request.run_deferred()
        except Exception as error:  # noqa: BLE001  one request ends, the others go on
            self._fail(entry, error)
            return
        if piece := entry.text_so_far():
            entry.on_output(piece)

    def _finish(self, entry: ScheduledRequest) -> None:
        """Finish a completion that came to its end."""
        self._settle()
        try:
            entry.request.run_deferred()
            self._leave(entry)
        except Exception as error:  # noqa: BLE001  one request ends, the others go on
            self._fail(entry, error)
            return
        finished = entry.finished()
        entry.is_over = True
        self.on_end(entry, finished.finish_reason)
        for output in entry.final_outputs(finished):
            if not entry.is_aborted:  # aborted by the receiver of the output before
                entry.on_output(output)

    def _fail(self, entry: ScheduledRequest, error: Exception) -> None:
        self._end(entry, "error")
        if not entry.is_aborted:
            entry.on_output(Failed(error))

    def _end(self, entry: ScheduledRequest, reason: str) -> None:
        """End a request before its completion came to its end."""
        entry.is_over = True
        with suppress(Exception):
            self._leave(entry)
        self.on_end(entry, reason)

    def _leave(self, entry: ScheduledRequest) -> None:
        """Free the entry's slot, and let its method store what it learned."""
        with self.changed:
            if entry not in self.running:
                return
            self.running.remove(entry)
            self.changed.notify_all()
        self._settle()
        request = entry.request
        entry.need = None
        self.budget.end(request.slot)
        try:
            entry.loop.close()
        finally:
            request.drafter.cancel(request.slot)
            if request.sampler.mask is not None:  # its last draft may be remembered for long
                request.sampler.mask.close()
            if not self.running:
                self.release_cores()

"""One target for many: what is asked at the same time is scored in one forward.

Each answer runs in a thread of its own and asks its `Seat` as if that were the target. One thread
makes all forwards of several: libraries keep their workers by the thread that calls them, and
there is no lock that a slow client could hold. An answer that is alone makes its own, which spares
it two changes of thread at every token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Condition, Event, Thread, get_ident
from time import perf_counter, process_time

import numpy as np

from duodec.core.prefix import common_prefix
from duodec.core.protocols import Query, Scores, Target, has_branches
from duodec.core.sampling import Tokens
from duodec.server.keeping import Keep, keep_path
from duodec.server.load import Load

_NOTHING: Tokens = np.empty(0, dtype=np.int32)


class Left(Exception):
    """Nobody waits for this answer any more."""


class Seat:
    """The `Target` of one slot, for one answer at a time."""

    def __init__(self, shared: SharedTarget, slot: int) -> None:
        self._shared = shared
        self.slot = slot
        self.target = shared.target  # what computes this answer
        self._joint = shared.target  # what does beside others
        self.keep: Keep = keep_path
        self.is_beside = False  # a drafter computes while the target does
        self.is_left: Callable[[], bool] = lambda: False

    def prepare(self, is_beside: bool) -> None:
        """Takes the place of the engine's hook: the cores are shared for all answers at once."""
        self.is_beside = is_beside

    def use(self, target: Target, joint: Target) -> None:
        """Let ``target`` compute the next answer, and ``joint`` as soon as others are at work."""
        self._joint = joint
        self._move(joint if self._shared.is_busy else target)

    def join(self) -> None:
        """Others are at work."""
        self._move(self._joint)

    def _move(self, target: Target) -> None:
        """What the last target knew is not known to another one."""
        if target is not self.target:
            self.target = target
            self._shared.forget(self.slot)

    @property
    def has_branches(self) -> bool:
        """The target scores all of a tree, not its first chain only."""
        return has_branches(self.target)

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        """Raises what the target raises, and Left."""
        (query,) = queries
        return [self._shared.ask(self, query)]


class _Asked:
    """A query in the making, and its outcome."""

    def __init__(self, seat: Seat, query: Query) -> None:
        self.seat, self.query = seat, query
        self.answered = Event()
        self.outcome: Scores | Exception | None = None
        self.num_part: int | None = None  # tokens of its text in the next forward; None: all of it

    def part(self) -> Query:
        """What the next forward scores of it."""
        if self.num_part is None:
            return self.query
        text = self.query.text[: self.num_part]
        return Query(self.query.slot, text, sampler=self.query.sampler)

    def end(self, outcome: Scores | Exception) -> None:
        self.outcome = outcome
        self.answered.set()


class SharedTarget:
    """The seats' common target. A forward begins when all who are at work have asked, or after a
    moment of patience. Long prompts are read in parts of ``num_chunk`` tokens, one in a forward,
    so that the others go on meanwhile, and who leaves is noticed."""

    def __init__(
        self,
        target: Target,
        load: Load,
        *,
        prepare: Callable[[bool], None] = lambda is_beside: None,
        num_chunk: int = 512,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.target = target
        self.load = load
        self._prepare = prepare
        self._prepared: tuple[int, bool] | None = None  # which thread, and how
        self._num_chunk = num_chunk
        self._clock = clock
        self._condition = Condition()
        self._active: set[Seat] = set()
        self._asked: list[_Asked] = []  # first come, first
        self._known: dict[int, Tokens] = {}  # by slot, the text that was read last
        self._is_closed = False
        self._has_lone = False  # an answer that is alone makes its forward
        self.num_forwards = 0
        self._thread = Thread(target=self._run, name="duodec-target", daemon=True)
        self._thread.start()

    # --- for the slots' threads

    def begin(self, seat: Seat) -> None:
        """An answer begins in this seat: forwards wait for it."""
        with self._condition:
            self.load.begin(seat.slot)
            self._active.add(seat)

    def end(self, seat: Seat) -> None:
        with self._condition:
            self.load.end(seat.slot)
            self._active.discard(seat)
            self._condition.notify()

    @property
    def is_busy(self) -> bool:
        """Some answer is at work."""
        return bool(self._active)

    def ask(self, seat: Seat, query: Query) -> Scores:
        asked = _Asked(seat, query)
        with self._condition:
            if seat.is_left() or self._is_closed:
                raise Left
            is_alone = len(self._active) == 1
            if not is_alone:
                seat.join()
            is_lone = is_alone and not self._asked and not self._is_long(asked)
            if is_lone:
                self._has_lone = True
            else:
                self._asked.append(asked)
                self._condition.notify()
        if is_lone:
            self._forward_alone(asked)
        else:
            asked.answered.wait()
        if asked.outcome is None:
            raise Left
        if isinstance(asked.outcome, Exception):
            raise asked.outcome
        return asked.outcome

    def wake(self, seat: Seat) -> None:
        """Somebody left: what that seat waits for is not waited for any more."""
        with self._condition:
            for asked in [a for a in self._asked if a.seat is seat]:
                self._asked.remove(asked)
                asked.answered.set()
            self._condition.notify()

    def num_known(self, slot: int, text: Tokens) -> int:
        """Tokens of a text that a slot has read already."""
        return common_prefix(self._known.get(slot, _NOTHING), text)

    def num_read(self, slot: int) -> int:
        """Tokens of the text that a slot has read last."""
        return len(self._known.get(slot, _NOTHING))

    def forget(self, slot: int) -> None:
        """What the slot has read is not known where it asks next."""
        self._known.pop(slot, None)

    def close(self) -> None:
        """End the thread; whoever asks gets Left."""
        with self._condition:
            self._is_closed = True
            self._condition.notify()
        self._thread.join()

    def _forward_alone(self, asked: _Asked) -> None:
        try:
            self._forward([asked])
        finally:
            with self._condition:
                self._has_lone = False
                self._condition.notify()

    # --- the thread of the forwards

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            try:
                self._forward(batch)
            except Exception as error:  # noqa: BLE001  a mistake of ours must not end this thread
                for asked in batch:
                    if asked.outcome is None:
                        asked.end(error)
            with self._condition:
                for asked in batch:
                    if asked.outcome is not None:
                        continue
                    if asked.seat.is_left():
                        asked.answered.set()
                    else:
                        self._asked.append(asked)  # behind others: readers take turns
        for asked in self._asked:
            asked.answered.set()

    def _next(self) -> list[_Asked] | None:
        """Who takes part in the next forward; None at the end."""
        with self._condition:
            while self._has_lone or not (self._asked or self._is_closed):
                self._condition.wait()
            if len(self._asked) < len(self._active):
                self._await_others(self._clock() + self.load.patience_s())
            if self._is_closed:
                return None
            batch = self._chosen()
            self._asked = [asked for asked in self._asked if asked not in batch]
            return batch

    def _await_others(self, end_s: float) -> None:
        while len(self._asked) < len(self._active) and not self._is_closed:
            if (left_s := end_s - self._clock()) <= 0:
                break
            self._condition.wait(left_s)

    def _chosen(self) -> list[_Asked]:
        """All who continue a text, and the first of those who read a long one."""
        batch, has_reader = [], False
        for asked in self._asked:
            is_long = self._is_long(asked)
            if is_long and has_reader:
                continue
            has_reader = has_reader or is_long
            asked.num_part = self._part_end(asked) if is_long else None
            batch.append(asked)
        return batch

    def _is_long(self, asked: _Asked) -> bool:
        """More of its text is unread than one part."""
        text = asked.query.text
        if len(text) <= self._num_chunk:
            return False
        return len(text) - self.num_known(asked.seat.slot, text) > self._num_chunk

    def _part_end(self, asked: _Asked) -> int:
        """Parts end at multiples of their length, however much was known before."""
        num_known = self.num_known(asked.seat.slot, asked.query.text)
        return (num_known // self._num_chunk + 1) * self._num_chunk

    def _forward(self, batch: list[_Asked]) -> None:
        if not batch:
            return
        self._share_cores()
        queries = [asked.part() for asked in batch]
        begin_s = self._clock()
        try:
            answers = _scores(batch, queries)
        except Exception as error:  # noqa: BLE001  whoever caused it is told
            self._blame(batch, error)
            return
        end_s = self._clock()
        seconds = end_s - begin_s
        self.num_forwards += 1
        is_plain_work = not any(self._reads_prompt(query) for query in queries)
        self.load.ended(len(self._active), end_s, process_time(), is_plain_work=is_plain_work)
        if is_plain_work:
            rows = zip(queries, answers, strict=True)
            self.load.observe({q.slot: scores.num_rows for q, scores in rows}, seconds)
        for asked, query, scores in zip(batch, queries, answers, strict=True):
            self._known[asked.seat.slot] = query.text
            if asked.num_part is None:
                asked.end(_kept(asked, scores))

    def _reads_prompt(self, query: Query) -> bool:
        """More than a round's tokens are unread: a prompt, or a text that another target knew."""
        return query.slot not in self._known or len(query.text) <= query.sampler.num_prompt_tokens

    def _blame(self, batch: list[_Asked], error: Exception) -> None:
        """Alone, each of them shows whose fault it was; the others go on."""
        for asked in batch:
            self._known.pop(asked.seat.slot, None)
        if len(batch) == 1:
            batch[0].end(error)
        else:
            for asked in batch:
                self._forward([asked])

    def _share_cores(self) -> None:
        is_beside = any(seat.is_beside for seat in list(self._active))
        if (prepared := (get_ident(), is_beside)) != self._prepared:
            self._prepare(is_beside)
            self._prepared = prepared


def _scores(batch: Sequence[_Asked], queries: Sequence[Query]) -> list[Scores]:
    """Each query's, of the target that computes it."""
    answers: dict[int, Scores] = {}
    for target in {id(asked.seat.target): asked.seat.target for asked in batch}.values():
        own = [query for asked, query in zip(batch, queries, strict=True)
               if asked.seat.target is target]  # fmt: skip
        answers |= {q.slot: scores for q, scores in zip(own, target.score(own), strict=True)}
    return [answers[query.slot] for query in queries]


def _kept(asked: _Asked, scores: Scores) -> Scores | Exception:
    try:
        return asked.seat.keep(asked.query, scores)
    except Exception as error:  # noqa: BLE001  its own answer ends, not everybody's
        return error

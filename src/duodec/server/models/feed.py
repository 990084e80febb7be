"""Hand a request's outputs to the event loop, one after the other.

Text for people need not come a token at a time, and waking the loop costs what a forward could
have used: after the first word, those of a short interval are told together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter

from duodec.scheduler.outputs import Done, Failed, Output, Piece
from duodec.scheduler.task import Task
from duodec.server.errors import timed_out
from duodec.server.models.scheduler_thread import SchedulerThread

Told = tuple[int, Piece | Done]
"""A word, and which of the choices says it."""


class Feed:
    """Submits the tasks; raises ApiError where there is no room. Pieces are told every
    ``interval_s`` seconds at most. The owner calls `leave` when all is told, or nobody listens any
    more, once or again; it calls ``on_leave``."""

    def __init__(
        self,
        scheduler: SchedulerThread,
        tasks: Sequence[Task],
        timeout_s: float,
        interval_s: float = 0.0,
        begin_s: float | None = None,
        on_leave: Callable[[], None] = lambda: None,
    ) -> None:
        self._scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self._words: deque[tuple[int, Output]] = deque()
        self._news: asyncio.Future[None] | None = None  # somebody waits for a word
        self._is_listening = False  # a piece is news, not only what ends an answer
        self._timeout_s = timeout_s
        self._end_s = (perf_counter() if begin_s is None else begin_s) + timeout_s
        self._interval_s = interval_s
        self._quiet_s = 0.0  # until then, pieces are no news
        self._tasks = tasks
        self._on_leave = on_leave
        for i, task in enumerate(tasks):
            task.say = partial(self._say, i)
        self._num_open = len(tasks)
        self.num_choices = len(tasks)
        scheduler.submit(tasks)

    @property
    def is_over(self) -> bool:
        """Every answer has come to its end."""
        return not self._num_open

    @property
    def left_s(self) -> float:
        """Until the request has taken as long as it may."""
        return self._end_s - perf_counter()

    async def next(self, wait_s: float) -> list[Told]:
        """The next words, pieces of a choice as one; none when there were none for so long.
        Raises what ended an answer, and ApiError when the request takes too long."""
        if (left_s := self.left_s) <= 0:
            raise timed_out(self._timeout_s)
        await self._hear(min(wait_s, left_s))
        if self._words and isinstance(failed := self._words[0][1], Failed):
            raise failed.error
        told = list(_joined(self._taken()))
        if told:
            self._quiet_s = perf_counter() + self._interval_s
        self._num_open -= sum(isinstance(word, Done) for _, word in told)
        return told

    def leave(self) -> None:
        """Nobody listens any more: what is still in work ends."""
        for task in self._tasks:
            self._scheduler.abort(task)
        self._tasks = ()  # they know this feed: what they hold is freed now, not some time later
        self._on_leave()

    def _taken(self) -> Iterator[Told]:
        """What there is, up to a failure."""
        while self._words:
            index, word = self._words[0]
            if isinstance(word, Failed):
                return
            yield index, word
            self._words.popleft()

    async def _hear(self, seconds: float) -> None:
        """Until there is something to tell, or for so long."""
        end_s = perf_counter() + seconds
        if self._quiet_s > perf_counter() and not (self._words and _ends(self._words[-1][1])):
            await self._wait(min(end_s, self._quiet_s))
        self._is_listening = True
        if not self._words:
            await self._wait(end_s)
        self._is_listening = False

    async def _wait(self, end_s: float) -> None:
        """For news, or until then; without the task that `asyncio.wait_for` makes each time."""
        self._news = self._loop.create_future()
        timer = self._loop.call_later(max(0.0, end_s - perf_counter()), self._wake)
        try:
            await self._news
        finally:
            timer.cancel()
            self._news = None

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _say(self, index: int, word: Output) -> None:
        """From a slot's thread."""
        self._words.append((index, word))
        if self._is_listening or _ends(word):
            with suppress(RuntimeError):  # the loop is closed: the server has ended
                self._loop.call_soon_threadsafe(self._wake)


def _ends(word: Output) -> bool:
    return not isinstance(word, Piece)


def _joined(words: Iterator[Told]) -> Iterator[Told]:
    """The pieces of each choice as one, before what ends it."""
    pieces: dict[int, Piece] = {}
    for index, word in words:
        if isinstance(word, Piece):
            pieces[index] = pieces[index].plus(word) if index in pieces else word
            continue
        if index in pieces:
            yield index, pieces.pop(index)
        yield index, word
    yield from pieces.items()

"""A request's jobs as the event loop sees them: their words, one after the other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter

from duodec.server.errors import timed_out
from duodec.server.jobs import Ask, Done, Failed, Job, Word
from duodec.server.pool import Pool


class Feed:
    """Submits the jobs; raises ApiError where there is no room. The owner calls `leave`, at the
    end or before it."""

    def __init__(self, pool: Pool, asks: Sequence[Ask], timeout_s: float) -> None:
        self._pool = pool
        self._loop = asyncio.get_running_loop()
        self._words: deque[tuple[int, Word]] = deque()
        self._news: asyncio.Future[None] | None = None  # somebody waits for a word
        self._timeout_s = timeout_s
        self._end_s = perf_counter() + timeout_s
        self._jobs = [Job(ask, partial(self._say, i)) for i, ask in enumerate(asks)]
        self._num_open = len(asks)
        self.num_choices = len(asks)
        pool.submit(self._jobs)

    @property
    def is_over(self) -> bool:
        """Every answer has come to its end."""
        return not self._num_open

    @property
    def left_s(self) -> float:
        """Until the request has taken as long as it may."""
        return self._end_s - perf_counter()

    async def next(self, wait_s: float) -> tuple[int, Word] | None:
        """The next word and whose it is; None when there was none for so long. Raises what ended
        an answer, and ApiError when the request takes too long."""
        if (left_s := self.left_s) <= 0:
            raise timed_out(self._timeout_s)
        if not self._words:
            await self._wait(min(wait_s, left_s))
            if not self._words:
                return None
        index, word = self._words.popleft()
        if isinstance(word, Failed):
            raise word.error
        self._num_open -= isinstance(word, Done)
        return index, word

    def leave(self) -> None:
        """Nobody listens any more: what is still in work ends."""
        for job in self._jobs:
            self._pool.leave(job)

    async def _wait(self, seconds: float) -> None:
        """For a word, or for so long; without the task that `asyncio.wait_for` makes each time."""
        self._news = self._loop.create_future()
        timer = self._loop.call_later(seconds, self._wake)
        try:
            await self._news
        finally:
            timer.cancel()
            self._news = None

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _hear(self, index: int, word: Word) -> None:
        self._words.append((index, word))
        self._wake()

    def _say(self, index: int, word: Word) -> None:
        """From a slot's thread."""
        with suppress(RuntimeError):  # the loop is closed: the server has ended
            self._loop.call_soon_threadsafe(self._hear, index, word)

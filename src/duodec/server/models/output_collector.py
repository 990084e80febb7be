"""Hand a request's outputs to the event loop, one after the other.

Text for people need not come a token at a time, and waking the loop costs what a forward pass could
have used: after the first output, those of a short interval are outputs together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter

from duodec.scheduler.outputs import Counts, Done, Failed, Output, Piece
from duodec.scheduler.scheduled_request import ScheduledRequest
from duodec.server.errors import timed_out
from duodec.server.models.scheduler_thread import SchedulerThread

Numbered = tuple[int, Piece | Done]
"""An output, and the choice that it belongs to."""


class OutputCollector:
    """Submits the requests; raises ApiError where there is no room. Pieces are handed out every
    ``interval_s`` seconds at most. The owner calls `close` after the last output, or when nobody
    listens any more, once or again; it calls ``on_close``."""

    def __init__(
        self,
        scheduler: SchedulerThread,
        requests: Sequence[ScheduledRequest],
        timeout_s: float,
        interval_s: float = 0.0,
        begin_s: float | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._scheduler = scheduler
        self._loop = asyncio.get_running_loop()
        self._outputs: deque[tuple[int, Output]] = deque()
        self._news: asyncio.Future[None] | None = None  # somebody waits for an output
        self._is_listening = False  # a piece is news, not only what ends a completion
        self._timeout_s = timeout_s
        self._end_s = (perf_counter() if begin_s is None else begin_s) + timeout_s
        self._interval_s = interval_s
        self._quiet_s = 0.0  # until then, pieces are no news
        self._requests = requests
        self._on_close = on_close
        self.cut_short: Sequence[Counts] = ()
        """How far the completions were whose end was not handed out when this was closed."""
        for i, request in enumerate(requests):
            request.on_output = partial(self._put, i)
        self._open = set(range(len(requests)))  # choices whose end was not handed out
        self.num_choices = len(requests)
        scheduler.submit(requests)

    @property
    def is_over(self) -> bool:
        """Every completion has come to its end."""
        return not self._open

    @property
    def left_s(self) -> float:
        """Until the request has taken as long as it may."""
        return self._end_s - perf_counter()

    async def next(self, wait_s: float) -> list[Numbered]:
        """The next outputs, pieces of a choice as one; none when there were none for so long.
        Raises what ended a completion, and ApiError when the request takes too long."""
        if (left_s := self.left_s) <= 0:
            raise timed_out(self._timeout_s)
        await self._hear(min(wait_s, left_s))
        if self._outputs and isinstance(failed := self._outputs[0][1], Failed):
            raise failed.error
        outputs = list(joined(self._taken()))
        if outputs:
            self._quiet_s = perf_counter() + self._interval_s
        self._open.difference_update(i for i, output in outputs if isinstance(output, Done))
        return outputs

    def close(self) -> None:
        """Nobody listens any more: what is still in work ends."""
        if self._requests:
            self.cut_short = [self._requests[i].counts for i in self._open]
        for request in self._requests:
            self._scheduler.abort(request)
        self._requests = ()  # they know this collector: what they hold is freed now, not later
        self._on_close()

    def _taken(self) -> Iterator[Numbered]:
        """What there is, up to a failure."""
        while self._outputs:
            index, output = self._outputs[0]
            if isinstance(output, Failed):
                return
            yield index, output
            self._outputs.popleft()

    async def _hear(self, seconds: float) -> None:
        """Until there is something to tell, or for so long."""
        end_s = perf_counter() + seconds
        if self._quiet_s > perf_counter() and not (self._outputs and _ends(self._outputs[-1][1])):
            await self._wait(min(end_s, self._quiet_s))
        self._is_listening = True
        if not self._outputs:
            await self._wait(end_s)
        self._is_listening = False

    async def _wait(self, end_s: float) -> None:
        """For news, or until then; without the request that `asyncio.wait_for` makes each time."""
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

    def _put(self, index: int, output: Output) -> None:
        """From a slot's thread."""
        self._outputs.append((index, output))
        if self._is_listening or _ends(output):
            with suppress(RuntimeError):  # the loop is closed: the server has ended
                self._loop.call_soon_threadsafe(self._wake)


def _ends(output: Output) -> bool:
    return not isinstance(output, Piece)


def joined(outputs: Iterator[Numbered]) -> Iterator[Numbered]:
    """The pieces of each choice as one, before what ends it."""
    pieces: dict[int, Piece] = {}
    for index, output in outputs:
        if isinstance(output, Piece):
            pieces[index] = pieces[index].plus(output) if index in pieces else output
            continue
        if index in pieces:
            yield index, pieces.pop(index)
        yield index, output
    yield from pieces.items()

"""Prepare requests: parse, tokenise and check them, a few at a time and within limits.

A request has a place in the queue before any of this begins. Small ones do not wait behind large
ones, nor those without a grammar behind those with one: each kind has threads of its own. What a
client no longer waits for is dropped before its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

from duodec.machine.cores import available_cores
from duodec.server.errors import ApiError, busy, timed_out
from duodec.server.http.workers import Workers
from duodec.server.settings import Settings

_P = ParamSpec("_P")
_T = TypeVar("_T")
_SMALL_BYTES = 16 << 10  # bodies that are prepared in milliseconds, whatever they hold
_LARGE_BYTES = 1 << 20  # bodies of which few are received at once
_NUM_LARGE = 8
_NUM_THREADS = 2  # of each kind of work
_FEW_CORES = 3  # or fewer: one thread for each kind of work that takes long


@dataclass(frozen=True)
class Arrival:
    """When a request's body was complete, and how large it was."""

    begin_s: float
    num_bytes: int


_arrival: ContextVar[Arrival | None] = ContextVar("arrival", default=None)


class Intake:
    """What lies between a body and the scheduler, for one server."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._small = Workers("duodec-prepare", _NUM_THREADS)
        num_long = 1 if len(available_cores()) <= _FEW_CORES else _NUM_THREADS
        self._large = Workers("duodec-prepare-large", num_long)
        self._glances = Workers("duodec-grammar-quick", num_long)
        self._grammars = Workers("duodec-grammar", _NUM_THREADS)
        self._kinds = (self._small, self._large, self._glances, self._grammars)
        self._num_large = 0
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._why: ApiError | None = None  # nothing is prepared any more

    @property
    def num_preparing(self) -> int:
        """Requests that hold a place and are not with the scheduler yet."""
        return len(self._tasks)

    @property
    def is_busy(self) -> bool:
        """A thread is in a call, perhaps one that cannot be interrupted."""
        return any(kind.is_busy for kind in self._kinds)

    @property
    def is_preparing_large(self) -> bool:
        """A thread parses or tokenises a large request."""
        return self._large.is_busy

    @property
    def begin_s(self) -> float:
        """When the body of the request in work was complete."""
        arrival = _arrival.get()
        return arrival.begin_s if arrival else perf_counter()

    # --- a request

    async def prepared(
        self,
        num_bytes: int,
        room: int,
        work: Coroutine[Any, Any, _T],
        drop: Callable[[_T], None] = lambda found: None,
    ) -> _T:
        """What ``work`` returns, for a request whose body has just come, if there is ``room`` for
        it. Raises ApiError at once where there is none, and when its time is over. ``drop`` gets
        a result that came when nobody waited for it any more."""
        # a few are prepared even then: the scheduler knows best whether there is room for them
        if self._why is not None or self.num_preparing >= max(room, _NUM_THREADS):
            work.close()
            raise self._why or busy(
                1, f"{self.num_preparing} requests are being prepared; ask again in a moment"
            )
        self._loop = asyncio.get_running_loop()
        _arrival.set(Arrival(perf_counter(), num_bytes))
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        is_wanted = False
        try:
            done, _ = await asyncio.wait({task}, timeout=self._settings.timeout_s)
            if not done:
                raise timed_out(self._settings.timeout_s)
            if task.cancelled() and self._why is not None:
                raise self._why
            is_wanted = True
            return task.result()
        finally:
            del self._tasks[task]
            is_over = not task.cancel() and not task.cancelled()
            if is_over and not is_wanted and task.exception() is None:
                drop(task.result())

    async def run(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """A part of the request in work, in a thread."""
        arrival = _arrival.get()
        is_small = arrival is None or arrival.num_bytes <= _SMALL_BYTES
        return await (self._small if is_small else self._large).run(call, *args, **kwargs)

    async def glance(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """A part that takes a tenth of a second at most, in a thread."""
        return await self._glances.run(call, *args, **kwargs)

    async def compile(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """A part that compiles a grammar, in a thread."""
        return await self._grammars.run(call, *args, **kwargs)

    @contextmanager
    def receiving(self) -> Iterator[Callable[[int], None]]:
        """While a body is received; told how large it is by now. Raises ApiError of large bodies
        beyond the first few, which others are still sending."""
        is_large = False

        def grow(num_bytes: int) -> None:
            nonlocal is_large
            if is_large or num_bytes <= _LARGE_BYTES:
                return
            if self._num_large >= _NUM_LARGE:
                raise busy(1, f"{_NUM_LARGE} large requests are being received; ask again")
            is_large = True
            self._num_large += 1

        try:
            yield grow
        finally:
            self._num_large -= is_large

    def close(self, why: ApiError) -> None:
        """End what is being prepared, and begin nothing more; from any thread."""
        self._why = why
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: there is nothing left to end
                self._loop.call_soon_threadsafe(self._end_all)

    def _end_all(self) -> None:
        for task in list(self._tasks):
            task.cancel()

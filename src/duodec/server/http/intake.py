"""Prepare requests: parse, tokenise and check them, a few at a time and within limits.

A request has a place in the queue before any of this begins. Small ones do not wait behind large
ones, nor those without a grammar behind those with one: each kind has threads of its own. What a
client no longer waits for is dropped before its turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from queue import PriorityQueue
from threading import Lock, Thread
from time import perf_counter, sleep
from typing import Any, ParamSpec, TypeVar

from duodec.machine.cores import available_cores
from duodec.machine.processes import share_thread_with_others
from duodec.server.errors import ApiError, busy, timed_out
from duodec.server.http.body_budget import BodyBudget
from duodec.server.settings import Settings

_P = ParamSpec("_P")
_T = TypeVar("_T")
_SMALL_BYTES = 16 << 10  # bodies that are prepared in milliseconds, whatever they hold
_NUM_THREADS = 2  # of each kind of work
_MOST_WAIT_S, _LOOK_S = 0.5, 0.002  # for the end of a forward pass
_FEW_CORES = 3  # or fewer: one thread for each kind of work that takes long


@dataclass(frozen=True)
class Arrival:
    """When a request's body was complete, and how large it is with what it goes on from."""

    begin_s: float
    num_bytes: int


_arrival: ContextVar[Arrival | None] = ContextVar("arrival", default=None)
_num_steps: ContextVar[int] = ContextVar("num_steps", default=0)  # of the request in work, so far


class Intake:
    """What lies between a body and the scheduler, for one server."""

    def __init__(
        self, settings: Settings, are_cores_taken: Callable[[], bool] = lambda: False
    ) -> None:
        """``are_cores_taken`` tells whether a forward pass computes on all cores. One that begins
        later leaves some of them to what takes long here. One whose threads wait for each other at
        every step, with another thread between them, takes ten times as long."""
        self._settings, self._are_cores_taken = settings, are_cores_taken
        self._small = Workers("duodec-prepare", _NUM_THREADS)
        num_long = 1 if len(available_cores()) <= _FEW_CORES else _NUM_THREADS
        # on few cores, what a large body takes would be taken from forward passes
        wait = self._wait_for_cores
        self._large = Workers("duodec-prepare-large", num_long, share_thread_with_others, wait)
        self._quick = Workers("duodec-grammar-quick", num_long, before=wait)
        self._grammars = Workers("duodec-grammar", _NUM_THREADS, before=wait)
        self._kinds = (self._small, self._large, self._quick, self._grammars)
        self._tasks: dict[asyncio.Task[Any], int] = {}  # bytes of each that were not sent with it
        self.bodies = BodyBudget(settings.max_body_bytes)
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
    def is_computing_long(self) -> bool:
        """A thread parses or tokenises a large request, or reads or compiles a grammar."""
        return self._large.is_busy or self._quick.is_busy or self._grammars.is_busy

    @property
    def begin_s(self) -> float:
        """When the body of the request in work was complete."""
        arrival = _arrival.get()
        return arrival.begin_s if arrival else perf_counter()

    # --- a request

    async def prepared(
        self,
        num_bytes: int,
        num_free: int,
        work: Coroutine[Any, Any, _T],
        drop: Callable[[_T], None] = lambda found: None,
    ) -> _T:
        """What ``work`` returns, for a request whose body has just come, if ``num_free`` more may
        come. Raises ApiError at once where none may, and when its time is over. ``drop`` gets a
        result that came when nobody waited for it any more."""
        # a few are prepared even then: the scheduler knows best how many it can take
        if self._why is not None or self.num_preparing >= max(num_free, _NUM_THREADS):
            work.close()
            raise self._why or busy(
                1, f"{self.num_preparing} requests are being prepared; ask again in a moment"
            )
        self._loop = asyncio.get_running_loop()
        _arrival.set(Arrival(perf_counter(), num_bytes))
        task = asyncio.ensure_future(work)
        self._tasks[task] = 0
        is_awaited = False
        try:
            done, _ = await asyncio.wait({task}, timeout=self._settings.timeout_s)
            if not done:
                raise timed_out(self._settings.timeout_s)
            if task.cancelled() and self._why is not None:
                raise self._why
            is_awaited = True
            return task.result()
        finally:
            self.bodies.remove(self._tasks.pop(task))
            is_over = not task.cancel() and not task.cancelled()
            if is_over and not is_awaited and task.exception() is None:
                drop(task.result())

    def weigh(self, num_bytes: int) -> None:
        """The request in work has so many bytes more than it sent, from what is stored. Raises
        ApiError where they do not fit among the bodies."""
        task, arrival = asyncio.current_task(), _arrival.get()
        if task not in self._tasks or arrival is None:
            return
        self.bodies.add(num_bytes)
        self._tasks[task] += num_bytes
        _arrival.set(replace(arrival, num_bytes=arrival.num_bytes + num_bytes))

    async def run(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """A part of the request in work, in a thread."""
        arrival = _arrival.get()
        is_small = arrival is None or arrival.num_bytes <= _SMALL_BYTES
        return await (self._small if is_small else self._large).run(call, *args, **kwargs)

    async def run_quick(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """A part that takes a tenth of a second at most, in a thread."""
        return await self._quick.run(call, *args, **kwargs)

    async def compile(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """A part that compiles a grammar, in a thread."""
        return await self._grammars.run(call, *args, **kwargs)

    def close(self, why: ApiError) -> None:
        """End what is being prepared, and begin nothing more; from any thread."""
        self._why = why
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: there is nothing left to end
                self._loop.call_soon_threadsafe(self._end_all)

    def _wait_for_cores(self) -> None:
        end_s = perf_counter() + _MOST_WAIT_S
        while self._are_cores_taken() and perf_counter() < end_s:
            sleep(_LOOK_S)

    def _end_all(self) -> None:
        for task in list(self._tasks):
            task.cancel()


class Workers:
    """Runs calls in ``num_threads`` daemon threads, which start with the first one. A request that
    was begun goes on before others begin, since what it was parsed into takes much memory;
    otherwise calls are made in the order of their arrival.

    The executor of asyncio has its threads joined when the process ends and does the work of
    clients that have left. Here a call that nobody waits for any more is not begun, and one that
    cannot be interrupted holds up neither the event loop nor the end of the process.
    """

    def __init__(
        self,
        name: str,
        num_threads: int,
        begin: Callable[[], None] = lambda: None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """``begin`` is called in each thread when it starts, ``before`` there before each call."""
        self._name = name
        self._begin, self._before = begin, before
        self._num_threads = num_threads
        self._calls: PriorityQueue[tuple[int, int, Future[Any], Callable[[], Any]]]
        self._calls = PriorityQueue()
        self._numbers = count()
        self._lock = Lock()
        self._threads: list[Thread] = []
        self._open: set[Future[Any]] = set()

    async def run(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """What the call returns or raises. Cancelled before its turn, it is not made."""
        future: Future[_T] = Future()
        with self._lock:
            self._start()
            self._open.add(future)
        future.add_done_callback(self._open.discard)
        num_steps = _num_steps.get()
        made = partial(call, *args, **kwargs)
        self._calls.put((-num_steps, next(self._numbers), future, made))
        result = await asyncio.wrap_future(future)
        _num_steps.set(num_steps + 1)
        return result

    @property
    def is_busy(self) -> bool:
        """A call is being made. Any thread may ask."""
        return any(future.running() for future in tuple(self._open))  # others add and end calls

    def _start(self) -> None:
        while len(self._threads) < self._num_threads:
            name = f"{self._name}-{len(self._threads)}"
            self._threads.append(Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()

    def _work(self) -> None:
        self._begin()
        while True:
            *_, future, call = self._calls.get()
            if not future.set_running_or_notify_cancel():
                continue
            self._before()
            _make(future, call)
            del future, call


def _make(future: Future[_T], call: Callable[[], _T]) -> None:
    """A function of its own, so that no thread keeps a result until its next call."""
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  raised again where it is waited for
        future.set_exception(error)
    else:
        future.set_result(result)

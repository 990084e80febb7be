"""Run calls in a few daemon threads, in the order of their arrival.

The executor of asyncio has its threads joined when the process ends and does the work of clients
that have left. Here a call that nobody waits for any more is not begun, and one that cannot be
interrupted holds up neither the event loop nor the end of the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Workers:
    """``num_threads`` threads, which start with the first call."""

    def __init__(self, name: str, num_threads: int) -> None:
        self._name = name
        self._num_threads = num_threads
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
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
        self._calls.put((future, partial(call, *args, **kwargs)))
        return await asyncio.wrap_future(future)

    @property
    def is_busy(self) -> bool:
        """A call is being made."""
        with self._lock:
            return any(future.running() for future in self._open)

    def _start(self) -> None:
        while len(self._threads) < self._num_threads:
            name = f"{self._name}-{len(self._threads)}"
            self._threads.append(Thread(target=self._work, name=name, daemon=True))
            self._threads[-1].start()

    def _work(self) -> None:
        while True:
            future, call = self._calls.get()
            if not future.set_running_or_notify_cancel():
                continue
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

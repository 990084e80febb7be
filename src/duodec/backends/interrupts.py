"""Let Ctrl-C interrupt a library's computation or loading.

Python handles a signal only between its own instructions, and a call into a library may take
minutes. A call that cannot be interrupted runs in its own thread while the main thread waits
interruptibly: `interruptible`. A forward pass checks a flag between its steps, in C; the flag is
set if the pass is still running some time after the signal: `listen`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import Lock, Thread, current_thread, main_thread
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_LOOK_S = 0.1  # between two looks for a signal
PATIENCE_S = 0.2  # time that a forward pass has after Ctrl-C


class _Call(Generic[T]):
    """Run a call in a thread; ``discard`` frees its result if no caller waits for it any more."""

    def __init__(self, call: Callable[[], T], discard: Callable[[T], object]) -> None:
        self._call, self._discard = call, discard
        self._lock = Lock()
        self._results: list[T] = []
        self._errors: list[BaseException] = []
        self._is_left = False

    def run(self) -> None:
        try:
            result = self._call()
        except BaseException as error:  # noqa: BLE001  raised again in the waiting thread
            self._errors.append(error)
            return
        with self._lock:
            self._results.append(result)
            is_left = self._is_left
        if is_left:
            self._discard(result)

    def leave(self) -> None:
        """Stop waiting for the result."""
        with self._lock:
            self._is_left = True
            results = list(self._results)
        for result in results:
            self._discard(result)

    def result(self) -> T:
        for error in self._errors:
            raise error
        return self._results[0]


def interruptible(call: Callable[[], T], discard: Callable[[T], object]) -> T:
    """Return the result of ``call``; Ctrl-C does not wait for it. The result of an abandoned call
    is passed to ``discard``."""
    if current_thread() is not main_thread():  # signals go to the main thread
        return call()
    running = _Call(call, discard)
    thread = Thread(target=running.run, name="duodec-library", daemon=True)
    try:
        thread.start()
        while thread.is_alive():  # a signal just before a wait without end would not end it
            thread.join(_LOOK_S)
    except BaseException:
        running.leave()
        raise
    return running.result()


class _Flag:
    """Hold a C string that is "1" when the forward pass of the main thread should end, and "0"
    otherwise. It is entered while such a pass is computed.

    `atoi` of the C library, called with its address, is a callback that needs no Python.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0  # forward passes of the main thread
        self._is_running = False
        self._text = ctypes.create_string_buffer(b"0")
        self.address = ctypes.addressof(self._text)
        self.function: int = ctypes.cast(ctypes.CDLL(None).atoi, ctypes.c_void_p).value or 0

    def __enter__(self) -> None:
        with self._lock:
            self._count += 1
            self._is_running = True
            self._text[0] = b"0"

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._is_running = False
            self._text[0] = b"0"

    def running(self) -> int | None:
        """Return the number of the running forward pass, if any."""
        return self._count if self._is_running else None

    def stop(self, count: int) -> None:
        """End this forward pass, if it is still running."""
        with self._lock:
            if self.running() == count:
                self._text[0] = b"1"


FLAG = _Flag()


def stoppable() -> AbstractContextManager[None]:
    """Mark that the main thread computes a forward pass."""
    return FLAG if current_thread() is main_thread() else nullcontext()


_ends: list[int] = []  # ends of the pipe to which Python writes signals, once there is one


def listen() -> None:
    """Let Ctrl-C end forward passes from now on. Call it in the main thread of a program, and again
    after an event loop, which takes the signals' pipe and does not restore it."""
    if current_thread() is not main_thread():
        return
    if not _ends:
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        _ends.extend((reading, writing))
        Thread(target=_watch, args=(reading,), name="duodec-signals", daemon=True).start()
    signal.set_wakeup_fd(_ends[1], warn_on_full_buffer=False)


def _watch(reading: int) -> None:
    while numbers := os.read(reading, 64):
        count = FLAG.running()
        if signal.SIGINT in numbers and count is not None:
            time.sleep(PATIENCE_S)
            FLAG.stop(count)


def callback(kind: Any) -> Any:
    """Return the flag's function as a library's callback type; pass `FLAG.address` as its
    argument."""
    return kind(FLAG.function)

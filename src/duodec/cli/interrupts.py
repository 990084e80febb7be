"""Handle Ctrl-C: end an interrupted command within a second, or a completion at the next safe
moment.

Ctrl-C raises KeyboardInterrupt, so that a command keeps what it has and closes what it opened. That
may take too long, and a library may swallow the exception or turn it into another. So a timer ends
the process, and a second Ctrl-C does so at once.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer, current_thread, main_thread
from types import FrameType

from duodec.backends.interrupts import listen
from duodec.machine.signals import end_now

SECONDS = 0.6  # less than the promised second: waking up takes time on a busy machine


class Deadline:
    """While entered, let Ctrl-C start the timer. It works only in the main thread."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.is_interrupted = False
        self._timer = Timer(seconds, end_now)
        self._timer.daemon = True

    def __enter__(self) -> Deadline:
        self._before = signal.getsignal(signal.SIGINT)
        self._hooks = sys.unraisablehook, threading.excepthook
        self._is_heard = current_thread() is main_thread() and self._before is not signal.SIG_IGN
        if self._is_heard:
            signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        if self._is_heard:
            signal.signal(signal.SIGINT, self._before)
            sys.unraisablehook, threading.excepthook = self._hooks

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_interrupted:
            end_now()
        self.is_interrupted = True
        # Failures that follow from the interrupt are not reported: one line is enough.
        sys.unraisablehook = lambda _: None
        threading.excepthook = lambda _: None
        self._timer.start()
        raise KeyboardInterrupt


@contextmanager
def ended_as_interrupted() -> Iterator[None]:
    """While entered, let SIGTERM and the end of the terminal act as Ctrl-C: a command that has
    started other processes ends them."""
    if current_thread() is not main_thread():
        yield
        return
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {n: signal.getsignal(n) for n in numbers}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, signal.getsignal(signal.SIGINT))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Stopped(Exception):
    """Raised if the user pressed Ctrl-C before the first token."""


class Interruption:
    """While entered, let Ctrl-C request a stop at the next safe moment.

    After ``patience`` more presses it raises KeyboardInterrupt wherever the program is.
    """

    def __init__(self, patience: int) -> None:
        self.is_asked = False
        self._patience = patience

    def __enter__(self) -> Interruption:
        self.is_asked, self._left = False, self._patience
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        listen()
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Raise Stopped if a stop was requested."""
        if self.is_asked:
            raise Stopped

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_asked:
            self._left -= 1
            if self._left < 0:
                raise KeyboardInterrupt
        self.is_asked = True

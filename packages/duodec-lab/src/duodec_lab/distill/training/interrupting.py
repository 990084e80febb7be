"""Let Ctrl-C wait for the end of a training step."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread


@contextmanager
def interruptible_between_steps() -> Iterator[Callable[[], bool]]:
    """A function that tells whether Ctrl-C was pressed; a second one does not wait."""
    pressed: list[int] = []

    def press(number: int, frame: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    if current_thread() is not main_thread():  # signals go to the main thread
        yield lambda: False
        return
    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)

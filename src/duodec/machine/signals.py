"""Let Ctrl-C and SIGTERM end the program at once, while it imports, loads or is idle.

Only the standard library is imported here: the program must handle signals before it imports much.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread
from typing import Any, NoReturn

INTERRUPTED = 130  # a shell reports SIGINT so
_SHOW_CURSOR = "\x1b[?25h"


def is_server(arguments: Sequence[str]) -> bool:
    """Return whether these arguments start a server, which ends on signals as its operator
    wants."""
    return list(arguments[:1]) == ["serve"]


def ending_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that end a server. The end of a terminal or session (SIGHUP) is one of
    them, unless `nohup` ignores it. Windows has none."""
    hangup: signal.Signals | None = getattr(signal, "SIGHUP", None)
    if hangup is None or signal.getsignal(hangup) is signal.SIG_IGN:
        return (signal.SIGINT, signal.SIGTERM)
    return (signal.SIGINT, signal.SIGTERM, hangup)


@contextmanager
def ended_quietly() -> Iterator[None]:
    """While entered, let `ending_signals` end the process with status 0, wherever it is.

    A server that is not serving yet, or no longer, is done. SIGINT is handled even if a shell
    ignores it.
    """
    if current_thread() is not main_thread():
        yield
        return
    before = end_quietly()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_quietly() -> dict[int, Any]:
    """Let signals end the process with status 0; return the previous handlers."""
    return {
        number: signal.signal(number, lambda number, frame: os._exit(0))
        for number in ending_signals()
    }


def ignore_signals() -> None:
    """Ignore signals while Python is ending, since it would handle them in its own way."""
    for number in ending_signals():
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def interrupted_at_once() -> Iterator[None]:
    """While entered, let Ctrl-C end the process with one line, wherever it is.

    An exception would pass through imports and libraries, which may swallow or wrap it. Processes
    such as a drafter end with this one.
    """
    before = signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or before is signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, lambda number, frame: end_now())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end_now() -> NoReturn:
    """End the process with one line."""
    with suppress(OSError, ValueError):
        start = f"\r{_SHOW_CURSOR}" if sys.stderr.isatty() else ""  # a spinner had hidden it
        os.write(2, f"{start}interrupted\n".encode())
    os._exit(INTERRUPTED)


def leave() -> NoReturn:
    """End an interrupted process without waiting for its threads."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(INTERRUPTED)

"""Run unknown chat templates in a process with limits of time, memory and length."""

from __future__ import annotations

import atexit
import os
import pickle
import select
import subprocess
import sys
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any

from duodec import templates
from duodec.templates import LENGTH, MOST_CHARACTERS, SIZE, WRITTEN, Refused

_START_S = 30.0  # for an interpreter and jinja2
_BOOT = """\
import runpy, sys
sys.path[:] = sys.argv[2:]
runpy.run_path(sys.argv[1], run_name="__main__")
"""
_MOST_READ = 1 << 20


class Renderer:
    """A process that renders one template at a time, started when it is needed first and anew after
    one that did not come to its end."""

    def __init__(self, limit_s: float = 5.0) -> None:
        self._limit_s = limit_s
        self._lock = Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def render(self, template: str, values: dict[str, Any]) -> str:
        """The text that the template makes of ``values``. Raises Refused."""
        try:
            request = pickle.dumps((template, values))
        except Exception as error:
            raise Refused(f"its values cannot be passed on: {error}") from error
        with self._lock:
            try:
                child = self._started()
                assert child.stdin is not None
                child.stdin.write(SIZE.pack(len(request)) + request)
                child.stdin.flush()
                kind, text = self._read(child, self._limit_s)
            except _Late as error:
                self._end()
                raise Refused(f"it takes longer than {self._limit_s:g} s") from error
            except OSError as error:
                self._end()
                raise Refused("it ended its process: memory may be short") from error
            except BaseException:  # Ctrl-C: what is under way is nobody's answer
                self._end()
                raise
        if kind == WRITTEN:
            return text
        raise Refused(text)

    def close(self) -> None:
        """End the process; a later template starts another. Can be called twice."""
        with self._lock:
            self._end()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._owner != os.getpid():  # a fork's, not ours
            self._child = None
        if self._child is None:
            self._owner = os.getpid()
            self._child = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(Path(templates.__file__)), *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # the terminal's Ctrl-C is not for it
            )
            self._read(self._child, _START_S)
        return self._child

    def _read(self, child: subprocess.Popen[bytes], limit_s: float) -> tuple[int, str]:
        """An answer. Raises _Late, and OSError when the process has ended."""
        end_s = perf_counter() + limit_s
        kind, size = LENGTH.unpack(_exactly(child, LENGTH.size, end_s))
        if size > 4 * MOST_CHARACTERS:
            raise OSError("an answer that is too long")
        return kind, _exactly(child, size, end_s).decode("utf-8", "surrogatepass")

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None or self._owner != os.getpid():
            return
        child.kill()
        child.wait()
        for stream in (child.stdin, child.stdout):
            try:
                if stream is not None:
                    stream.close()
            except OSError:  # what was not sent any more
                continue


class _Late(Exception):
    """No answer in time."""


def _exactly(child: subprocess.Popen[bytes], size: int, end_s: float) -> bytes:
    assert child.stdout is not None
    number, found = child.stdout.fileno(), bytearray()
    poll = select.poll()  # select knows no file numbers above 1023, which a server may have
    poll.register(number, select.POLLIN)
    while len(found) < size:
        if not poll.poll(max(0.0, 1e3 * (end_s - perf_counter()))):
            raise _Late
        part = os.read(number, min(_MOST_READ, size - len(found)))
        if not part:
            raise OSError("the process ended")
        found += part
    return bytes(found)


RENDERER = Renderer()
atexit.register(RENDERER.close)

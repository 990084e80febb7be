"""Ask a program of ours in a process of its own, and end that where it does not respond in time.

The program says that it is ready, then responds to one request after the other: a response is its
kind, its length and a text; what a request is, only the program knows. It lives until nobody holds
its standard input, and ends then with what it has forked, whatever it computes.
"""

from __future__ import annotations

import os
import select
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import perf_counter

from duodec.machine.processes import OWN_GROUP, end_group

RESPONSE = struct.Struct("<BQ")  # how a response begins: its kind and its bytes
SIZE = struct.Struct("<Q")  # how a request may begin: its bytes
_START_S = 30.0  # for an interpreter and its imports
# nobody reads the end of its input while it computes, and what it has forked reads none
_BOOT = f"""\
{OWN_GROUP}
import runpy, select, signal, sys, threading
def end_with_parent():
    poll = select.poll()
    poll.register(0, select.POLLHUP)
    poll.poll()
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=end_with_parent, daemon=True).start()
sys.path[:] = sys.argv[2:]
runpy.run_path(sys.argv[1], run_name="__main__")
"""
_MOST_BYTES = 1 << 28  # of a response
_MOST_READ = 1 << 20


class Late(Exception):
    """No response in time."""


class Helper:
    """A process that runs ``program``, started when it is needed first, and anew after one that did
    not come to its end. For one thread at a time."""

    def __init__(self, program: Path) -> None:
        self._program = program
        self._child: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, request: bytes, limit_s: float) -> tuple[int, str]:
        """The response's kind and text. Raises Late, and OSError where the process has ended."""
        kind, data = self.ask_bytes(request, limit_s)
        return kind, data.decode("utf-8", "surrogatepass")

    def ask_bytes(self, request: bytes, limit_s: float) -> tuple[int, bytes]:
        """The response's kind and bytes. Raises what `ask` raises."""
        try:
            child = self._started()
            assert child.stdin is not None
            child.stdin.write(request)
            child.stdin.flush()
            return _read(child, limit_s)
        except BaseException:  # Ctrl-C too: what is under way is nobody's response
            self.close()
            raise

    def close(self) -> None:
        """End the process; a later request starts another. Can be called twice."""
        child, self._child = self._child, None
        if child is None or self._owner != os.getpid():
            return
        end_group(child.pid)
        child.wait()
        for stream in (child.stdin, child.stdout):
            with suppress(OSError):  # what was not sent any more
                if stream is not None:
                    stream.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._owner != os.getpid():  # a fork's, not ours
            self._child = None
        if self._child is not None and self._child.poll() is not None:  # it died while it was idle
            self.close()
        if self._child is None:
            self._owner = os.getpid()
            self._child = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(self._program), *sys.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            _read(self._child, _START_S)
        return self._child


def _read(child: subprocess.Popen[bytes], limit_s: float) -> tuple[int, bytes]:
    end_s = perf_counter() + limit_s
    kind, size = RESPONSE.unpack(_exactly(child, RESPONSE.size, end_s))
    if size > _MOST_BYTES:
        raise OSError("a response that is too long")
    return kind, _exactly(child, size, end_s)


def _exactly(child: subprocess.Popen[bytes], size: int, end_s: float) -> bytes:
    assert child.stdout is not None
    number, found = child.stdout.fileno(), bytearray()
    poll = select.poll()  # select knows no file numbers above 1023, which a server may have
    poll.register(number, select.POLLIN)
    while len(found) < size:
        if not poll.poll(max(0.0, 1e3 * (end_s - perf_counter()))):
            raise Late
        part = os.read(number, min(_MOST_READ, size - len(found)))
        if not part:
            raise OSError("the process ended")
        found += part
    return bytes(found)

"""Ask a program of ours in a process of its own, and end it if it does not respond in time.

The program says that it is ready, then responds to one request after the other. A response is its
kind, its length and a text; only the program knows what a request is. It lives until its standard
input is closed. Then it ends with what it has forked, whatever it computes.
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

RESPONSE = struct.Struct("<BQ")  # start of a response: its kind and its bytes
SIZE = struct.Struct("<Q")  # possible start of a request: its bytes
_START_S = 30.0  # time for an interpreter and its imports
# A watcher thread reads the end of the input while the program computes; forks read none.
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
_MOST_BYTES = 1 << 28  # most bytes of a response
_MOST_READ = 1 << 20


class Late(Exception):
    """Raised if no response came in time."""


class Helper:
    """Run ``program`` in a process that starts when it is first needed, and again after one that
    failed. One thread at a time may use it."""

    def __init__(self, program: Path) -> None:
        self._program = program
        self._child: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, request: bytes, limit_s: float) -> tuple[int, str]:
        """Return the response's kind and text. Raises Late, and OSError if the process has
        ended."""
        kind, data = self.ask_bytes(request, limit_s)
        return kind, data.decode("utf-8", "surrogatepass")

    def ask_bytes(self, request: bytes, limit_s: float) -> tuple[int, bytes]:
        """Return the response's kind and bytes. Raises what `ask` raises."""
        try:
            child = self._started()
            assert child.stdin is not None
            child.stdin.write(request)
            child.stdin.flush()
            return _read(child, limit_s)
        except BaseException:  # Ctrl-C too: the pending response belongs to no request
            self.close()
            raise

    def close(self) -> None:
        """End the process; a later request starts another. It can be called twice."""
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
        # The child belongs to the process that forked.
        if self._child is not None and self._owner != os.getpid():
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

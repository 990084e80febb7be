"""Start and end the processes that a drafter lives in, one after the other.

None outlives its owner. An owner that is killed closes the end of their pipe, one that is forgotten
or exits stops them, and a fork of the owner does not affect them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter

from duodec.backends.drafter.channel import NO_SLOT, Channel, Failure, Frame, Kind
from duodec.core.sampling.sampler import Tokens
from duodec.errors import DuodecError
from duodec.machine.processes import NO_GPU, OWN_GROUP

_PROVEN_S = 30.0  # after this time of being ready, earlier failures are forgotten
_LAST_EXIT_S = 5.0  # after SIGKILL
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

# Cores are taken before anything is imported: libraries count them as they load. The path is the
# parent's: without this line, a file in the working directory could pass for a library.
_BOOT = (
    OWN_GROUP
    + """\
import sys
generation, sock, lifeline, cores = sys.argv[2:6]
sys.path[:] = sys.argv[6:]
problem = ""
try:
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
except OSError as error:
    problem = f"the drafter cannot run on cores {cores} ({error.strerror}); choose others"
from duodec.backends.drafter.worker import main
main(int(generation), int(sock), int(lifeline), problem)
"""
)


@dataclass(frozen=True)
class Fault:
    """Describe a drafter's failure as a predicate, with its typed error."""

    what: str
    error: DuodecError | None = None


class Child:
    """Hold one process, its channel, a pipe whose end it does not survive, and what it has sent."""

    def __init__(self, command: list[str], cores: str, env: Mapping[str, str], count: int) -> None:
        """Start the process. Raises OSError."""
        ours, theirs = socket.socketpair()
        theirs_lifeline, self._lifeline = os.pipe()
        self.generation = count
        self.channel = Channel(ours)
        self.start_s = perf_counter()
        self.ready_s: float | None = None
        self.texts: dict[int, Tokens] = {}  # last text sent, by slot
        self.has_drafted = False
        self.failed: Failure | None = None  # its first request that failed
        self.is_failure_reported = False
        self.fatal_error: Failure | None = None  # it ended the process
        self._doubt_s: float | None = None  # when something first seemed wrong
        is_debug = bool(env.get("DUODEC_DEBUG"))
        fds = (theirs.fileno(), theirs_lifeline)
        try:
            self._process = subprocess.Popen(
                [*command, str(count), *map(str, fds), cores, *sys.path],
                env=env,
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                # Never our stdout, which carries the text.
                stdout=2 if is_debug else subprocess.DEVNULL,
                stderr=None if is_debug else subprocess.DEVNULL,
            )
        except BaseException:
            self._let_go()
            raise
        finally:
            theirs.close()
            os.close(theirs_lifeline)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Return whether it has loaded its model."""
        return self.ready_s is not None

    @property
    def is_proven(self) -> bool:
        """Return whether it works, so that its end would be a new incident."""
        is_old = self.ready_s is not None and perf_counter() - self.ready_s > _PROVEN_S
        return self.has_drafted or is_old

    @property
    def is_over(self) -> bool:
        """Return whether it was killed or stopped, and reap it."""
        return self._lifeline < 0 and not self.is_running()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def receive(self) -> Iterator[Frame]:
        """Yield the frames about requests that have arrived; frames about the process itself are
        handled here."""
        for frame in self.channel.receive():
            if frame.generation != self.generation:
                continue
            if frame.slot != NO_SLOT:
                yield frame
            elif frame.kind == Kind.READY:
                self.ready_s = perf_counter()
            elif frame.kind == Kind.ERROR:
                self.fatal_error = frame.value()

    def is_doubted_for(self, seconds: float, is_doubtful: bool) -> bool:
        """Return whether something seems wrong now, and has seemed so at every look for
        ``seconds``."""
        now_s = perf_counter()
        self._doubt_s = (self._doubt_s or now_s) if is_doubtful else None
        return self._doubt_s is not None and now_s - self._doubt_s > seconds

    def ending(self) -> Fault:
        """Return how it ended."""
        words = self.fatal_error
        if words is not None:
            what = "died" if self.is_ready else "could not load its model"
            return Fault(f"{what} ({words.message})", words.error(words.message))
        code = self._process.poll()
        if code is None:
            return Fault("closed its channel")
        return Fault(f"died (signal {-code})" if code < 0 else f"died (exit status {code})")

    def kill(self) -> None:
        """Kill it and return at once; `is_over` reaps it later."""
        self._process.kill()
        self._let_go()

    def stop(self, patience_s: float) -> None:
        """Ask it to exit, kill it if it has not exited by then, and reap it."""
        self.channel.close()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._let_go()
        with suppress(subprocess.TimeoutExpired):  # stuck in the kernel: it dies when that returns
            self._process.wait(_LAST_EXIT_S)

    def _let_go(self) -> None:
        self.channel.close()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


class Children:
    """Hold all processes of one drafter. They are started alike, and stopped when this is closed or
    forgotten."""

    def __init__(
        self,
        name: str,
        cores: tuple[int, ...] | None,
        num_threads: int | None,
        env: Mapping[str, str],
    ) -> None:
        threads = {} if num_threads is None else dict.fromkeys(_THREAD_VARIABLES, str(num_threads))
        self._env = {**os.environ, **NO_GPU, **threads, **env}
        self._command = [sys.executable, "-c", _BOOT, f"duodec-{name}"]
        self._cores = ",".join(map(str, cores or ()))
        self._children: list[Child] = []  # those not reaped yet
        self._finalizer = weakref.finalize(self, _stop_all, self._children, os.getpid(), 0.0)
        self.num_started = 0

    @property
    def is_closed(self) -> bool:
        return not self._finalizer.alive

    def start(self) -> Child:
        """Start the next process. Raises OSError."""
        self.num_started += 1
        child = Child(self._command, self._cores, self._env, self.num_started)
        self._children.append(child)
        return child

    def reap(self) -> None:
        """Forget killed processes that have ended."""
        self._children[:] = [child for child in self._children if not child.is_over]

    def close(self, patience_s: float) -> None:
        """Ask all to exit, and kill those that have not exited by then."""
        if self._finalizer.detach():
            _stop_all(self._children, os.getpid(), patience_s)


def _stop_all(children: list[Child], owner_pid: int, patience_s: float) -> None:
    if os.getpid() == owner_pid:  # not in a fork of ours
        while children:
            children.pop().stop(patience_s)

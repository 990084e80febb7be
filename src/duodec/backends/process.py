"""A drafter in a process of its own: own interpreter lock, own cores, own crashes.

The parent's side of `duodec.backends.worker`. Whatever happens over there, a text goes on: a
drafter that dies or hangs answers with less, is named in one warning and is started anew.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter, sleep
from types import TracebackType
from typing import Protocol

import numpy as np

from duodec.backends.channel import (
    NO_SLOT,
    Channel,
    Failure,
    Frame,
    Kind,
    Progress,
    pack_request,
)
from duodec.core.draft import Draft
from duodec.core.protocols import Drafted, DraftModel, DraftRequest
from duodec.core.sampling import Law, Tokens
from duodec.errors import BackendUnavailable, DuodecError

HANG_S = 1.0  # silence that is never called hanging
_HANG_STEPS = 5.0  # nor is less than this many expected steps
_UNKNOWN_STEP_S = 2.0  # expected before one was measured
_SECOND_LOOK_S = 0.05
_MAX_BACKOFF_S = 30.0
_PROVEN_S = 30.0  # ready for so long: earlier failures are forgotten
_EXIT_S = 0.5
_LAST_EXIT_S = 5.0  # after SIGKILL
_NOTHING = np.empty(0, dtype=np.int32)
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

# Cores are taken before anything is imported: libraries count them as they load. The path is the
# parent's: without this line, a file in the working directory could pass for a library.
_BOOT = """\
import os, sys
generation, sock, lifeline, cores = sys.argv[2:6]
sys.path[:] = sys.argv[6:]
problem = ""
try:
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
except OSError as error:
    problem = f"the drafter cannot run on cores {cores} ({error.strerror}); choose others"
from duodec.backends.worker import main
main(int(generation), int(sock), int(lifeline), problem)
"""


class Recipe(Protocol):
    """What the child makes its model of: a picklable value of an importable module."""

    def load(self) -> DraftModel:
        """Load the model, in the child. Raises the typed errors of loading."""


@dataclass(frozen=True)
class _Fault:
    """What befell the drafter, as a predicate, and the typed error behind it."""

    what: str
    error: DuodecError | None = None


class _Child:
    """One process: its channel, and a pipe whose end it does not survive."""

    def __init__(self, command: list[str], cores: str, env: Mapping[str, str], count: int) -> None:
        """Start it. Raises OSError."""
        ours, theirs = socket.socketpair()
        theirs_lifeline, self._lifeline = os.pipe()
        self.generation = count
        self.channel = Channel(ours)
        self.start_s = perf_counter()
        is_debug = bool(env.get("DUODEC_DEBUG"))
        fds = (theirs.fileno(), theirs_lifeline)
        try:
            self._process = subprocess.Popen(
                [*command, str(count), *map(str, fds), cores, *sys.path],
                env=env,
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=2 if is_debug else subprocess.DEVNULL,  # never ours: it carries the text
                stderr=None if is_debug else subprocess.DEVNULL,
                start_new_session=True,  # the terminal's Ctrl-C and Ctrl-Z are not for it
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

    def is_running(self) -> bool:
        return self._process.poll() is None

    def ending(self) -> str:
        """How it ended; waits a moment, for a process is reaped after its files are closed."""
        try:
            code = self._process.wait(0.1)
        except subprocess.TimeoutExpired:
            return "closed its channel"
        return f"died (signal {-code})" if code < 0 else f"died (exit status {code})"

    def kill(self) -> None:
        """Kill it; returns at once, `is_running` reaps it later."""
        self._process.kill()
        self._let_go()

    def stop(self, patience_s: float) -> None:
        """Ask it to exit, kill it if it has not by then, reap it."""
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


def _stop_all(children: list[_Child], owner_pid: int) -> None:
    if os.getpid() == owner_pid:  # not in a fork of ours
        while children:
            children.pop().stop(0.0)


@dataclass
class _Answer:
    """What has arrived for a slot's last request."""

    epoch: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    laws: list[Law] = field(default_factory=list)
    draft: Draft = field(default_factory=Draft)
    is_complete: bool = False
    is_reading: bool = False
    read_s: float = 0.0
    draft_s: float = 0.0

    def hear(self, kind: Kind, progress: Progress) -> None:
        self.tokens += progress.tokens
        self.parents += progress.parents
        self.laws += progress.laws or ()
        self.read_s, self.draft_s = progress.read_s, progress.draft_s
        self.is_reading = kind == Kind.READING
        self.is_complete = kind == Kind.DONE

    def end(self) -> None:
        self.is_complete, self.is_reading = True, False

    def drafted(self) -> Drafted:
        if len(self.draft) != len(self.tokens):
            laws = tuple(self.laws) if self.laws else None
            self.draft = Draft(tuple(self.tokens), tuple(self.parents), laws)
        return Drafted(self.draft, self.is_complete, self.read_s, self.draft_s)


class _Pace:
    """What a step takes, and so how long silence is no reason for worry."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=16)

    def observe(self, seconds: float) -> None:
        if seconds > 0:
            self._recent.append(seconds)

    def limit_s(self) -> float:
        return max(HANG_S, _HANG_STEPS * (median(self._recent or (_UNKNOWN_STEP_S,))))


@dataclass(frozen=True)
class _Message:
    """A request, or without a text a cancel, that was not begun to be sent."""

    epoch: int
    text: Tokens | None = None
    shape: bytes = b""


class ProcessDrafter:
    """A `Drafter` whose model runs in a process of its own, on ``cores`` of its own.

    The constructor returns at once; until the model is loaded, and after a fault until it is
    loaded again, answers are empty. ``num_threads`` bounds the thread pools of its libraries,
    ``env`` adds to its environment and wins. ``on_warning`` is called with one line an
    incident, from the caller's thread, in `submit`, `poll`, `cancel` or `is_ready`; those never
    raise and never wait for the process, but for `poll`'s own wait, and for a tenth of a second
    at most to learn how it ended or whether it truly hangs. Requests' texts must not
    change, and plans must be picklable values of importable modules.

    For one thread: two callers need a lock around it. With DUODEC_DEBUG set, the process
    writes to our stderr, otherwise nowhere.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        name: str = "draft",
        cores: tuple[int, ...] | None = None,
        num_threads: int | None = None,
        env: Mapping[str, str] = {},
        on_warning: Callable[[str], None],
        start_timeout_s: float = 60.0,
    ) -> None:
        self._recipe = pickle.dumps(recipe, pickle.HIGHEST_PROTOCOL)
        self._name = name
        self._cores = ",".join(map(str, cores or ()))
        threads = {} if num_threads is None else dict.fromkeys(_THREAD_VARIABLES, str(num_threads))
        self._env = {**os.environ, **threads, **env}
        self._on_warning = on_warning
        self._start_timeout_s = start_timeout_s

        self._child: _Child | None = None
        self._children: list[_Child] = []  # those not reaped yet
        self._finalizer = weakref.finalize(self, _stop_all, self._children, os.getpid())
        self._num_started = 0
        self._epoch = 0
        self._answers: dict[int, _Answer] = {}
        self._queue: dict[int, _Message] = {}  # at most one a slot
        self._sent: dict[int, Tokens] = {}  # the text that this child knows, by slot
        self._ready_s: float | None = None
        self._asked_s: float | None = None  # since when the child owes us a word
        self._last_words: Failure | None = None
        self._failed: Failure | None = None  # a request of this child
        self._is_failed_told = False
        self._steps, self._chunks = _Pace(), _Pace()

        self._start_fault: _Fault | None = None
        self._num_failures = 0  # since it last worked
        self._num_warnings = 0  # since it last worked
        self._retry_s = 0.0
        self._start()

    # --- the Drafter ---

    def submit(self, request: DraftRequest) -> None:
        """Start to draft; sends what is new of the text, and never blocks."""
        self._tick()
        self._epoch += 1
        shape = pickle.dumps((request.plan, request.sampler), pickle.HIGHEST_PROTOCOL)
        self._answers[request.slot] = _Answer(self._epoch)
        self._put(request.slot, _Message(self._epoch, request.text, shape))

    def poll(self, slot: int, wait_s: float = 0.0) -> Drafted:
        """What has arrived. Waits only for a process that is drafting: not while it reads a
        long text, starts, or is gone."""
        end_s = perf_counter() + wait_s
        self._tick()
        while self._is_worth_waiting(slot) and (left_s := end_s - perf_counter()) > 0:
            assert self._child is not None
            self._child.channel.wait(min(left_s, HANG_S / 4))
            self._tick()
        answer = self._answers.get(slot)
        return Drafted() if answer is None else answer.drafted()

    def cancel(self, slot: int) -> None:
        """Stop the slot's work within one draft step and forget what it made; never blocks."""
        self._tick()
        answer = self._answers.pop(slot, None)
        # told even if its request was never sent: the one before it may still be in work
        if answer is not None and not answer.is_complete:
            self._put(slot, _Message(answer.epoch))

    # --- its life ---

    @property
    def restarts(self) -> int:
        """Processes started after the first."""
        return max(0, self._num_started - 1)

    @property
    def pid(self) -> int | None:
        """The process; None while there is none."""
        return None if self._child is None else self._child.pid

    @property
    def is_alive(self) -> bool:
        """There is a process that runs, though it may hang or load."""
        return self._child is not None and self._child.is_running()

    @property
    def is_ready(self) -> bool:
        """The model is loaded and the process runs. Looks, so it also restarts what is gone."""
        self._tick()
        return self._ready_s is not None

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until the model is loaded. Raises the error that loading it raised, and
        BackendUnavailable when the process ends or ``timeout_s`` passes before."""
        timeout_s = self._start_timeout_s if timeout_s is None else timeout_s
        end_s = perf_counter() + timeout_s
        fault = self._start_fault
        while self._finalizer.alive:
            fault = fault or self._advance()
            if fault is not None:
                raise fault.error or BackendUnavailable(
                    f"drafter '{self._name}' {fault.what} before its model was loaded; "
                    "set DUODEC_DEBUG=1 to see its messages"
                )
            if self._ready_s is not None:
                return
            left_s = min(end_s - perf_counter(), HANG_S)
            if left_s <= 0:
                raise BackendUnavailable(
                    f"drafter '{self._name}' was not ready after {timeout_s:g} s; "
                    "set DUODEC_DEBUG=1 to see its messages"
                )
            if self._child is None:
                sleep(min(left_s, max(0.0, self._retry_s - perf_counter())))
            else:
                self._child.channel.wait(left_s)
        raise BackendUnavailable(f"drafter '{self._name}' was closed")

    def close(self) -> None:
        """End the process, within half a second or by force. Later requests stay unanswered."""
        if self._finalizer.detach() is None:
            return
        if self._child is not None:
            self._child.stop(_EXIT_S)
        self._forget_child()
        _stop_all(self._children, os.getpid())

    def __enter__(self) -> ProcessDrafter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- the channel ---

    def _put(self, slot: int, message: _Message) -> None:
        """Send as soon as the child takes it; what waits is replaced by what is newer."""
        if self._finalizer.alive:
            self._queue.pop(slot, None)
            self._queue[slot] = message
            self._flush()
        elif slot in self._answers:
            self._answers[slot].end()

    def _flush(self) -> None:
        if self._child is None or self._ready_s is None:
            return
        channel = self._child.channel
        channel.flush()
        # a message is made when its sending begins: its text is told relative to the last one sent
        while self._queue and channel.is_flushed and not channel.is_closed:
            slot = next(iter(self._queue))
            channel.send(self._frame(slot, self._queue.pop(slot), self._child.generation))
            if self._asked_s is None:
                self._asked_s = perf_counter()

    def _frame(self, slot: int, message: _Message, generation: int) -> Frame:
        if message.text is None:
            return Frame(Kind.CANCEL, generation, slot, message.epoch)
        body = pack_request(self._sent.get(slot, _NOTHING), message.text, message.shape)
        self._sent[slot] = message.text
        return Frame(Kind.REQUEST, generation, slot, message.epoch, body)

    def _listen(self, child: _Child) -> None:
        """Take what has arrived and what can be sent; any byte that moves is a sign of life."""
        num_bytes = child.channel.num_bytes
        try:
            for frame in child.channel.receive():
                if frame.generation == child.generation:
                    self._hear(frame)
        except Exception as error:  # noqa: BLE001  a peer that sends no sense is as good as dead
            self._last_words = Failure.of(error)
            child.channel.is_closed = True
        self._flush()
        if child.channel.num_bytes > num_bytes:
            is_owed = any(not answer.is_complete for answer in self._answers.values())
            self._asked_s = perf_counter() if is_owed else None

    def _hear(self, frame: Frame) -> None:
        if frame.slot == NO_SLOT:
            if frame.kind == Kind.READY:
                self._ready_s, self._start_fault = perf_counter(), None
            elif frame.kind == Kind.ERROR:
                self._last_words = frame.value()
            return
        answer = self._answers.get(frame.slot)
        if answer is None or answer.epoch != frame.epoch:
            return  # superseded or cancelled
        value: Progress | Failure = frame.value()
        if isinstance(value, Failure):
            answer.end()
            self._failed = self._failed or value
            return
        if answer.is_reading:
            self._chunks.observe(value.read_s - answer.read_s)
        if frame.kind == Kind.NODES:
            self._steps.observe(value.draft_s - answer.draft_s)
        answer.hear(frame.kind, value)
        if answer.is_complete:
            self._num_failures = self._num_warnings = 0

    def _is_worth_waiting(self, slot: int) -> bool:
        answer = self._answers.get(slot)
        if answer is None or answer.is_complete or self._ready_s is None:
            return False
        return not any(other.is_reading for other in self._answers.values())

    # --- faults ---

    def _tick(self) -> None:
        """Move on, and say in a line what went wrong; two lines an incident at most."""
        fault = self._advance()
        if self._failed is not None and not self._is_failed_told:
            self._is_failed_told = True
            self._on_warning(
                f"drafter '{self._name}' could not draft ({self._failed.message}); "
                "going on without that draft"
            )
        if fault is None:
            return
        self._num_warnings += 1
        if self._num_warnings == 1:
            remedy = "going on without drafts, restarting it"
        elif self._num_warnings == 2:
            remedy = "drafting stays off until a restart works"
        else:
            return
        self._on_warning(f"drafter '{self._name}' {fault.what}; {remedy}")

    def _advance(self) -> _Fault | None:
        """Listen, send, notice a fault and restart what is down. Never blocks."""
        self._children[:] = [c for c in self._children if c is self._child or c.is_running()]
        if self._child is None:
            is_due = self._finalizer.alive and perf_counter() >= self._retry_s
            return self._start() if is_due else None
        is_running = self._child.is_running()  # before listening: its last words are in by then
        self._listen(self._child)
        if self._ready_s is not None and perf_counter() - self._ready_s > _PROVEN_S:
            self._num_failures = self._num_warnings = 0
        fault = self._fault(self._child, is_running)
        if fault is not None:
            self._child.kill()
            self._retire(fault)
        return fault

    def _fault(self, child: _Child, is_running: bool) -> _Fault | None:
        if child.channel.is_closed or not is_running:
            words = self._last_words
            if words is None:
                return _Fault(child.ending())
            what = "died" if self._ready_s is not None else "could not load its model"
            return _Fault(f"{what} ({words.message})", words.error(words.message))
        if self._ready_s is None:
            if perf_counter() - child.start_s > self._start_timeout_s:
                return _Fault(f"was not ready after {self._start_timeout_s:g} s")
            return None
        if self._silent_s() > self._limit_s():
            # the machine may have slept: the child gets a moment to answer before it is judged
            child.channel.wait(_SECOND_LOOK_S)
            self._listen(child)
            if (silent_s := self._silent_s()) > self._limit_s():
                return _Fault(f"hung (silent for {silent_s:.1f} s)")
        return None

    def _silent_s(self) -> float:
        return 0.0 if self._asked_s is None else perf_counter() - self._asked_s

    def _limit_s(self) -> float:
        is_reading = any(answer.is_reading for answer in self._answers.values())
        return (self._chunks if is_reading else self._steps).limit_s()

    def _retire(self, fault: _Fault) -> None:
        """The child is gone: what it made stays, what it owed is given up, a new one is due."""
        was_ready = self._ready_s is not None
        self._start_fault = None if was_ready else fault
        self._forget_child()
        # at once after its first failure in work, later after 1 s, 2 s, 4 s and so on
        at_once = was_ready and self._num_failures == 0
        self._retry_s = perf_counter()
        if not at_once:
            self._retry_s += min(_MAX_BACKOFF_S, 2.0 ** min(max(0, self._num_failures - 1), 10))
        self._num_failures += 1
        if at_once:
            self._start()

    def _forget_child(self) -> None:
        self._child = self._ready_s = self._asked_s = self._last_words = self._failed = None
        self._is_failed_told = False
        self._queue.clear()
        self._sent.clear()
        for answer in self._answers.values():
            answer.end()

    def _start(self) -> _Fault | None:
        self._num_started += 1
        command = [sys.executable, "-c", _BOOT, f"duodec-{self._name}"]
        try:
            child = _Child(command, self._cores, self._env, self._num_started)
        except OSError as error:
            fault = _Fault(f"could not be started ({error})")
            self._retire(fault)
            return fault
        self._child = child
        self._children.append(child)
        child.channel.send(Frame(Kind.RECIPE, child.generation, body=self._recipe))
        return None

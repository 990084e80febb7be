"""Run a drafter in a process of its own: own interpreter lock, own cores, own crashes.

This is the parent's side of `duodec.backends.drafter.worker`. Whatever happens there, a text goes
on: a drafter that dies or hangs drafts less, is reported in one warning and is restarted.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from time import perf_counter, sleep
from types import TracebackType
from typing import Protocol

from duodec.backends.drafter.channel import Frame, Kind
from duodec.backends.drafter.child import Child, Children, Fault
from duodec.backends.drafter.requests import Requests
from duodec.backends.drafter.supervision import DOUBT_S, HANG_S, HangDetector, Incidents
from duodec.core.drafters import Drafted, DraftModel, DraftRequest
from duodec.errors import BackendUnavailable

_CLOSED_S = 0.001  # between two looks at a process whose end is not known yet
_EXIT_S = 0.5


class Recipe(Protocol):
    """Make the child's model; a picklable value of an importable module."""

    def load(self) -> DraftModel:
        """Load the model, in the child. Raises the typed errors of loading."""


class ProcessDrafter:
    """Draft with a model in a process of its own, on ``cores`` of its own.

    The constructor returns at once. Drafts are empty until the model is loaded, and after a fault
    until it is loaded again. ``num_threads`` bounds the thread pools of its libraries, which see no
    GPU. ``env`` adds to its environment and wins. ``on_warning`` is called with one line per
    incident, from the caller's thread, in `submit`, `poll`, `cancel` or `is_ready`. These never
    raise and never wait for the process, except for `poll`'s own wait. Requests' texts must not
    change, and plans must be picklable values of importable modules.

    One thread may use it: two callers need a lock around it. With DUODEC_DEBUG set, the process
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
        self._on_warning = on_warning
        self._start_timeout_s = start_timeout_s
        self._children = Children(name, cores, num_threads, env)
        self._child: Child | None = None
        self._requests = Requests()
        self._incidents = Incidents()
        self._hang_detector = HangDetector()
        self._start_fault: Fault | None = None  # why the last start failed
        self._retry_s = 0.0
        self._start()

    # --- the Drafter ---

    def submit(self, request: DraftRequest) -> None:
        """Start to draft. It sends what is new of the text, and never blocks."""
        self._tick()
        self._requests.ask(request)
        self._send()

    def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Drafted:
        """Return what has arrived. It waits only for a process that is drafting: not while it reads
        a long text, starts, or is gone."""
        end_s = perf_counter() + wait_s
        self._tick()
        while (
            wait_s > 0
            and self._child is not None
            and self._child.is_ready
            and not self._child.channel.is_closed
            and self._requests.is_drafting(slot, beyond)
            and not self._requests.is_overdue()
            and (left_s := end_s - perf_counter()) > 0
        ):
            self._child.channel.wait(min(left_s, HANG_S / 4))
            self._tick()
        return self._requests.drafted(slot)

    def heard(self, slot: int) -> Drafted:
        """Return what had arrived by the last call of any other method, without looking for
        more."""
        return self._requests.drafted(slot)

    def cancel(self, slot: int) -> None:
        """Stop the slot's work within one draft step and forget its result; it never blocks."""
        self._tick()
        self._requests.cancel(slot)
        self._send()

    # --- its life ---

    @property
    def restarts(self) -> int:
        """Return the number of processes started after the first."""
        return self._children.num_started - 1

    @property
    def pid(self) -> int | None:
        """Return the process id; None while there is no process."""
        return None if self._child is None else self._child.pid

    @property
    def is_alive(self) -> bool:
        """Return whether a process runs, though it may hang or load."""
        return self._child is not None and self._child.is_running()

    @property
    def is_ready(self) -> bool:
        """Return whether the model is loaded and the process runs. This also restarts a process
        that is gone."""
        self._tick()
        return self._child is not None and self._child.is_ready

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until the model is loaded. Raises the error that loading it raised, and
        BackendUnavailable if the process ends or ``timeout_s`` passes before."""
        timeout_s = self._start_timeout_s if timeout_s is None else timeout_s
        end_s = perf_counter() + timeout_s
        fault = self._start_fault
        while not self._children.is_closed:
            fault = fault or self._advance()
            if fault is not None:
                raise fault.error or BackendUnavailable(
                    f"drafter '{self._name}' {fault.what} before its model was loaded; "
                    "set DUODEC_DEBUG=1 to see its messages"
                )
            if self._child is not None and self._child.is_ready:
                return
            left_s = min(end_s - perf_counter(), HANG_S)
            if left_s <= 0:
                raise BackendUnavailable(
                    f"drafter '{self._name}' was not ready after {timeout_s:g} s; "
                    "set DUODEC_DEBUG=1 to see its messages"
                )
            if self._child is None:
                sleep(min(left_s, max(0.0, self._retry_s - perf_counter())))
            elif self._child.channel.is_closed:
                sleep(_CLOSED_S)
            else:
                self._child.channel.wait(left_s)
        raise BackendUnavailable(f"drafter '{self._name}' was closed")

    def close(self) -> None:
        """End the process, within half a second or by force. Later requests get no response."""
        self._children.close(_EXIT_S)
        self._child = None
        self._requests.give_up()

    def __enter__(self) -> ProcessDrafter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- supervision ---

    def _send(self) -> None:
        if self._children.is_closed:
            self._requests.give_up()
        elif self._child is not None:
            self._requests.send_to(self._child)

    def _tick(self) -> None:
        """Move on, and report in one line what went wrong; at most two lines per incident."""
        fault = self._advance()
        child = self._child
        if child is not None and child.failed is not None and not child.is_failure_reported:
            child.is_failure_reported = True
            self._on_warning(
                f"drafter '{self._name}' could not draft ({child.failed.message}); "
                "going on without that draft"
            )
        if fault is not None and (remedy := self._incidents.remedy()):
            self._on_warning(f"drafter '{self._name}' {fault.what}; {remedy}")

    def _advance(self) -> Fault | None:
        """Receive, send, detect a fault and restart what is down. It never blocks."""
        self._children.reap()
        child = self._child
        if child is None:
            is_due = not self._children.is_closed and perf_counter() >= self._retry_s
            return self._start() if is_due else None
        # Checked first: all that it sent before its end is then received.
        is_running = child.is_running()
        self._requests.listen_to(child)
        if child.is_ready:
            self._start_fault = None
        if child.is_proven:
            self._incidents.forget()
        fault = self._fault(child, is_running)
        if fault is not None:
            child.kill()
            self._retire(fault, was_ready=child.is_ready)
        return fault

    def _fault(self, child: Child, is_running: bool) -> Fault | None:
        """Return what is certainly wrong with it. What only seems wrong is checked again later,
        without a wait."""
        is_closed = child.channel.is_closed
        if not is_running or (is_closed and child.fatal_error is not None):
            return child.ending()
        # A process is reaped after its files are closed, and the machine may have slept.
        hung_s = (
            self._hang_detector.hung_s(child.pid, *self._requests.silence())
            if child.is_ready
            else 0.0
        )
        if child.is_doubted_for(DOUBT_S, is_closed or hung_s > 0):
            return child.ending() if is_closed else Fault(f"hung (silent for {hung_s:.1f} s)")
        if not child.is_ready and perf_counter() - child.start_s > self._start_timeout_s:
            return Fault(f"was not ready after {self._start_timeout_s:g} s")
        return None

    def _retire(self, fault: Fault, *, was_ready: bool) -> None:
        """Remove the child; a new one is due, at once or later."""
        self._start_fault = None if was_ready else fault
        self._child = None
        self._requests.give_up()
        pause_s = self._incidents.pause_s(was_ready=was_ready)
        self._retry_s = perf_counter() + pause_s
        if not pause_s:
            self._start()

    def _start(self) -> Fault | None:
        try:
            child = self._children.start()
        except OSError as error:
            fault = Fault(f"could not be started ({error})")
            self._retire(fault, was_ready=False)
            return fault
        self._child = child
        child.channel.send(Frame(Kind.RECIPE, child.generation, body=self._recipe))
        return None

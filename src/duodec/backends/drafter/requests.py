"""Keep the requests to a drafter's process, and what has arrived for them so far."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from duodec.backends.drafter.channel import (
    READINGS,
    Failure,
    Frame,
    Kind,
    Progress,
    pack_request,
)
from duodec.backends.drafter.child import Child
from duodec.backends.drafter.supervision import DOUBT_S, Pace, Silence
from duodec.core.candidates import CandidateTree
from duodec.core.draft import Draft
from duodec.core.drafters import Drafted, DraftRequest, Plan
from duodec.core.sampling.sampler import Distribution, Sampler, Tokens

_NOTHING = np.empty(0, dtype=np.int32)
_Shape = tuple[Plan, Sampler, str]  # A request without its text.


@dataclass
class _Received:
    """Hold what has arrived for a slot's last request."""

    epoch: int
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    distributions: list[Distribution] = field(default_factory=list)
    draft: Draft = field(default_factory=Draft)
    tree: CandidateTree | None = None
    num_steps: int = 0
    is_complete: bool = False
    reading: Kind | None = None  # how a long text is being read; None: none is
    read_s: float = 0.0
    draft_s: float = 0.0
    num_kept: int = 0  # expanded nodes of the last tree that are in this one
    root_s: float = 0.0

    def hear(self, kind: Kind, progress: Progress) -> None:
        if progress.confidences is None:
            self.tokens += progress.tokens
            self.parents += progress.parents
            self.distributions += progress.distributions or ()
        else:
            self.tree = self.tree or CandidateTree()
            self.tree.extend(progress.tokens, progress.parents, progress.confidences)
        self.num_steps += kind == Kind.NODES
        if self.tree is not None:
            if self.num_steps == 1:
                self.num_kept = self.tree.num_expanded
            elif not self.num_kept and not self.root_s:
                self.root_s = progress.draft_s
                self.num_kept = self.tree.num_expanded - 1  # it may also have read a seed
        self.read_s, self.draft_s = progress.read_s, progress.draft_s
        self.reading = kind if kind in READINGS else None
        self.is_complete = kind == Kind.DONE

    def end(self) -> None:
        self.is_complete, self.reading = True, None

    def drafted(self, busy_s: float) -> Drafted:
        if len(self.draft) != len(self.tokens):
            distributions = tuple(self.distributions) if self.distributions else None
            self.draft = Draft(tuple(self.tokens), tuple(self.parents), distributions)
        return Drafted(
            self.draft,
            self.tree,
            self.num_steps,
            self.is_complete,
            self.read_s,
            self.draft_s,
            self.tree.num_expanded - self.num_kept if self.tree else 0,
            self.root_s,
            busy_s,
        )


@dataclass(frozen=True)
class _Message:
    """Hold a request, or without a text a cancel, whose sending has not begun."""

    epoch: int
    text: Tokens | None = None
    shape: bytes = b""


class Requests:
    """Hold each slot's last request, its way to a child and what came back. It never blocks."""

    def __init__(self) -> None:
        self._epoch = 0
        self._received: dict[int, _Received] = {}
        self._queue: dict[int, _Message] = {}  # at most one per slot
        self._silence = Silence()
        self._busy_s = 0.0  # the child's last report
        self._last_shape: tuple[_Shape | None, bytes] = None, b""
        self._steps, self._chunks = Pace(), Pace()

    def ask(self, request: DraftRequest) -> None:
        """Replace the slot's last request with this one."""
        self._epoch += 1
        shape = self._shape(request)
        # A child in the middle of a long text goes on reading until it sees this.
        old = self._received.get(request.slot)
        self._received[request.slot] = _Received(self._epoch, reading=old.reading if old else None)
        self._put(request.slot, _Message(self._epoch, request.text, shape))

    def cancel(self, slot: int) -> None:
        """Forget what arrived for the slot and tell the child, which may still be working on it."""
        received = self._received.pop(slot, None)
        # The child is told even if the request was never sent: it may still be working on the one
        # before.
        if received is not None:
            self._put(slot, _Message(received.epoch))

    def drafted(self, slot: int) -> Drafted:
        """Return what has arrived for the slot's last request."""
        received = self._received.get(slot)
        return Drafted() if received is None else received.drafted(self._busy_s)

    def is_drafting(self, slot: int, beyond: int | None = None) -> bool:
        """Return whether the slot expects more (than ``beyond`` candidates), and no long text is
        read before that."""
        received = self._received.get(slot)
        if received is None or received.is_complete or self._is_reading():
            return False
        return beyond is None or received.tree is None or len(received.tree) <= beyond

    def silence(self) -> tuple[float | None, float]:
        """Return since when the child has kept us waiting, and for how many seconds that is normal.
        None: it owes us nothing."""
        is_reading = any(received.reading for received in self._received.values())
        pace = self._chunks if is_reading else self._steps
        return self._silence.since_s, pace.limit_s()

    def is_overdue(self) -> bool:
        """Return whether the child has been silent too long to be waited for."""
        since_s, limit_s = self.silence()
        return since_s is not None and perf_counter() - since_s > limit_s + DOUBT_S

    def give_up(self) -> None:
        """Handle a child that is gone: its results stay, and nothing else is expected from it."""
        self._queue.clear()
        self._silence.end(is_more_owed=False)
        for received in self._received.values():
            received.end()

    def send_to(self, child: Child) -> None:
        """Send what the child accepts now; requests only when it is ready."""
        channel = child.channel
        channel.flush()
        # A message is made when its sending begins: its text is relative to the last one sent.
        while self._queue and child.is_ready and channel.is_flushed and not channel.is_closed:
            slot = next(iter(self._queue))
            channel.send(_frame(child, slot, self._queue.pop(slot)))
            self._silence.ask()

    def listen_to(self, child: Child) -> None:
        """Receive what has arrived and send what is possible; any byte that moves is a sign of
        life."""
        num_bytes = child.channel.num_bytes
        try:
            for frame in child.receive():
                self._hear(frame, child)
        except Exception as error:  # noqa: BLE001  a peer that sends no sense is as good as dead
            child.fatal_error = Failure.of(error)
            child.channel.is_closed = True
        self.send_to(child)
        if child.channel.num_bytes > num_bytes:
            is_owed = any(not received.is_complete for received in self._received.values())
            self._silence.end(is_more_owed=is_owed)

    def _shape(self, request: DraftRequest) -> bytes:
        """Return the pickled plan, sampler and owner; most requests share those of the one
        before."""
        last, shape = self._last_shape
        own = request.plan, request.sampler, request.owner
        if last is None or own[0] is not last[0] or own[1] is not last[1] or own[2] != last[2]:
            shape = pickle.dumps(own, pickle.HIGHEST_PROTOCOL)
            self._last_shape = own, shape
        return shape

    def _put(self, slot: int, message: _Message) -> None:
        """Queue a message in place of the slot's waiting one."""
        self._queue.pop(slot, None)
        self._queue[slot] = message

    def _hear(self, frame: Frame, child: Child) -> None:
        received = self._received.get(frame.slot)
        if received is None:
            return  # cancelled
        if received.epoch != frame.epoch:  # superseded; but a drafting child has finished reading
            if frame.kind not in READINGS:
                received.reading = None
            return
        value: Progress | Failure = frame.value()
        if isinstance(value, Failure):
            received.end()
            child.failed = child.failed or value
            return
        self._busy_s = value.busy_s
        if received.reading == Kind.READING:
            self._chunks.observe(value.read_s - received.read_s)
        if frame.kind == Kind.NODES:
            self._steps.observe(value.draft_s - received.draft_s)
        received.hear(frame.kind, value)
        child.has_drafted = child.has_drafted or frame.kind in (Kind.NODES, Kind.DONE)

    def _is_reading(self) -> bool:
        """Return whether a text is read apart from any step; then no caller waits for it."""
        return any(received.reading == Kind.READING for received in self._received.values())


def _frame(child: Child, slot: int, message: _Message) -> Frame:
    if message.text is None:
        return Frame(Kind.CANCEL, child.generation, slot, message.epoch)
    body = pack_request(child.texts.get(slot, _NOTHING), message.text, message.shape)
    child.texts[slot] = message.text
    return Frame(Kind.REQUEST, child.generation, slot, message.epoch, body)

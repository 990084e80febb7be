"""Run in the drafter's process: take texts, grow drafts one step at a time, send each step's nodes.

Between two steps it looks at its socket, so a newer request or a cancel takes effect within one
step. With nothing to draft it lets the model read older text, a little at a time. With nothing to
read it sleeps in the kernel. It dies with its parent. Only `duodec.backends.drafter.child` starts
it, and has set the environment and the cores already.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from threading import Thread
from time import perf_counter

import numpy as np

from duodec.backends.drafter.channel import (
    NO_SLOT,
    Channel,
    Failure,
    Frame,
    Kind,
    Progress,
    unpack_request,
)
from duodec.core.candidates import CandidateTree
from duodec.core.draft import Draft
from duodec.core.drafters import DraftModel, DraftRequest, RowQuery
from duodec.core.prefix import common_prefix
from duodec.core.sampling.grammar import Grammar, Mask
from duodec.core.sampling.sampler import Tokens
from duodec.core.turns import InTurns
from duodec.errors import BadOption

LONG_TEXT = 64  # from this many new tokens on reading is announced, so that no caller waits for it
_LAST_WORDS_S = 1.0
_NOTHING = np.empty(0, dtype=np.int32)


class _Abandoned(BaseException):  # so that no model's `except Exception` catches it
    """Raised when the text being read is no longer needed."""


@dataclass
class _ActiveRequest:
    """Hold a request in progress; ``steps`` is None until its text was read."""

    epoch: int
    request: DraftRequest
    steps: Iterator[Draft | CandidateTree] | None = None
    num_sent: int = 0
    start_s: float = 0.0
    read_s: float = 0.0
    draft_s: float = 0.0

    @property
    def reading(self) -> Kind:
        """Return how its reading is reported: in turns the target waits, so the first step reads a
        long text, on all cores."""
        in_turns = isinstance(self.request.plan, InTurns)
        return Kind.READING_IN_STEP if in_turns else Kind.READING


class Worker:
    """Run the child's loop over one channel and one model."""

    def __init__(self, channel: Channel, generation: int, model: DraftModel) -> None:
        self._channel = channel
        self._generation = generation
        self._model = model
        # By slot; the slot whose turn it is comes first.
        self._active: dict[int, _ActiveRequest] = {}
        self._texts: dict[int, Tokens] = {}  # last text received, by slot
        self._seen: dict[int, Tokens] = {}  # last text read, by slot
        self._owners: dict[int, str] = {}  # owner of that text, by slot
        self._masks: dict[int, tuple[Grammar, Mask]] = {}  # last mask, by slot
        self._wide: dict[int, int] = {}  # slots that may read older text -> their last epoch
        self._current: _ActiveRequest | None = None
        self._busy_s = 0.0
        if model.traits.reads_in_chunks:
            model.on_chunk = self._between_chunks

    def run(self) -> None:
        """Serve until the parent closes its end."""
        while True:
            start = perf_counter()
            self._pump()
            if self._channel.is_closed:
                return
            is_working = bool(self._active) or self._widen_any()
            if self._active:
                slot = next(iter(self._active))
                active = self._active[slot]
                self._turn(active)
                if self._active.get(slot) is active:
                    self._active[slot] = self._active.pop(slot)
                self._widen(slot, is_idle=False)
            self._busy_s += perf_counter() - start
            if not is_working:
                self._channel.wait(None)

    def _widen_any(self) -> bool:
        """Let the model read more of one slot's text, because there is nothing else to do."""
        return any(self._widen(slot, is_idle=True) for slot in list(self._wide))

    def _widen(self, slot: int, *, is_idle: bool) -> bool:
        if slot not in self._wide or not self._model.traits.has_window:
            return False
        try:
            return self._model.widen(slot, is_idle=is_idle)
        except Exception as error:  # noqa: BLE001  as a request that fails
            self._active.pop(slot, None)
            self._send(Kind.ERROR, slot, self._wide.pop(slot), Failure.of(error))
            return False

    def _pump(self) -> None:
        self._channel.flush()
        for frame in self._channel.receive():
            if frame.generation != self._generation:
                continue
            if frame.kind == Kind.REQUEST:
                self._accept(frame)
            elif frame.kind == Kind.CANCEL:
                active = self._active.get(frame.slot)
                if active is not None and active.epoch <= frame.epoch:
                    del self._active[frame.slot]
                if self._wide.get(frame.slot, frame.epoch) <= frame.epoch:
                    self._wide.pop(frame.slot, None)
                self._send(Kind.DONE, frame.slot, frame.epoch, Progress())

    def _accept(self, frame: Frame) -> None:
        """Replace the slot's earlier request with a new one."""
        self._active.pop(frame.slot, None)
        text, shape = unpack_request(self._texts.get(frame.slot, _NOTHING), frame.body)
        self._texts[frame.slot] = text
        try:
            plan, sampler, owner = pickle.loads(shape)  # noqa: S301  from our parent
        except Exception as error:  # noqa: BLE001  a plan whose module this process cannot import
            self._send(Kind.ERROR, frame.slot, frame.epoch, Failure.of(error))
            return
        self._wide[frame.slot] = frame.epoch
        self._active[frame.slot] = _ActiveRequest(
            frame.epoch, DraftRequest(frame.slot, text, plan, sampler, owner)
        )

    def _own(self, slot: int, owner: str) -> None:
        """Assign the slot's text to this owner; nothing stays known of another owner's."""
        if self._owners.get(slot, "") != owner:
            self._seen.pop(slot, None)
            self._masks.pop(slot, None)
            self._model.forget(slot)
        self._owners[slot] = owner

    def _turn(self, active: _ActiveRequest) -> None:
        """Read the request's text, or take one step of its draft."""
        self._current = active
        try:
            if active.steps is None:
                has_taken_long = self._read(active)
                active.steps = active.request.plan.grow(self._model, self._masked(active))
                if has_taken_long:
                    return
            start = perf_counter()
            tree = next(active.steps, None)
            active.draft_s += perf_counter() - start
        except _Abandoned:
            return
        except Exception as error:  # noqa: BLE001  one request fails, the drafter goes on
            del self._active[active.request.slot]
            self._masks.pop(active.request.slot, None)  # a failed grammar stays failed
            self._send(Kind.ERROR, active.request.slot, active.epoch, Failure.of(error))
            return
        finally:
            self._current = None
        if tree is None:
            del self._active[active.request.slot]
            self._tell(Kind.DONE, active)
        else:
            self._tell(Kind.NODES, active, tree)

    def _read(self, active: _ActiveRequest) -> bool:
        """Read a long text except its last token, whose row the first step needs; a few new tokens
        go with that step. Return whether reading took a turn of its own."""
        slot, text = active.request.slot, active.request.text
        self._own(slot, active.request.owner)
        active.start_s = perf_counter()
        is_long = len(text) - common_prefix(self._seen.get(slot, _NOTHING), text) > LONG_TEXT
        if is_long:
            self._tell(active.reading, active)
        is_apart = is_long and active.reading == Kind.READING  # otherwise the first step reads it
        if is_apart:
            self._model.rows(RowQuery(slot, text[:-1], Draft(), ()))
            active.read_s = perf_counter() - active.start_s
        self._seen[slot] = text
        return is_apart

    def _masked(self, active: _ActiveRequest) -> DraftRequest:
        """Return the request, with a mask of its own if its grammar can be followed here."""
        request = active.request
        grammar = request.sampler.params.grammar
        if grammar is None or not self._model.traits.has_masks:
            return request
        known = self._masks.get(request.slot)
        if known is None or known[0] != grammar:
            self._tell(Kind.READING, active)  # reading a grammar may take a while
            known = self._masks[request.slot] = (grammar, self._model.mask(grammar))
        return replace(request, sampler=replace(request.sampler, mask=known[1]))

    def _between_chunks(self) -> None:
        """Show that the process lives, and end a reading that is no longer needed. The model calls
        it."""
        active = self._current
        self._pump()
        if active is None:
            return
        if self._channel.is_closed or self._active.get(active.request.slot) is not active:
            raise _Abandoned
        if active.steps is None:
            active.read_s = perf_counter() - active.start_s
        self._tell(active.reading, active)

    def _tell(
        self, kind: Kind, active: _ActiveRequest, tree: Draft | CandidateTree | None = None
    ) -> None:
        """Send a frame about a request, with the nodes of ``tree`` that were not sent yet."""
        progress = Progress(read_s=active.read_s, draft_s=active.draft_s, busy_s=self._busy_s)
        if tree is not None:
            new = slice(active.num_sent, None)
            distributions = None if tree.distributions is None else tree.distributions[new]
            progress = Progress(
                tree.tokens[new],
                tree.parents[new],
                distributions,
                tree.confidences[new] if isinstance(tree, CandidateTree) else None,
                active.read_s,
                active.draft_s,
                self._busy_s,
            )
            active.num_sent = len(tree)
        self._send(kind, active.request.slot, active.epoch, progress)

    def _send(self, kind: Kind, slot: int, epoch: int, value: Progress | Failure) -> None:
        body = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
        self._channel.send(Frame(kind, self._generation, slot, epoch, body))


def main(generation: int, socket_fd: int, lifeline_fd: int, problem: str) -> None:
    """Serve the parent at the other end of ``socket_fd``; exit when ``lifeline_fd`` ends.

    ``problem`` is what went wrong before this could run; it makes the loading fail.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the parent
    Thread(target=_die_with_parent, args=(lifeline_fd,), daemon=True).start()
    channel = Channel(socket.socket(fileno=socket_fd))
    try:
        if problem:
            raise BadOption(problem)
        model = _load(channel)
        if model is not None:
            channel.send(Frame(Kind.READY, generation))
            Worker(channel, generation, model).run()
    except Exception as error:  # noqa: BLE001  the last words; the parent decides what they mean
        traceback.print_exc()
        body = pickle.dumps(Failure.of(error))
        channel.send(Frame(Kind.ERROR, generation, NO_SLOT, 0, body))
        end = perf_counter() + _LAST_WORDS_S
        while not channel.is_flushed and perf_counter() < end:
            channel.wait(_LAST_WORDS_S)
            channel.flush()
        sys.exit(1)


def _load(channel: Channel) -> DraftModel | None:
    """Return the model of the recipe that the parent sends first; None if the parent left."""
    while not channel.is_closed:
        channel.wait(None)
        for frame in channel.receive():
            model: DraftModel = frame.value().load()
            return model
    return None


def _die_with_parent(lifeline_fd: int) -> None:
    """Block until the parent's end of the pipe is gone, also while a C call runs in `main`."""
    os.read(lifeline_fd, 1)
    os._exit(0)

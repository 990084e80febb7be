"""Exchange frames between a drafter's two processes over a socket that never blocks.

Frames arrive whole or not at all. Both ends keep what the kernel does not accept yet, so a send
returns at once even when the peer is stopped. Half a frame from a peer that was killed while it
wrote is never seen. No lock is shared: a peer may be killed at any instant.
"""

from __future__ import annotations

import pickle
import select
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Any

import numpy as np

from duodec.core.prefix import common_prefix
from duodec.core.sampling.sampler import Distribution, Tokens
from duodec.errors import BackendUnavailable, DuodecError

NO_SLOT = -1  # slot of frames about the process itself

_HEADER = Struct("<QBIqQ")  # bytes of the body, kind, generation, slot, epoch
_REQUEST = Struct("<QQ")  # tokens kept of the slot's last text, bytes of the tail
_CHUNK_BYTES = 1 << 18


class Kind(IntEnum):
    """Name what a frame says."""

    RECIPE = 1  # parent to child: load this
    REQUEST = 2
    CANCEL = 3
    READY = 4  # child to parent: the model is loaded
    READING = 5  # still reading a long text
    NODES = 6  # one step further
    DONE = 7  # nothing more comes for this request; also confirms a cancel
    ERROR = 8  # the request failed; with NO_SLOT, the process ends
    READING_IN_STEP = 9  # still reading a long text, in a step that is waited for


READINGS = frozenset((Kind.READING, Kind.READING_IN_STEP))
_KINDS = frozenset(Kind)


@dataclass(frozen=True)
class Frame:
    """Hold a frame. ``generation`` counts the processes of one drafter, ``epoch`` its requests."""

    kind: Kind
    generation: int
    slot: int = NO_SLOT
    epoch: int = 0
    body: bytes = b""

    def value(self) -> Any:
        """Return the pickled value in the body; both ends are ours."""
        return pickle.loads(self.body)  # noqa: S301


@dataclass(frozen=True)
class Progress:
    """Hold the nodes that are new since the request's last frame, and its seconds so far."""

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    distributions: Sequence[Distribution] | None = None
    confidences: Sequence[float] | None = None  # set for a tree of candidates
    read_s: float = 0.0
    draft_s: float = 0.0
    busy_s: float = 0.0  # work of the process for all its requests


@dataclass(frozen=True)
class Failure:
    """Carry an exception between processes: its class, if that is ours, and its message."""

    error: type[DuodecError]
    message: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        if isinstance(error, DuodecError):
            return cls(type(error), str(error))
        return cls(BackendUnavailable, f"{type(error).__name__}: {error}")


def pack_request(known: Tokens, text: Tokens, shape: bytes) -> bytes:
    """Pack ``text`` as its difference from ``known``, and the pickled plan, sampler and owner."""
    keep = common_prefix(known, text)
    tail = np.ascontiguousarray(text[keep:], dtype=np.int32).tobytes()
    return b"".join((_REQUEST.pack(keep, len(tail)), tail, shape))


def unpack_request(known: Tokens, body: bytes) -> tuple[Tokens, bytes]:
    """Return the text and the pickled plan, sampler and owner."""
    keep, num_bytes = _REQUEST.unpack_from(body)
    tail = np.frombuffer(body, np.int32, num_bytes // 4, _REQUEST.size)
    return np.concatenate([known[:keep], tail]), body[_REQUEST.size + num_bytes :]


class Channel:
    """Own one end of a socket pair that carries frames.

    ``is_closed`` is set once the peer is gone or sent something that is not a frame. ``num_bytes``
    counts what moved in either direction: a peer that accepts or sends bytes is alive.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._inbox = bytearray()
        self._outbox = bytearray()
        self.num_bytes = 0
        self.is_closed = False

    @property
    def is_flushed(self) -> bool:
        """Return whether the kernel has accepted all that was sent."""
        return not self._outbox

    def send(self, frame: Frame) -> None:
        """Send a frame, or keep for later what the kernel does not accept. It never blocks."""
        self._outbox += _HEADER.pack(
            len(frame.body), frame.kind, frame.generation, frame.slot, frame.epoch
        )
        self._outbox += frame.body
        self.flush()

    def flush(self) -> None:
        """Send what was kept, as far as the kernel accepts it. It never blocks."""
        try:
            while self._outbox and not self.is_closed:
                with memoryview(self._outbox) as view:
                    num_sent = self._socket.send(view[:_CHUNK_BYTES])
                del self._outbox[:num_sent]
                self.num_bytes += num_sent
        except BlockingIOError:
            pass  # the rest waits here
        except OSError:
            self._outbox.clear()  # the peer will not read it; what the peer sent is still read

    def receive(self) -> list[Frame]:
        """Return the frames that have arrived whole. It never blocks."""
        try:
            while not self.is_closed:
                data = self._socket.recv(_CHUNK_BYTES)
                self._inbox += data
                self.num_bytes += len(data)
                self.is_closed = not data
        except BlockingIOError:
            pass
        except OSError:
            self.is_closed = True
        return self._whole_frames()

    def _whole_frames(self) -> list[Frame]:
        frames: list[Frame] = []
        start = 0
        while len(self._inbox) - start >= _HEADER.size:
            size, kind, generation, slot, epoch = _HEADER.unpack_from(self._inbox, start)
            body, end = start + _HEADER.size, start + _HEADER.size + size
            if kind not in _KINDS:
                self.is_closed = True
                break
            if end > len(self._inbox):
                break
            content = bytes(self._inbox[body:end])
            frames.append(Frame(Kind(kind), generation, slot, epoch, content))
            start = end
        del self._inbox[:start]
        return frames

    def wait(self, timeout_s: float | None) -> None:
        """Sleep until bytes can move, at most ``timeout_s`` (None: without limit)."""
        poll = select.poll()  # select() refuses descriptors above 1023
        poll.register(self._socket, select.POLLIN | (0 if self.is_flushed else select.POLLOUT))
        poll.poll(None if timeout_s is None else max(0.0, timeout_s) * 1000)

    def close(self) -> None:
        self.is_closed = True
        self._socket.close()

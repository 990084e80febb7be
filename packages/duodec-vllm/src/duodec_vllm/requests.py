"""Match rows of the batch to requests: vLLM does not name them, and rows move.

A request is identified by its text. Requests with the same text need the same drafts, so confusing
them does no harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from duodec.core.candidates import TreeCursor
from duodec.core.prefix import common_prefix
from duodec.core.sampling.sampler import Tokens
from duodec.planning.selection import Selection
from duodec.planning.sources import TextSources

_WEIGHT = 4.0  # accepted tokens that the expectation counts as
_FADE = 0.95  # of a request's earlier steps
_MUCH = 64  # known tokens that justify taking another request's slot


@dataclass(frozen=True)
class Row:
    """One row of the batch: its text, and how many of its tokens are from the last step."""

    text: NDArray[np.integer]  # (length,) a view of vLLM's own memory
    num_new: int  # 0: it is in prefill


@dataclass
class AcceptanceRatio:
    """One request's acceptance in proportion to that expected from all requests."""

    right: float = _WEIGHT
    expected: float = _WEIGHT

    def observe(self, right: int, expected: float) -> None:
        self.right = _WEIGHT + (self.right - _WEIGHT) * _FADE + right
        self.expected = _WEIGHT + (self.expected - _WEIGHT) * _FADE + expected

    @property
    def factor(self) -> float:
        return self.right / self.expected


@dataclass(eq=False)
class Request:
    """One text being generated. ``text`` is a copy that only grows."""

    slot: int | None  # at the drafter; None: no slot was free
    last_step: int = 0  # when it was last in the batch
    cursor: TreeCursor = field(default_factory=TreeCursor)
    texts: TextSources | None = None
    selection: Selection | None = None  # the last one from them
    num_prompt: int = 0
    is_served: bool = False  # the drafter works for it
    acceptance: AcceptanceRatio = field(default_factory=AcceptanceRatio)
    drafted: tuple[int, ...] = ()  # the draft in flight
    num_expected: float = 0.0  # of its tokens, to be accepted
    num_right: int = 0  # draft tokens that the last step accepted
    last_search: int = 0  # step of the last search of earlier text
    num_new: int = 0  # tokens since it was last seen
    new_tokens: Sequence[int] = ()  # these, if they are from the last step
    is_decoding: bool = False  # its prefill ended before the last step
    is_continued: bool = False  # all new tokens are from the last step
    num_row_new: int = 0  # its row's tokens in the last step
    num_indexed: int = 0  # tokens that ``texts`` has indexed
    length: int = 0  # of the text
    _buffer: Tokens = field(default_factory=lambda: np.empty(256, dtype=np.int32))

    @property
    def text(self) -> Tokens:
        return self._buffer[: self.length]

    def extend(self, tokens: NDArray[np.integer]) -> None:
        length = self.length + len(tokens)
        if length > len(self._buffer):
            buffer = np.empty(2 * length, dtype=np.int32)
            buffer[: self.length] = self.text
            self._buffer = buffer
        self._buffer[self.length : length] = tokens
        self.length = length

    def is_begin_of(self, text: NDArray[np.integer]) -> bool:
        if self.length > len(text):
            return False
        # bytes are compared faster than arrays of this length
        return self.text.tobytes() == text[: self.length].astype(np.int32, copy=False).tobytes()


class Requests:
    """All known requests: those in the batch, and those that left it recently."""

    def __init__(self, num_slots: int) -> None:
        self._free_slots = list(range(num_slots))[::-1]
        self._known: list[Request] = []
        self._rows: list[Request] = []  # of the last step
        self._evicted: list[Request] = []  # in this step
        self._step = 0

    def match(self, rows: Sequence[Row]) -> list[Request]:
        """The request of every row, with its text brought up to date; new ones are made."""
        self._step += 1
        found: list[Request | None] = [None] * len(rows)
        unclaimed = dict.fromkeys(self._known)
        for i, row in enumerate(rows):  # rows stay where they are, mostly
            if i >= len(self._rows):
                break
            request = self._rows[i]
            if len(row.text) - row.num_new == request.length and request.is_begin_of(row.text):
                found[i] = request
                unclaimed.pop(request, None)
        for i, row in enumerate(rows):
            known = None if found[i] else self._find(row, list(unclaimed))
            if known is not None:
                found[i] = known
                del unclaimed[known]
        self._rows = []
        self._evicted = []
        for known, row in zip(found, rows, strict=True):
            self._rows.append(known or self._admit(row, unclaimed))
        for request, row in zip(self._rows, rows, strict=True):
            if request.slot is None:
                request.slot = self._slot_for(row, unclaimed)
            self._update(request, row)
        return list(self._rows)

    def gone(self) -> list[Request]:
        """Those that have just left the batch: finished, aborted or preempted."""
        known = (*self._known, *self._evicted)
        return [request for request in known if request.last_step == self._step - 1]

    def _find(self, row: Row, others: Sequence[Request]) -> Request | None:
        """The one whose text this row goes on with."""
        begins = [request for request in others if request.is_begin_of(row.text)]
        return max(begins, key=lambda request: request.length, default=None)

    def _admit(self, row: Row, idle: dict[Request, None]) -> Request:
        """A new request."""
        request = Request(self._slot_for(row, idle))
        self._known.append(request)
        return request

    def _slot_for(self, row: Row, idle: dict[Request, None]) -> int | None:
        """A slot that has much of the text in its cache, or else an unused one, or else the one
        idle for longest; its request is forgotten."""
        for request in [request for request in idle if request.slot is None]:
            self._forget(request, idle)
        text = row.text.astype(np.int32)
        shared = {request: common_prefix(request.text, text) for request in idle}
        old = max(idle, key=lambda r: (shared[r], -r.last_step), default=None)
        if self._free_slots and (old is None or shared[old] < _MUCH):
            return self._free_slots.pop()
        if old is None:
            return None
        self._forget(old, idle)
        return old.slot

    def _forget(self, request: Request, idle: dict[Request, None]) -> None:
        self._known.remove(request)
        self._evicted.append(request)
        del idle[request]

    def _update(self, request: Request, row: Row) -> None:
        before = request.length
        new = row.text[before:]
        request.extend(new)
        was_here = request.last_step == self._step - 1 and before > 0
        if not was_here:
            request.num_prompt = request.length - row.num_new
        request.num_new = len(new)
        request.is_decoding = was_here and request.num_row_new > 0
        request.is_continued = was_here and request.num_new == row.num_new > 0
        request.new_tokens = new.tolist() if request.is_continued else ()
        request.num_row_new = row.num_new
        request.last_step = self._step

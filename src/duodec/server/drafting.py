"""One drafter for many slots, and their threads."""

from __future__ import annotations

from dataclasses import replace
from threading import Lock
from time import perf_counter, sleep

from duodec.core.candidates import CandidateTree
from duodec.core.protocols import Drafted, Drafter, DraftRequest

_SLICE_S = 0.001  # a wait holds the drafter for so long at a time
_PAUSE_S = 0.0001  # and lets others in for so long


class SharedDrafter:
    """A `Drafter` that several threads may ask, each for a slot of its own.

    Trees are mirrored: the drafter's own go on growing whenever anyone listens to it, a mirror
    only in its slot's `poll`.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._lock = Lock()
        self._mirrors: dict[int, tuple[CandidateTree, CandidateTree]] = {}  # the drafter's, ours

    @property
    def restarts(self) -> int:
        return self._drafter.restarts

    def submit(self, request: DraftRequest) -> None:
        with self._lock:
            self._mirrors.pop(request.slot, None)
            self._drafter.submit(request)

    def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Drafted:
        end_s = perf_counter() + wait_s
        while True:
            left_s = min(_SLICE_S, max(0.0, end_s - perf_counter()))
            begin_s = perf_counter()
            with self._lock:
                begin_s = perf_counter()
                drafted = self._mirrored(slot, self._drafter.poll(slot, left_s, beyond))
            has_waited = left_s > 0 and perf_counter() - begin_s >= left_s
            if not has_waited or perf_counter() >= end_s:  # it has what is wanted, or never will
                return drafted
            sleep(_PAUSE_S)

    def cancel(self, slot: int) -> None:
        with self._lock:
            self._mirrors.pop(slot, None)
            self._drafter.cancel(slot)

    def _mirrored(self, slot: int, drafted: Drafted) -> Drafted:
        source = drafted.tree
        if source is None:
            return drafted
        known, mirror = self._mirrors.get(slot, (None, CandidateTree()))
        if known is not source:
            mirror = CandidateTree()
        new = slice(len(mirror), None)
        mirror.extend(source.tokens[new], source.parents[new], source.confidences[new])
        self._mirrors[slot] = (source, mirror)
        return replace(drafted, tree=mirror)

"""A target and a drafter on a clock that nobody waits for: what would be, without the wait.

`duodec plan` decodes recorded text with these. The draft model computes for real and each of its
steps is timed; the target's forwards, and all waiting, only move the clock. The loops and methods
are the real ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from duodec.backends.testbeds import LatencyCurve, ReplayScores, _Reader
from duodec.backends.worker import LONG_TEXT
from duodec.core.candidates import CandidateTree
from duodec.core.draft import Draft
from duodec.core.prefix import common_prefix
from duodec.core.protocols import Drafted, DraftModel, DraftRequest, Query, RowQuery, Scores
from duodec.core.sampling import Tokens

HANDOVER_S = 0.0003  # from a request to the drafter's process, and from there back
"""Measured: 0.18 ms from a request to its finished draft beyond the model, 0.05 ms to submit."""


@dataclass
class VirtualClock:
    """Seconds that pass when they are spent. What the caller computes between two looks counts
    as it is, when ``is_counting`` real time."""

    now_s: float = 0.0
    _seen_s: float = field(default_factory=perf_counter)

    def __call__(self) -> float:
        """The time; our own computing since the last look is part of it."""
        real_s = perf_counter()
        self.now_s += real_s - self._seen_s
        self._seen_s = real_s
        return self.now_s

    def skip(self) -> None:
        """What was computed since the last look stands for something else: it does not count."""
        self._seen_s = perf_counter()

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class VirtualTarget:
    """A replay whose latency passes on a virtual clock."""

    recording: Tokens
    curve: LatencyCurve
    clock: VirtualClock
    _reader: _Reader = field(default_factory=_Reader)

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        seconds = self.curve.seconds(
            sum(len(query.draft) for query in queries), self._reader.num_new(queries)
        )
        self.clock()
        self.clock.advance(seconds)
        return [ReplayScores(self.recording, query) for query in queries]


class VirtualDrafter:
    """A drafter beside the caller on a virtual clock: by any moment it has made the steps that
    would have fitted in. Steps are computed when somebody looks, and take what they took."""

    def __init__(self, model: DraftModel, clock: VirtualClock, speed: float = 1.0) -> None:
        """The model computes ``speed`` times faster there than here; `math.inf`: in no time."""
        self._model = model
        self._clock = clock
        self._speed = speed
        self._free_s = 0.0  # when the step in work is over
        self._steps: Iterator[Draft | CandidateTree] = iter(())
        self._made: Draft | CandidateTree = Draft()  # the last step, and how long it took
        self._step_s = 0.0
        self._drafted = Drafted()
        self._is_over = True
        self._text: Tokens = np.empty(0, dtype=np.int32)
        self._read_s = 0.0
        self._reading_until_s = 0.0
        self._busy_s = 0.0

    @property
    def restarts(self) -> int:
        return 0

    def submit(self, request: DraftRequest) -> None:
        now_s = self._clock()
        self._catch_up(now_s)
        # the step in work is finished first, then the new request is seen
        self._free_s = max(self._free_s, now_s + HANDOVER_S / 2)
        self._read(request)
        self._drafted = Drafted(is_complete=False, read_s=self._read_s, busy_s=self._busy_s)
        self._steps, self._is_over = request.plan.grow(self._model, request), False
        self._clock.skip()
        self._prepare()

    def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Drafted:
        now_s = self._clock()
        self._catch_up(now_s)
        end_s = now_s + wait_s
        if now_s < self._reading_until_s:  # nobody waits for a long text to be read
            return self._drafted
        while wait_s and not self._is_over and not _is_enough(self._drafted, beyond):
            moment_s = self._free_s + HANDOVER_S / 2
            if moment_s > end_s:
                self._clock.advance(max(0.0, end_s - self._clock()))
                break
            self._clock.advance(max(0.0, moment_s - self._clock()))
            self._catch_up(moment_s)
        return self._drafted

    def cancel(self, slot: int) -> None:
        self._catch_up(self._clock())
        self._steps, self._is_over = iter(()), True

    def _read(self, request: DraftRequest) -> None:
        """A long text is read before its first step, and nobody waits for that."""
        text, start_s = request.text, perf_counter()
        num_new = len(text) - common_prefix(self._text, text)
        self._text, self._read_s = text, 0.0
        if num_new > LONG_TEXT:
            self._model.rows(RowQuery(request.slot, text[:-1], Draft(), ()))
            self._read_s = (perf_counter() - start_s) / self._speed
            self._busy_s += self._read_s
            self._free_s += self._read_s
            self._reading_until_s = self._free_s

    def _prepare(self) -> None:
        """Compute the next step; it will be seen when its time has come."""
        start_s = perf_counter()
        made = next(self._steps, None)
        self._step_s = (perf_counter() - start_s) / self._speed
        self._clock.skip()
        if made is None:
            self._is_over = True
        else:
            self._made = made
            self._free_s += self._step_s

    def _catch_up(self, now_s: float) -> None:
        """All steps that are over and have arrived by now."""
        while not self._is_over and self._free_s + HANDOVER_S / 2 <= now_s:
            self._drafted = self._after_step()
            self._prepare()

    def _after_step(self) -> Drafted:
        before = self._drafted
        self._busy_s += self._step_s
        draft_s = before.draft_s + self._step_s
        done = replace(before, num_steps=before.num_steps + 1, draft_s=draft_s, busy_s=self._busy_s)
        if isinstance(self._made, Draft):
            return replace(done, draft=self._made)
        tree = before.tree or CandidateTree()
        num_before = tree.num_expanded
        new = slice(len(tree), None)
        tree.extend(self._made.tokens[new], self._made.parents[new], self._made.confidences[new])
        if done.num_steps == 1:  # what is left of the last tree
            return replace(done, tree=tree)
        num_leaves = before.num_leaves + tree.num_expanded - num_before
        return replace(
            done, tree=tree, num_leaves=num_leaves, root_s=before.root_s if num_before else draft_s
        )


def _is_enough(drafted: Drafted, beyond: int | None) -> bool:
    """Whether what was waited for is there: more than so many candidates; else the end."""
    return beyond is not None and drafted.tree is not None and len(drafted.tree) > beyond

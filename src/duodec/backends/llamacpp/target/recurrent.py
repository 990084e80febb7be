"""Decode recurrent and hybrid models: chains only, and a state that snapshots roll back.

A recurrent layer keeps one state where attention keeps a row per token, and a state cannot forget.
llama.cpp keeps snapshots of it after each of the last tokens of a forward pass, so that rejected
ones can be rolled back. If it takes none for an architecture, the state is copied before a chain is
scored and restored after a rejection, and the accepted tokens are computed again with the next
chain. What lies further back is read again from the last checkpoint of the prompts before it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.chains import (
    MAX_ROWS,
    NOTHING,
    NUM_BATCH,
    InFlight,
    LlamaChains,
    Work,
)
from duodec.backends.llamacpp.target.context import logits
from duodec.backends.llamacpp.vision.decoding import check_size
from duodec.backends.llamacpp.vision.layout import Layout, Run
from duodec.backends.tree_cache import Entry
from duodec.core.draft import Draft
from duodec.core.prefix import common_prefix
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Tokens
from duodec.core.targets import Launched, Query
from duodec.core.traits import TargetTraits

NUM_SNAPSHOTS = 8  # snapshots of a slot's state, and so draft tokens of a forward pass
_LONG_TEXT = 32  # tokens after which another checkpoint is worth its memory
_MOST_AGAIN = 8  # accepted tokens that are computed again with a chain, before a new checkpoint
_MOST_KEPT = 2  # states of a slot, besides those of its prompts
MOST_CHECKPOINTS = 16  # of a slot's prompts, as far as all slots' fit in CHECKPOINT_BYTES
CHECKPOINT_BYTES = 1 << 30
# This is LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: the recurrent state, without keys and values.
# ON_DEVICE (2) would leave it on a device, where a copy that finds no memory ends the process.
_PARTIAL = 1


@dataclass(frozen=True)
class _Checkpoint:
    """Hold a slot's state after the first tokens of its text."""

    num_tokens: int
    state: ctypes.Array[ctypes.c_uint8]


class LlamaRecurrent(LlamaChains):
    """Score with a model whose layers are recurrent, some or all of them; scores hold until the
    next `launch` or `score`."""

    def __init__(
        self,
        model: LlamaModel,
        *,
        num_slots: int,
        num_context: int,
        num_threads: int,
        is_width_exact: bool = True,
        num_snapshots: int = NUM_SNAPSHOTS,
        num_chunk: int = NUM_BATCH,
        on_chunk: Callable[[], None] = lambda: None,
    ) -> None:
        """``num_chunk`` tokens of a text are computed between two calls of ``on_chunk``."""
        super().__init__(
            model,
            num_slots=num_slots,
            num_context=num_context,
            num_threads=num_threads,
            is_width_exact=is_width_exact,
            num_snapshots=num_snapshots,
        )
        self.num_computed = 0  # in tokens
        self._num_chunk = num_chunk
        # There are none if llama.cpp takes no snapshots of this architecture.
        self.num_snapshots = int(self._lib.llama_n_rs_seq(self.handle))
        self.on_chunk = on_chunk
        self._num_fixed: dict[int, int] = {}  # tokens that no snapshot rolls back, by slot
        self._checkpoints: dict[int, list[_Checkpoint]] = {}  # states of prompts, ascending
        self._kept: dict[int, list[_Checkpoint]] = {}  # states before the last chains, ascending

    def launch(self, queries: Sequence[Query]) -> Launched:
        """Raise ContextExceeded and ComputeFailed; then the content of the slots of this forward
        pass is forgotten. ``on_chunk`` may raise; what was read by then is kept."""
        num_texts = len(queries)
        most = max(0, min(self.max_draft, MAX_ROWS // num_texts - 1))
        most_again = min(_MOST_AGAIN, (NUM_BATCH - MAX_ROWS) // num_texts)
        works = [self._fit(query, most) for query in queries]
        num_computed = {work.query.slot: len(work.query.text) - work.begin for work in works}
        for work in works:
            if not self._goes_on_from_kept(work, most_again):
                self._read_text(work)
                if work.chain and not self.num_snapshots:
                    self._keep(work.query.slot, work.begin)
        # A forward pass of chains of one length is computed at once, and its snapshots hold every
        # token of it; with other lengths in it they would begin later.
        works.sort(key=lambda work: (len(work.chain), work.query.slot))
        *others, last = [list(group) for _, group in groupby(works, key=lambda w: len(w.chain))]
        known: dict[int, list[Row]] = {}
        for group in others:
            self._compute_even(group)
            known |= {s: [row.copy() for row in rows] for s, rows in self._rows(group).items()}
        self._compute_even(last)
        return InFlight(
            queries, lambda: {**known, **self._rows(last)}, self._launches, num_computed
        )

    @property
    def traits(self) -> TargetTraits:
        return replace(super().traits, max_draft=self.max_draft, is_recurrent=True)

    @cached_property
    def max_draft(self) -> int:
        """Return how many draft tokens of a query can be scored, since they can be rolled back."""
        return self.num_snapshots or (NUM_SNAPSHOTS if self._can_put_back() else 0)

    def keep(self, slot: int) -> None:
        """Keep the state at the end of what a slot holds: a text that differs from what follows
        goes on from there."""
        self._keep(slot, len(self._held[slot]))

    def num_known(self, slot: int, text: Tokens) -> int:
        """Return how many tokens of a text need not be computed again, because they are held, or
        because a kept state can be restored."""
        held = self._held.get(slot, NOTHING)
        begin = common_prefix(held, text)
        if begin == len(held) or begin >= self._num_fixed.get(slot, 0):
            return begin
        return max((one.num_tokens for one in self._states(slot) if one.num_tokens <= begin),
                   default=0)  # fmt: skip

    def forget(self, slot: int) -> None:
        super().forget(slot)
        for known in (self._num_fixed, self._checkpoints, self._kept):
            known.pop(slot, None)

    # --- parts

    def _decode(self, entries: Sequence[Entry]) -> None:
        try:
            super()._decode(entries)
        except BaseException:
            for slot in {slot for entry in entries for slot in entry.seqs}:
                self.forget(slot)
            raise
        self.num_computed += len(entries)

    def _show(self, run: Run, slot: int) -> None:
        try:
            super()._show(run, slot)
        except BaseException:
            self.forget(slot)
            raise
        self.num_computed += run.end - run.begin

    def _return_to(self, slot: int, begin: int, layout: Layout) -> int:
        """Restore a kept state, if the slot's own state has gone past ``begin``."""
        self._drop_beyond(slot, begin)
        if begin < self._num_fixed.get(slot, 0):
            found = max(self._states(slot), key=lambda one: one.num_tokens, default=None)
            if found is None or not self.put_back(slot, found):
                self.forget(slot)
                return 0
            self._num_fixed[slot] = begin = found.num_tokens
        place = layout.position(begin)
        if not self._lib.llama_memory_seq_rm(self._memory, slot, place, -1):
            self.forget(slot)
            return 0
        return begin

    def _states(self, slot: int) -> list[_Checkpoint]:
        """Return the states that a slot can go back to."""
        return [*self._checkpoints.get(slot, ()), *self._kept.get(slot, ())]

    def _drop_beyond(self, slot: int, begin: int) -> None:
        """Drop the states of a text from ``begin`` on."""
        for states in (self._checkpoints.get(slot, []), self._kept.get(slot, [])):
            states[:] = [one for one in states if one.num_tokens <= begin]

    def _goes_on_from_kept(self, work: Work, most_again: int) -> bool:
        """Return whether accepted tokens are computed again with the next chain, in one forward
        pass. A state before them has just been restored, and it serves once more."""
        kept = self._kept.get(work.query.slot)
        num_again = len(work.query.text) - 1 - work.begin
        is_there = bool(kept) and kept is not None and kept[-1].num_tokens == work.begin
        return is_there and 0 < num_again <= most_again and work.next_picture is None

    def _keep(self, slot: int, num_tokens: int) -> None:
        """Keep a slot's state, which is that after ``num_tokens`` tokens."""
        kept = self._kept.setdefault(slot, [])
        if kept and kept[-1].num_tokens == num_tokens:
            return
        old = kept.pop(0) if len(kept) == _MOST_KEPT else None
        kept.append(self._checkpoint(slot, num_tokens, old))

    def put_back(self, slot: int, checkpoint: _Checkpoint) -> bool:
        """Restore a slot's state; return whether it succeeded."""
        state = checkpoint.state
        size = self._lib.llama_state_seq_set_data_ext(
            self.handle, state, len(state), slot, _PARTIAL
        )
        return int(size) == len(state)

    def _can_put_back(self) -> bool:
        """Return whether this architecture's state can be saved and restored, as tried with two
        tokens."""
        slot, text = 0, np.zeros(2, dtype=np.int32)
        work = Work(Query(slot, text, Draft()), (), 0)
        try:
            self._decode(work.part(1))
            checkpoint = self._checkpoint(slot, 1)
            self._decode(work.part(1))
            is_back = len(checkpoint.state) > 0 and self.put_back(slot, checkpoint)
            return is_back and bool(self._lib.llama_memory_seq_rm(self._memory, slot, 1, -1))
        finally:
            self.forget(slot)

    def _read_text(self, work: Work) -> None:
        """Compute what is missing of a text, except its last token."""
        slot, text = work.query.slot, work.query.text
        while (num_left := len(text) - 1 - work.begin) > 0:
            run = work.next_picture
            if run is not None and run.begin == work.begin:
                check_size(run, self._num_batch)
                self._show(run, slot)
                work.begin = run.end
            else:
                num_words = run.begin - work.begin if run else num_left
                self._decode(work.part(min(num_words, self._num_chunk)))
            self._held[slot] = text[: work.begin]
            self._num_fixed[slot] = work.begin
            self._mark(slot, work.begin)
            if num_left > self._num_chunk:
                self.on_chunk()

    def _mark(self, slot: int, num_tokens: int) -> None:
        """Keep a checkpoint after ``num_tokens`` tokens, if the last one is far behind. If there is
        no room, drop the checkpoint before the last whose neighbours are the closest: wherever a
        text changes, about as much is read again."""
        marks, old = self._checkpoints.setdefault(slot, []), None
        if num_tokens - (marks[-1].num_tokens if marks else 0) < _LONG_TEXT:
            return
        if marks and len(marks) >= self._most_checkpoints(len(marks[0].state)):
            ends = [0, *(one.num_tokens for one in marks), num_tokens]
            i = min(range(max(1, len(marks) - 1)), key=lambda i: ends[i + 2] - ends[i])
            old = marks.pop(i)
        marks.append(self._checkpoint(slot, num_tokens, old))

    def _most_checkpoints(self, num_bytes: int) -> int:
        """Return how many checkpoints a slot may have, for states of ``num_bytes``."""
        fitting = CHECKPOINT_BYTES // (self.num_slots * max(1, num_bytes))
        return max(1, min(MOST_CHECKPOINTS, fitting))

    def _checkpoint(
        self, slot: int, num_tokens: int, old: _Checkpoint | None = None
    ) -> _Checkpoint:
        """Save a slot's state now, in the memory of an older one."""
        size = self._lib.llama_state_seq_get_size_ext(self.handle, slot, _PARTIAL)
        fits = old is not None and len(old.state) == size
        state = old.state if old and fits else (ctypes.c_uint8 * size)()
        self._lib.llama_state_seq_get_data_ext(self.handle, state, size, slot, _PARTIAL)
        return _Checkpoint(num_tokens, state)

    def _compute_even(self, works: Sequence[Work]) -> None:
        """Compute chains of one length."""
        self._decode([entry for work in works for entry in work.rest()])
        for work in works:
            slot = work.query.slot
            self._held[slot] = work.held
            self._num_fixed[slot] = len(work.query.text if self.num_snapshots else work.held)

    def _rows(self, works: Sequence[Work]) -> dict[int, list[Row]]:
        """Return the rows of each slot, whose chains were computed last."""
        num_rows = 1 + len(works[0].chain)
        found = logits(self._model, self.handle, num_rows * len(works))
        return {
            work.query.slot: list(found[i * num_rows : (i + 1) * num_rows])
            for i, work in enumerate(works)
        }

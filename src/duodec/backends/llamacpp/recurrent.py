"""Decode recurrent and hybrid models: chains only, and a state that is taken back by snapshots.

A recurrent layer keeps one state where attention keeps a row a token, and a state cannot forget.
llama.cpp keeps snapshots of it after each of the last tokens of a forward pass, so that refused
ones can be taken back. Where it takes none of an architecture, the state is copied before a chain
is scored and put back after a refusal, and the accepted tokens are computed again with the next
chain. What lies further back comes from a checkpoint of the prompt, or is read again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np

from duodec.backends.llamacpp.context import logits
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.streams import (
    MAX_ROWS,
    NOTHING,
    NUM_BATCH,
    LlamaStreams,
    Work,
    chain_of,
)
from duodec.backends.llamacpp.target import LlamaScores
from duodec.backends.placement import Placement
from duodec.backends.tree_cache import Entry
from duodec.core.draft import Draft
from duodec.core.prefix import common_prefix
from duodec.core.protocols import Query, Scores
from duodec.core.rows import Row

NUM_SNAPSHOTS = 8  # of a slot's state, and so draft tokens of a forward pass
_LONG_TEXT = 32  # new tokens of a text after which a checkpoint is worth its memory
_MOST_AGAIN = 8  # accepted tokens that are computed again with a chain, before a new checkpoint
_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: the recurrent state, without keys and values
_ON_DEVICE = 2  # LLAMA_STATE_SEQ_FLAGS_ON_DEVICE: it stays there, one of each sequence


@dataclass(frozen=True)
class _Checkpoint:
    """A slot's state after the first tokens of its text; on a device, what names it."""

    num_tokens: int
    state: ctypes.Array[ctypes.c_uint8]
    flags: int


class LlamaRecurrent(LlamaStreams):
    """A target whose layers are recurrent, some or all of them; its scores hold until the next
    `score`."""

    def __init__(
        self,
        model: LlamaModel,
        *,
        num_slots: int,
        num_context: int,
        num_threads: int,
        is_width_exact: bool = True,
        num_snapshots: int = NUM_SNAPSHOTS,
    ) -> None:
        super().__init__(
            model,
            num_slots=num_slots,
            num_context=num_context,
            num_threads=num_threads,
            is_width_exact=is_width_exact,
            num_snapshots=num_snapshots,
        )
        self.num_computed = 0  # tokens
        # none where llama.cpp takes no snapshots of this architecture
        self.num_snapshots = int(self._lib.llama_n_rs_seq(self._handle))
        self.on_chunk: Callable[[], None] = lambda: None
        self._firm: dict[int, int] = {}  # by slot, tokens that no snapshot takes back
        self._checkpoints: dict[int, _Checkpoint] = {}  # of prompts
        self._before: dict[int, _Checkpoint] = {}  # of the last chains, without snapshots
        is_device = model.placement is not Placement.CPU
        self._flags = _PARTIAL | (_ON_DEVICE if is_device else 0)  # of these

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        """Raises ContextExceeded and ComputeFailed; then what these slots held is forgotten, as
        where ``on_chunk`` raises."""
        num_texts = max(1, len(queries))
        is_drafted = any(query.draft.tokens for query in queries)
        most = min(self.max_draft, MAX_ROWS // num_texts - 1) if is_drafted else 0
        most_again = min(_MOST_AGAIN, (NUM_BATCH - MAX_ROWS) // num_texts)
        works = [self._fit(query, most) for query in queries]
        rows: dict[int, list[Row]] = {}
        try:
            for work in works:
                if not self._goes_on_from_checkpoint(work, most_again):
                    self._read_text(work)
                    self._save_before(work)
            # a forward pass of chains of one length is computed at once, and its snapshots hold
            # every token of it; with other lengths in it they would begin later
            works.sort(key=lambda work: (len(work.chain), work.query.slot))
            for _, group in groupby(works, key=lambda work: len(work.chain)):
                rows |= self._score_even(list(group))
        except BaseException:
            for query in queries:
                self._forget(query.slot)
            raise
        return [LlamaScores(query, rows[query.slot]) for query in queries]

    @cached_property
    def max_draft(self) -> int:
        """Draft tokens of a query that can be scored, since they can be taken back."""
        return self.num_snapshots or (NUM_SNAPSHOTS if self._can_put_back() else 0)

    def keep(self, slot: int) -> None:
        """Keep the state at the end of what a slot holds: a text that parts from what follows goes
        on from there."""
        held = len(self._held[slot])
        old = self._before.get(slot)
        self._before[slot] = self._checkpoint(slot, held, self._flags, old)

    def use_threads(self, num_threads: int) -> None:
        """Threads of every forward pass."""
        self.use_threads_throughout(num_threads)

    # --- parts

    def _decode(self, entries: Sequence[Entry]) -> None:
        super()._decode(entries)
        self.num_computed += len(entries)

    def _fit(self, query: Query, most: int) -> Work:
        """Take the slot back to what it shares with the text."""
        slot, held = query.slot, self._held.get(query.slot, NOTHING)
        begin = min(common_prefix(held, query.text), len(query.text) - 1)
        if begin < len(held):
            begin = self._return_to(slot, begin)
            self._held[slot] = held[:begin]
        return Work(query, chain_of(query.draft)[:most], begin)

    def _return_to(self, slot: int, begin: int) -> int:
        """Forget what a slot holds beyond ``begin`` tokens, or more of it. Returns how many it
        still holds."""
        if begin < self._firm.get(slot, 0):
            known = [kind[slot] for kind in (self._before, self._checkpoints) if slot in kind]
            found = [checkpoint for checkpoint in known if checkpoint.num_tokens <= begin]
            if not found:
                self._forget(slot)
                return 0
            checkpoint = max(found, key=lambda checkpoint: checkpoint.num_tokens)
            if not self._put_back(slot, checkpoint):
                self._forget(slot)
                return 0
            self._firm[slot] = begin = checkpoint.num_tokens
        if not self._lib.llama_memory_seq_rm(self._memory, slot, begin, -1):
            self._forget(slot)
            return 0
        return begin

    def _forget(self, slot: int) -> None:
        self._lib.llama_memory_seq_rm(self._memory, slot, 0, -1)
        for known in (self._held, self._firm, self._checkpoints, self._before):
            known.pop(slot, None)

    def _goes_on_from_checkpoint(self, work: Work, most_again: int) -> bool:
        """Whether accepted tokens are computed again with the next chain, in one forward pass: the
        state has just been put back before them, and the same checkpoint serves once more."""
        before = self._before.get(work.query.slot)
        num_again = len(work.query.text) - 1 - work.begin
        is_there = before is not None and before.num_tokens == work.begin
        return is_there and 0 < num_again <= most_again

    def _save_before(self, work: Work) -> None:
        """Keep the state that a chain is scored from, where no snapshots are."""
        slot = work.query.slot
        if self.num_snapshots or not work.chain:
            return
        old = self._before.get(slot)
        self._before[slot] = self._checkpoint(slot, work.begin, self._flags, old)

    def _put_back(self, slot: int, checkpoint: _Checkpoint) -> bool:
        """Whether a slot has this state again."""
        state = checkpoint.state
        size = self._lib.llama_state_seq_set_data_ext(
            self._handle, state, len(state), slot, checkpoint.flags
        )
        return int(size) == len(state)

    def _can_put_back(self) -> bool:
        """Whether this architecture's state can be saved and put back: tried with two tokens."""
        slot, text = 0, np.zeros(2, dtype=np.int32)
        work = Work(Query(slot, text, Draft()), (), 0)
        self._decode(work.part(1))
        checkpoint = self._checkpoint(slot, 1, self._flags)
        self._decode(work.part(1))
        is_back = len(checkpoint.state) > 0 and self._put_back(slot, checkpoint)
        is_back = is_back and bool(self._lib.llama_memory_seq_rm(self._memory, slot, 1, -1))
        self._forget(slot)
        return is_back

    def _read_text(self, work: Work) -> None:
        """Compute what is missing of a text, all but its last token."""
        slot, text = work.query.slot, work.query.text
        num_new = len(text) - 1 - work.begin
        while (num_left := len(text) - 1 - work.begin) > 0:
            self._decode(work.part(min(num_left, NUM_BATCH)))
            self._held[slot] = text[: work.begin]
            self._firm[slot] = work.begin
            if num_left > NUM_BATCH:
                self.on_chunk()
        if num_new >= _LONG_TEXT:
            self._checkpoints[slot] = self._checkpoint(slot, work.begin, _PARTIAL)

    def _checkpoint(
        self, slot: int, num_tokens: int, flags: int, old: _Checkpoint | None = None
    ) -> _Checkpoint:
        """A slot's state now, in the memory of an older one."""
        size = self._lib.llama_state_seq_get_size_ext(self._handle, slot, flags)
        fits = old is not None and len(old.state) == size
        state = old.state if old and fits else (ctypes.c_uint8 * size)()
        self._lib.llama_state_seq_get_data_ext(self._handle, state, size, slot, flags)
        return _Checkpoint(num_tokens, state, flags)

    def _score_even(self, works: Sequence[Work]) -> dict[int, list[Row]]:
        """The rows of each slot, whose chains have one length."""
        self._decode([entry for work in works for entry in work.rest()])
        num_rows = 1 + len(works[0].chain)
        found = logits(self._model, self._handle, num_rows * len(works)).copy()
        rows = {}
        for i, work in enumerate(works):
            slot = work.query.slot
            self._held[slot] = work.held
            self._firm[slot] = len(work.query.text if self.num_snapshots else work.held)
            rows[slot] = list(found[i * num_rows : (i + 1) * num_rows])
        return rows

"""Decode recurrent and hybrid models: chains only, and a state that is taken back by snapshots.

A recurrent layer keeps one state where attention keeps a row a token, and a state cannot forget.
llama.cpp keeps snapshots of it after each of the last tokens of a forward pass, so that refused
ones can be taken back; what lies further back comes from a checkpoint of the prompt, or is read
again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

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
from duodec.core.prefix import common_prefix
from duodec.core.protocols import Query, Scores
from duodec.core.rows import Row

NUM_SNAPSHOTS = 8  # of a slot's state, and so draft tokens of a forward pass
_LONG_TEXT = 32  # new tokens of a text after which a checkpoint is worth its memory
_PARTIAL = 1  # LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY: the recurrent state, without keys and values


@dataclass(frozen=True)
class _Checkpoint:
    """A slot's state after the first tokens of its text."""

    num_tokens: int
    state: ctypes.Array[ctypes.c_uint8]


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
    ) -> None:
        super().__init__(
            model,
            num_slots=num_slots,
            num_context=num_context,
            num_threads=num_threads,
            is_width_exact=is_width_exact,
            num_snapshots=NUM_SNAPSHOTS,
        )
        # none where llama.cpp takes no snapshots of this architecture: then nothing is drafted
        self.num_snapshots = int(self._lib.llama_n_rs_seq(self._handle))
        self.on_chunk: Callable[[], None] = lambda: None
        self._firm: dict[int, int] = {}  # by slot, tokens that can be taken back no more
        self._checkpoints: dict[int, _Checkpoint] = {}

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        """Raises ContextExceeded and ComputeFailed; then what these slots held is forgotten, as
        where ``on_chunk`` raises."""
        most = min(self.num_snapshots, MAX_ROWS // max(1, len(queries)) - 1)
        works = [self._fit(query, most) for query in queries]
        rows: dict[int, list[Row]] = {}
        try:
            for work in works:
                self._read_text(work)
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

    @property
    def max_draft(self) -> int:
        """Draft tokens of a query that can be scored, since they can be taken back."""
        return self.num_snapshots

    def use_threads(self, num_threads: int) -> None:
        """Threads of every forward pass."""
        self.use_threads_throughout(num_threads)

    # --- parts

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
            checkpoint = self._checkpoints.get(slot)
            if checkpoint is None or checkpoint.num_tokens > begin:
                self._forget(slot)
                return 0
            state, begin = checkpoint.state, checkpoint.num_tokens
            size = self._lib.llama_state_seq_set_data_ext(
                self._handle, state, len(state), slot, _PARTIAL
            )
            if size != len(state):
                self._forget(slot)
                return 0
            self._firm[slot] = begin
        if not self._lib.llama_memory_seq_rm(self._memory, slot, begin, -1):
            self._forget(slot)
            return 0
        return begin

    def _forget(self, slot: int) -> None:
        self._lib.llama_memory_seq_rm(self._memory, slot, 0, -1)
        for known in (self._held, self._firm, self._checkpoints):
            known.pop(slot, None)

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
            self._checkpoints[slot] = self._checkpoint(slot, work.begin)

    def _checkpoint(self, slot: int, num_tokens: int) -> _Checkpoint:
        size = self._lib.llama_state_seq_get_size_ext(self._handle, slot, _PARTIAL)
        state = (ctypes.c_uint8 * size)()
        self._lib.llama_state_seq_get_data_ext(self._handle, state, size, slot, _PARTIAL)
        return _Checkpoint(num_tokens, state)

    def _score_even(self, works: Sequence[Work]) -> dict[int, list[Row]]:
        """The rows of each slot, whose chains have one length."""
        self._decode([entry for work in works for entry in work.rest()])
        num_rows = 1 + len(works[0].chain)
        found = logits(self._model, self._handle, num_rows * len(works)).copy()
        rows = {}
        for i, work in enumerate(works):
            slot = work.query.slot
            self._held[slot] = work.held
            self._firm[slot] = len(work.query.text)
            rows[slot] = list(found[i * num_rows : (i + 1) * num_rows])
        return rows

"""Score many texts in one forward pass: a stream of the cache for each, and chains after them.

llama.cpp's cache is split by sequence: every text attends to its own cells, in the order of its
tokens, whatever else is computed. A sequence has no branches there, so of a tree the first nodes
that form a chain are scored.

On a device the chain of each text is padded to one number of rows. llama.cpp rebuilds its graph for
another number, and a GPU replays only what it has computed before. For chains of one length it
reads the weights once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from duodec.backends.interrupts import stoppable
from duodec.backends.llamacpp.model import LlamaModel, open_context
from duodec.backends.llamacpp.target.context import (
    NO_CELLS,
    STOPPED,
    Batch,
    Threads,
    failure,
    logits,
)
from duodec.backends.llamacpp.target.copying import Place
from duodec.backends.llamacpp.target.states import HiddenStates, NoStates
from duodec.backends.llamacpp.target.trees import MAX_WIDTH, LlamaLaunchedScores, LlamaScores
from duodec.backends.llamacpp.vision.decoding import check_size, decode
from duodec.backends.llamacpp.vision.layout import Layout, Run
from duodec.backends.placement import Placement
from duodec.backends.tree_cache import Entry
from duodec.core.draft import ROOT, Draft
from duodec.core.prefix import common_prefix
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Tokens
from duodec.core.targets import Launched, Query, Scores, Target
from duodec.core.traits import TargetTraits, Widths
from duodec.errors import BadOption, ContextExceeded

NUM_BATCH = 512  # tokens of a forward pass, or as many as all slots' chains have
MAX_ROWS = 2 * MAX_WIDTH
_PAD = 256  # llama.cpp rounds a stream up to this many cells
NOTHING: Tokens = np.empty(0, dtype=np.int32)


class SeesStates(Protocol):
    """Receive the hidden states of forward passes."""

    def states(self, handle: object, slot_of: Callable[[Entry], int]) -> HiddenStates: ...


@dataclass
class Work:
    """Hold what a query lacks: the rest of its text, a chain, and padding behind it."""

    query: Query
    chain: tuple[int, ...]
    begin: int  # tokens of the text that its cells hold
    num_padded: int = 0  # padding tokens behind the chain
    layout: Layout = field(default_factory=Layout)  # layout of the text

    @property
    def num_new(self) -> int:
        return len(self.query.text) - self.begin + len(self.chain) + self.num_padded

    @property
    def after(self) -> tuple[int, ...]:
        """Return the tokens behind the text."""
        return (*self.chain, *([int(self.query.text[-1])] * self.num_padded))

    @property
    def held(self) -> Tokens:
        """Return the tokens that its cells hold in the end."""
        return np.concatenate([self.query.text, np.array(self.after, dtype=np.int32)])

    def part(self, num_tokens: int) -> list[Entry]:
        """Return the next tokens of the text, which give no rows."""
        end = self.begin + num_tokens
        tokens = self.query.text[self.begin : end].tolist()
        position = self.layout.position(self.begin)
        entries = [Entry(t, position + i, (self.query.slot,)) for i, t in enumerate(tokens)]
        self.begin = end
        return entries

    def rest(self) -> list[Entry]:
        """Return what is left. The text's last token and all behind it give rows: a pass that left
        some out would be a different one."""
        entries = self.part(len(self.query.text) - 1 - self.begin)
        seqs, position = (self.query.slot,), self.layout.position(self.begin)
        for i, token in enumerate((int(self.query.text[-1]), *self.after)):
            entries.append(Entry(token, position + i, seqs, i))
        return entries

    @property
    def next_picture(self) -> Run | None:
        """Return the first picture that is to be computed."""
        return self.layout.next_run(self.begin)


@dataclass(frozen=True)
class InFlight:
    """Stand for a forward pass that a device computes. ``read`` waits for it and returns the rows
    of each query's slot; ``num_computed`` tokens of its text were computed."""

    queries: Sequence[Query]
    read: Callable[[], Mapping[int, list[Row]]]
    is_elsewhere: bool  # the device computes while the caller goes on
    num_computed: Mapping[int, int]
    due_s: float = math.inf

    def result(self) -> list[Scores]:
        rows, num_computed = self.read(), self.num_computed
        scores = LlamaLaunchedScores if self.is_elsewhere else LlamaScores
        return [scores(q, rows[q.slot], num_computed[q.slot]) for q in self.queries]


class LlamaChains(Target):
    """Score the texts of ``num_slots`` slots; scores hold until the next `launch` or `score`. Each
    text's part of a forward pass has ``num_rows`` rows, padding included; 0: any number."""

    def __init__(
        self,
        model: LlamaModel,
        *,
        num_slots: int,
        num_context: int,
        num_threads: int,
        is_width_exact: bool = True,
        num_rows: int = 0,
        num_snapshots: int = 0,
        uses_flash_attention: bool | None = None,
    ) -> None:
        """Raise BadOption and ModelUnreadable."""
        if num_slots > (most := int(model.lib.llama_max_parallel_sequences())):
            raise BadOption(
                f"num_slots is {num_slots} and llama.cpp keeps {most} texts; use {most} or fewer"
            )
        self.num_slots = num_slots
        self.num_threads = num_threads  # threads of every forward pass
        self.num_rows = num_rows
        self._num_batch = max(NUM_BATCH, num_slots * (num_rows or 1))
        self._model = model
        self._lib = model.lib
        cells = -(-(num_context + MAX_WIDTH) // _PAD) * _PAD
        self.handle = open_context(
            model,
            num_context=num_slots * cells,
            num_sequences=num_slots,
            num_threads=num_threads,
            num_batch=self._num_batch,
            max_rows=max(MAX_ROWS, num_slots * (num_rows or 1)),
            is_width_exact=is_width_exact,
            is_unified=False,
            num_snapshots=num_snapshots,
            uses_flash_attention=uses_flash_attention,
        )
        self._memory = self._lib.llama_get_memory(self.handle)
        self._threads = Threads(self._lib, self.handle)
        self._batch = Batch(self._lib, self._num_batch, 1)
        self._held: dict[int, Tokens] = {}  # tokens in a slot's cells
        self.states = NoStates()  # receives the states of every forward pass

    @property
    def traits(self) -> TargetTraits:
        return TargetTraits(
            has_branches=False,
            max_draft=self.num_rows - 1 if self.num_rows else MAX_WIDTH,
            launches=self._launches,
            keeps_candidates=self._launches,
            widths=Widths.only(self.num_rows),
        )

    @property
    def _launches(self) -> bool:
        """Return whether a device computes while the caller goes on; on a CPU `llama_decode` does
        it all."""
        return self._model.placement is not Placement.CPU

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        """Raise what `launch` raises."""
        return self.launch(queries).result() if queries else []

    def launch(self, queries: Sequence[Query]) -> Launched:
        """Raise ContextExceeded and ComputeFailed; then the content of these slots is forgotten."""
        most = (self.num_rows or MAX_ROWS // len(queries)) - 1
        works = {query.slot: self._fit(query, max(0, most)) for query in queries}
        num_computed = {slot: len(work.query.text) - work.begin for slot, work in works.items()}
        for work in works.values():
            self._read_pictures(work)
        if self.num_rows:
            self._pad(works.values(), self.num_rows)
        try:
            self._read_long(works)
            # Neighbours in the cache share a forward pass, others take turns.
            entries = [entry for slot in sorted(works) for entry in works[slot].rest()]
            self._decode(entries)
        except BaseException:
            for slot in works:
                self.forget(slot)
            raise
        places: dict[int, slice] = {}
        num_rows = 0
        for slot in sorted(works):
            work = works[slot]
            places[slot] = slice(num_rows, num_rows + 1 + len(work.chain))
            self._held[slot] = work.held
            num_rows += 1 + len(work.after)

        def read() -> dict[int, list[Row]]:
            rows = logits(self._model, self.handle, num_rows)
            return {slot: list(rows[place]) for slot, place in places.items()}

        return InFlight(queries, read, self._launches, num_computed)

    def num_held(self, slot: int, text: Tokens) -> int:
        """Return how many tokens of a text a slot's cells hold."""
        return common_prefix(self._held.get(slot, NOTHING), text)

    def place(self, slot: int) -> Place:
        """Return where a slot's text lies."""
        return Place(self.handle, slot, slot, self.num_slots)

    def make_room(self, slot: int, text: Tokens) -> Place:
        """Forget a slot's text; the caller copies ``text`` to the returned place."""
        self.forget(slot)
        self._held[slot] = text
        return self.place(slot)

    def forget(self, slot: int) -> None:
        self._lib.llama_memory_seq_rm(self._memory, slot, 0, -1)
        self._held.pop(slot, None)

    def use_threads(self, num_threads: int) -> None:
        """Use this number of threads for every forward pass from now on."""
        self.num_threads = num_threads

    def show(self, head: SeesStates) -> None:
        """Let a head see the hidden states of all forward passes."""
        self.states = head.states(self.handle, lambda entry: entry.seqs[0])

    def take_states(self) -> None:
        self.states.take()

    def close(self) -> None:
        if self.handle:
            self._lib.llama_free(self.handle)
            self.handle = None

    # --- parts

    def _fit(self, query: Query, most: int) -> Work:
        """Keep what the slot's cells have of the text, and free the rest."""
        held, layout = self._held.get(query.slot, NOTHING), Layout.of(query.text, query.shown)
        begin = layout.cut(min(common_prefix(held, query.text), len(query.text) - 1))
        if begin < len(held):
            begin = self._return_to(query.slot, begin, layout)
            self._held[query.slot] = held[:begin]
        return Work(query, chain_of(query.draft)[:most], begin, layout=layout)

    def _return_to(self, slot: int, begin: int, layout: Layout) -> int:
        """Forget what a slot holds beyond ``begin`` tokens of a text, or more of it. Return how
        many it still holds."""
        self._lib.llama_memory_seq_rm(self._memory, slot, layout.position(begin), -1)
        return begin

    def _read_pictures(self, work: Work) -> None:
        """Compute a text up to the end of its last picture. Raises ContextExceeded, ComputeFailed
        and what ``on_chunk`` raises; only after the latter, what was read is kept."""
        slot, text = work.query.slot, work.query.text
        while (run := work.next_picture) is not None:
            try:
                check_size(run, self._num_batch)
                while work.begin < run.begin:
                    self._decode(work.part(min(run.begin - work.begin, NUM_BATCH)))
                self._show(run, slot)
            except BaseException:
                self.forget(slot)
                raise
            work.begin = run.end
            self._held[slot] = text[: run.end]
            self.on_chunk()

    def _show(self, run: Run, slot: int) -> None:
        """Compute a picture. Raises ContextExceeded and ComputeFailed."""
        self.states.take()
        self._threads.use(self.num_threads)
        status = decode(self._lib, self.handle, run, (slot,), self._num_batch)
        self._check(status, ())

    def _pad(self, works: Collection[Work], num_rows: int) -> None:
        """Read all of the texts except their last tokens, so that the pass after it has its rows.
        ``on_chunk`` may raise; what was read by then is kept."""
        for work in works:
            slot, text = work.query.slot, work.query.text
            while (num_left := len(text) - 1 - work.begin) > 0:
                try:
                    self._decode(work.part(min(num_left, NUM_BATCH)))
                except BaseException:
                    self.forget(slot)
                    raise
                self._held[slot] = text[: work.begin]
                if num_left > NUM_BATCH:
                    self.on_chunk()
            work.num_padded = num_rows - 1 - len(work.chain)

    def _read_long(self, works: dict[int, Work]) -> None:
        """Read parts of long texts, until the rest of all fits in a forward pass."""
        while (excess := sum(work.num_new for work in works.values()) - self._num_batch) > 0:
            work = max(works.values(), key=lambda work: len(work.query.text) - work.begin)
            num_left = len(work.query.text) - 1 - work.begin
            slot, text = work.query.slot, work.query.text
            self._decode(work.part(min(num_left, NUM_BATCH, max(1, excess))))
            self._held[slot] = text[: work.begin]

    def _decode(self, entries: Sequence[Entry]) -> None:
        self.states.take()  # those of the last pass are lost otherwise
        self._threads.use(self.num_threads)
        self._batch.fill(entries)
        with stoppable():
            status = self._lib.llama_decode(self.handle, self._batch.struct)
        self._check(status, entries)
        self.states.computed(entries)

    def _check(self, status: int, entries: Sequence[Entry]) -> None:
        """Raise the error of a forward pass over these entries."""
        if status == STOPPED:
            raise KeyboardInterrupt
        if status == NO_CELLS:
            raise ContextExceeded("the context is full; ask for a larger one with `context`")
        if status:
            raise failure(self._model, entries, status, "num_slots")


def chain_of(draft: Draft) -> tuple[int, ...]:
    """Return the tokens of the first nodes, as long as they form a chain."""
    chain: list[int] = []
    for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if parent != (i - 1 if i else ROOT):
            break
        chain.append(token)
    return tuple(chain)

"""Cache a model's texts: rows of logits after any node of any tree, with nothing computed twice."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duodec.backends.interrupts import stoppable
from duodec.backends.llamacpp.model import LlamaModel, open_context
from duodec.backends.llamacpp.target.copying import Place
from duodec.backends.llamacpp.target.states import NoStates
from duodec.backends.llamacpp.vision.decoding import check_size, decode
from duodec.backends.llamacpp.vision.layout import Layout, Run
from duodec.backends.tree_cache import Entry, Missing, OutOfSequences, SlotCache
from duodec.core.drafters import RowQuery
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Tokens
from duodec.errors import BadOption, ComputeFailed, ContextExceeded

_OF_A_TREE = 128  # cells that its nodes take beyond those of a text
_SHORT_TEXT = 8  # new text tokens of a round; more than these are a prompt


class LlamaContext:
    """Evaluate trees over texts in llama.cpp.

    Rows are views into the library's own buffer: they hold until the next call. A pass takes at
    most ``num_chunk`` tokens; a longer text is read in chunks. ``on_chunk`` is called between them,
    and may raise to abandon the text: what was read stays known. ``num_first`` tokens of a text
    come before a part of it: see `duodec.backends.tree_cache`.
    """

    def __init__(
        self,
        model: LlamaModel,
        *,
        num_context: int,
        num_sequences: int,
        num_threads: int,
        max_rows: int,
        num_chunk: int = 512,
        is_width_exact: bool = False,
        uses_flash_attention: bool | None = None,
        num_first: int = 0,
    ) -> None:
        model.refuse_recurrent()
        self._max_rows = max_rows
        self._num_first = num_first
        self.num_threads = num_threads  # threads of a forward pass that continues a text
        self.num_prompt_threads = num_threads  # threads of one that reads a prompt
        # Threads that may compute now; None: all.
        self.most_threads: Callable[[], int] | None = None
        self.model = model
        self.num_context = num_context
        self.num_computed = 0  # tokens of all forward passes so far
        self.num_read: list[int] = []  # tokens read for each query of the last `rows`
        self.on_chunk: Callable[[], None] = lambda: None
        self.states = NoStates()  # receives the states of every forward pass
        self._lib = model.lib
        self._num_batch = min(num_chunk, num_context)
        self.handle = open_context(
            model,
            num_context=num_context,
            num_sequences=num_sequences,
            num_threads=num_threads,
            num_batch=self._num_batch,
            max_rows=max_rows,
            is_width_exact=is_width_exact,
            uses_flash_attention=uses_flash_attention,
        )
        self._memory = self._lib.llama_get_memory(self.handle)
        self._threads = Threads(self._lib, self.handle)
        self._batch = Batch(self._lib, self._num_batch, num_sequences)
        self._free_ids = list(range(num_sequences))[::-1]
        self._is_ordered = is_width_exact
        self._slots: OrderedDict[int, SlotCache] = OrderedDict()  # least recently used first
        self._cells: dict[int, _Cells] = {}  # by slot

    def close(self) -> None:
        if self.handle:
            self._lib.llama_free(self.handle)
            self.handle = None

    def rows(self, queries: Sequence[RowQuery]) -> list[list[Row]]:
        """Return the logits wanted by each query, all of them in one pass if they fit.

        Raises ContextExceeded if texts and trees do not fit the cache together, BadOption if they
        want more rows than one pass gives, and ComputeFailed.
        """
        num_rows = sum(len(query.rows) for query in queries)
        if num_rows > self._max_rows:
            raise BadOption(
                f"{num_rows} rows of logits are wanted of one forward pass, which gives "
                f"{self._max_rows}; draft less"
            )
        for query in queries:
            self._touch(query.slot)
        used = {query.slot for query in queries}
        try:
            if sum(map(self._num_cells, queries)) > self.num_context:
                raise _NoRoom
            plans = [self._fit(query, used) for query in queries]
            self.num_read = [len(missing.text) for missing in plans]
            self._set_threads(sum(self.num_read))
            for query, missing in zip(queries, plans, strict=True):
                self._read_pictures(query, missing, used)
                self._read(query, missing, used)
            return self._finish(queries, plans, used)
        except (_NoRoom, ComputeFailed) as error:
            for slot in used:
                self._slots.pop(slot).drop()
            if isinstance(error, ComputeFailed):
                raise
            raise ContextExceeded(
                f"the context of {self.num_context} tokens is full; ask for a larger one with "
                "`context`, or shorten the prompt"
            ) from error

    def part(self, slot: int) -> SlotCache:
        """Return the part of a text that a slot holds; do not change it."""
        self._touch(slot)
        return self._slots[slot]

    def num_held(self, slot: int, text: Tokens) -> int:
        """Return how many tokens of a text a slot's cells hold."""
        return self._slots[slot].num_known(text) if slot in self._slots else 0

    def place(self, slot: int) -> Place:
        """Return where a slot's text lies."""
        seq = self._slots[slot].holder
        assert seq is not None, "a slot that holds a text"
        return Place(self.handle, seq)

    def make_room(self, slot: int, text: Tokens) -> Place:
        """Forget a slot's text; the caller copies ``text`` to the returned place."""
        return Place(self.handle, self.part(slot).make_room(text))

    def forget(self, slot: int) -> None:
        """Forget a slot's text and its trees."""
        if slot in self._slots:
            self._slots.pop(slot).drop()

    def start_at(self, slot: int, text: Tokens, begin: int) -> None:
        """Forget a slot's text; tokens of ``text`` from ``begin`` on will be read."""
        self.part(slot).start_at(text, begin)

    def open_block(self, slot: int, begin: int) -> bool:
        """Prepare to let the slot's part of its text begin at ``begin``, when the block is read.
        Return False if too many sequences are in use, or if older text would take another slot's
        room."""
        part = self.part(slot)
        in_use = [p for p in self._slots.values() if p.num_ids]
        num_held = sum(len(p.trunk) - p.place + _OF_A_TREE for p in in_use)
        num_older = max(0, part.begin - begin)
        if num_older and num_held + num_older + self._num_first > self.num_context:
            return False
        try:
            part.open_block(begin)
        except OutOfSequences:
            return False
        return True

    def read_block(self, slot: int, num_tokens: int) -> None:
        """Compute the next tokens of the slot's block. Raises ComputeFailed."""
        part = self.part(slot)
        entries = part.block_entries(min(num_tokens, self._num_batch))
        try:
            self._threads.use(self.num_threads)
            self._decode(entries, {slot})
            part.add_block(len(entries))
        except _NoRoom:
            part.close_block()
        except ComputeFailed:
            self._slots.pop(slot).drop()
            raise

    def _set_threads(self, num_text_tokens: int) -> None:
        """Set the threads. Nothing drafts after a prompt that was not read yet, so reading may use
        every thread."""
        is_prompt = num_text_tokens > _SHORT_TEXT
        wanted = self.num_prompt_threads if is_prompt else self.num_threads
        self._threads.use(min(wanted, self.most_threads()) if self.most_threads else wanted)

    # --- slots

    def _touch(self, slot: int) -> None:
        if slot not in self._slots:
            cells = self._cells[slot] = _Cells(self._lib, self._memory)
            self._slots[slot] = SlotCache(
                cells, self._free_ids, is_ordered=self._is_ordered, num_first=self._num_first
            )
        self._slots.move_to_end(slot)

    def _num_cells(self, query: RowQuery) -> int:
        return len(query.text) - self._slots[query.slot].place + len(query.draft)

    def _evict(self, used: set[int]) -> bool:
        """Forget the least recently used slot that is not in use."""
        for slot, cache in self._slots.items():
            if slot not in used and cache.num_ids:
                cache.drop()
                return True
        return False

    def _fit(self, query: RowQuery, used: set[int]) -> Missing:
        part, cells = self._slots[query.slot], self._cells[query.slot]
        layout = Layout.of(query.text, query.shown)
        known = part.num_known(query.text) if layout.runs else 0
        if layout.cut(known) < known:
            part.drop()  # it knows a part of a picture: another picture may have a similar hash
        cells.layout = cells.layout.until(len(part.trunk))
        while True:
            try:
                missing = part.fit(query.text, query.draft, query.rows)
                cells.layout = layout
                return _placed(missing, layout) if layout.runs else missing
            except OutOfSequences as error:
                if part.num_to_come:
                    part.close_block()
                elif not self._evict(used):
                    raise _NoRoom from error

    # --- forward passes

    def _read_pictures(self, query: RowQuery, missing: Missing, used: set[int]) -> None:
        """Compute a text up to the end of its last picture."""
        part, text = self._slots[query.slot], missing.text
        for run in Layout.of(query.text, query.shown).runs:
            begin = len(query.text) - len(text)
            if run.end <= begin:
                continue
            check_size(run, self._num_batch)
            while begin < run.begin:
                chunk = text[: min(run.begin - begin, self._num_batch)]
                self._decode(chunk, used)
                part.add_text(chunk)
                del text[: len(chunk)]
                begin += len(chunk)
                self.on_chunk()
            entries = text[: run.end - run.begin]
            self._compute(partial(self._show, run, entries[0].seqs), entries, used)
            part.add_text(entries)
            del text[: len(entries)]
            self.on_chunk()

    def _show(self, run: Run, seqs: Sequence[int]) -> int:
        for seq in seqs:  # left by an attempt that found no cells
            self._lib.llama_memory_seq_rm(self._memory, seq, run.position, -1)
        return decode(self._lib, self.handle, run, seqs, self._num_batch)

    def _read(self, query: RowQuery, missing: Missing, used: set[int]) -> None:
        """Compute a long text in chunks, except its last part."""
        while len(missing.text) + len(missing.nodes) > self._num_batch:
            chunk = missing.text[: self._num_batch]
            if len(chunk) == len(missing.text):
                chunk = chunk[:-1]  # its row comes with the tree
            if not chunk:
                raise _NoRoom  # a tree wider than a batch
            self._decode(chunk, used)
            self._slots[query.slot].add_text(chunk)
            del missing.text[: len(chunk)]
            self.on_chunk()

    def _finish(
        self, queries: Sequence[RowQuery], plans: Sequence[Missing], used: set[int]
    ) -> list[list[Row]]:
        entries = [entry for missing in plans for entry in (*missing.text, *missing.nodes)]
        if len(entries) > self._num_batch:
            raise _NoRoom
        if entries:
            self._decode(entries, used)
        for query, missing in zip(queries, plans, strict=True):
            self._slots[query.slot].add_text(missing.text)
            self._slots[query.slot].add_nodes(missing)
        num_rows = sum(entry.row is not None for entry in entries)
        found = iter(logits(self.model, self.handle, num_rows))
        by_query = []
        for query, missing in zip(queries, plans, strict=True):
            order = [e.row for e in (*missing.text, *missing.nodes) if e.row is not None]
            by_row = dict(zip(order, found, strict=False))
            by_query.append([by_row[row] for row in query.rows])
        return by_query

    def _decode(self, entries: Sequence[Entry], used: set[int]) -> None:
        self._batch.fill(entries)

        def compute() -> int:
            with stoppable():
                return int(self._lib.llama_decode(self.handle, self._batch.struct))

        self._compute(compute, entries, used)
        self.states.computed(entries)

    def _compute(
        self, compute: Callable[[], int], entries: Sequence[Entry], used: set[int]
    ) -> None:
        """Compute entries with a function that returns the status of llama_decode."""
        self.states.take()  # those of the last pass are lost otherwise
        while True:
            status = compute()
            if status == 0:
                self.num_computed += len(entries)
                return
            if status == STOPPED:
                for slot in used:
                    self._slots.pop(slot).drop()
                self.on_chunk()
                raise KeyboardInterrupt
            if status != NO_CELLS:
                raise failure(self.model, entries, status, "gpu_layers")
            if not self._evict(used):
                raise _NoRoom


class _Cells:
    """Map places in a slot's text to positions of cells, which pictures make fewer."""

    def __init__(self, lib: Any, memory: object) -> None:
        self._lib, self._memory = lib, memory
        self.layout = Layout()  # layout of what the cells hold

    def remove(self, seq: int, begin: int, end: int = -1) -> None:
        at = self.layout.position
        last = end if end < 0 else at(end)
        self._lib.llama_memory_seq_rm(self._memory, seq, at(begin), last)

    def copy(self, source: int, target: int, begin: int, end: int) -> None:
        at = self.layout.position
        self._lib.llama_memory_seq_cp(self._memory, source, target, at(begin), at(end))


def _placed(missing: Missing, layout: Layout) -> Missing:
    """Return what is missing, with its positions."""

    def at(entry: Entry) -> Entry:
        return replace(entry, position=layout.position(entry.position))

    return replace(missing, text=list(map(at, missing.text)), nodes=list(map(at, missing.nodes)))


def failure(model: LlamaModel, entries: Sequence[Entry], status: int, option: str) -> ComputeFailed:
    """Return why llama.cpp computed nothing; less of ``option`` takes less memory."""
    unknown = [one.token for one in entries if not 0 <= one.token < model.num_vocab]
    if unknown:
        return ComputeFailed(
            f"a draft or prompt holds the token {unknown[0]}, and {model.path.name} has those from "
            f"0 to {model.num_vocab - 1}; correct the method that drafted it"
        )
    return ComputeFailed(
        f"llama.cpp could not compute {model.path.name} (status {status}); memory may be short: "
        f"use a smaller `context`, or fewer `{option}`"
    )


NO_CELLS = 1  # llama_decode returns it for a full cache
STOPPED = 2  # and this if it was told to stop


def logits(model: LlamaModel, handle: object, num_rows: int) -> NDArray[np.float32]:
    """Return the rows of a context's last forward pass, in the order of its entries."""
    if not num_rows:
        return np.empty((0, model.num_vocab), dtype=np.float32)
    pointer = model.lib.llama_get_logits(handle)
    assert pointer, "a forward pass that was computed has logits"
    return _view(ctypes.addressof(pointer.contents), num_rows, model.num_vocab)


@lru_cache  # a context's rows lie in one place, and making a view takes longer than a call
def _view(address: int, num_rows: int, num_vocab: int) -> NDArray[np.float32]:
    buffer = (ctypes.c_float * (num_rows * num_vocab)).from_address(address)
    rows: NDArray[np.float32] = np.ctypeslib.as_array(buffer)
    return rows.reshape(num_rows, num_vocab)


class _NoRoom(Exception):
    """Raised for a forward pass that the cache has no room for."""


class Threads:
    """Set how many threads compute a context's forward passes. The library is told only of
    changes."""

    def __init__(self, lib: object, handle: object) -> None:
        self._lib, self.handle = lib, handle
        self._num: int | None = None

    def use(self, num: int) -> None:
        if num != self._num:
            self._lib.llama_set_n_threads(self.handle, num, num)  # type: ignore[attr-defined]
            self._num = num


class Batch:
    """Hold a llama_batch whose arrays are NumPy's: filled by columns, not element by element. Each
    token comes with a row of ``states`` of ``num_states`` numbers, if that is not 0, and with its
    position ``num_positions`` times."""

    def __init__(
        self,
        lib: object,
        num_tokens: int,
        num_sequences: int,
        *,
        num_states: int = 0,
        num_positions: int = 1,
    ) -> None:
        self._lib = lib
        self._token = np.zeros(num_tokens, dtype=np.int32)
        self._num_positions = num_positions
        self._position = np.zeros(num_tokens * num_positions, dtype=np.int32)
        self._num_seqs = np.zeros(num_tokens, dtype=np.int32)
        self._seqs = np.zeros((num_tokens, num_sequences), dtype=np.int32)
        self._wanted = np.zeros(num_tokens, dtype=np.int8)
        self.states = np.zeros((num_tokens, num_states), dtype=np.float32)
        row_bytes = self._seqs.strides[0]
        base = self._seqs.ctypes.data
        self._rows = np.arange(base, base + num_tokens * row_bytes, row_bytes, dtype=np.uintp)
        batch_type = lib.llama_batch  # type: ignore[attr-defined]
        fields = dict(batch_type._fields_)
        self.struct = batch_type()
        for name, array in (
            ("token", self._token),
            ("pos", self._position),
            ("n_seq_id", self._num_seqs),
            ("seq_id", self._rows),
            ("logits", self._wanted),
            *([("embd", self.states)] if num_states else ()),
        ):
            setattr(self.struct, name, ctypes.cast(array.ctypes.data, fields[name]))

    def fill_texts(self, texts: Sequence[Tokens], begin: int = 0) -> None:
        """Fill one sequence per text, from position ``begin`` on."""
        sizes = [len(text) for text in texts]
        n = sum(sizes)
        self._token[:n] = np.concatenate(texts)
        self._position[:n] = np.concatenate([np.arange(begin, begin + size) for size in sizes])
        self._num_seqs[:n], self._wanted[:n] = 1, 1
        self._seqs[:n, 0] = np.repeat(np.arange(len(texts)), sizes)
        self.struct.n_tokens = n

    def fill(self, entries: Sequence[Entry]) -> None:
        n = len(entries)
        self._token[:n] = [entry.token for entry in entries]
        positions = [entry.position for entry in entries]
        self._position[: n * self._num_positions] = positions * self._num_positions
        self._num_seqs[:n] = [len(entry.seqs) for entry in entries]
        self._wanted[:n] = [entry.row is not None for entry in entries]
        for i, entry in enumerate(entries):
            self._seqs[i, : len(entry.seqs)] = entry.seqs
        self.struct.n_tokens = n

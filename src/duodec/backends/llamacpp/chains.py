"""Many texts in one forward: a stream of the cache for each, and chains after them.

llama.cpp's cache apart by sequence: every text attends to cells of its own, in the order of its
tokens, whoever else is computed. A sequence has no branches there, so of a tree the first nodes
are scored that are a chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from duodec.backends.interrupts import stoppable
from duodec.backends.llamacpp.context import NO_CELLS, STOPPED, Batch, Threads, logits
from duodec.backends.llamacpp.model import LlamaModel, open_context
from duodec.backends.llamacpp.trees import MAX_WIDTH, LlamaScores
from duodec.backends.tree_cache import Entry
from duodec.core.draft import ROOT, Draft
from duodec.core.prefix import common_prefix
from duodec.core.protocols import Query, Scores, Target
from duodec.core.sampling import Tokens
from duodec.core.traits import TargetTraits
from duodec.errors import BadOption, ComputeFailed, ContextExceeded

NUM_BATCH = 512  # tokens of a forward
MAX_ROWS = 2 * MAX_WIDTH
_PAD = 256  # cells that llama.cpp rounds a stream up to
NOTHING: Tokens = np.empty(0, dtype=np.int32)


@dataclass
class Work:
    """What a query lacks: the rest of its text, and then a chain, every row of which is wanted."""

    query: Query
    chain: tuple[int, ...]
    begin: int  # tokens of the text that its cells hold
    num_padded: int = 0  # tokens behind the chain that nobody asks for

    @property
    def num_new(self) -> int:
        return len(self.query.text) - self.begin + len(self.chain) + self.num_padded

    @property
    def after(self) -> tuple[int, ...]:
        """The tokens behind the text."""
        return (*self.chain, *([int(self.query.text[-1])] * self.num_padded))

    @property
    def held(self) -> Tokens:
        """The tokens in its cells, in the end."""
        return np.concatenate([self.query.text, np.array(self.after, dtype=np.int32)])

    def part(self, num_tokens: int) -> list[Entry]:
        """The next tokens of the text, which give no rows."""
        end = self.begin + num_tokens
        tokens = self.query.text[self.begin : end].tolist()
        entries = [Entry(t, self.begin + i, (self.query.slot,)) for i, t in enumerate(tokens)]
        self.begin = end
        return entries

    def rest(self) -> list[Entry]:
        """What is left: the text's last token and the chain give rows."""
        entries = self.part(len(self.query.text) - 1 - self.begin)
        num_rows, seqs = 1 + len(self.chain), (self.query.slot,)
        for i, token in enumerate((int(self.query.text[-1]), *self.after)):
            entries.append(Entry(token, self.begin + i, seqs, i if i < num_rows else None))
        return entries


def num_passes(lengths: Sequence[int]) -> int:
    """Times that llama.cpp reads the weights to compute so many tokens of each sequence, 0 for one
    that has none: a pass takes of neighbours as many tokens each as the shortest of them has."""
    found, begin = 0, 0
    for end, length in enumerate([*lengths, 0]):
        if not length:
            run = lengths[begin:end]
            if run:
                found += 1 + num_passes([left - min(run) for left in run])
            begin = end + 1
    return found


class LlamaChains(Target):
    """A target for the texts of ``num_slots`` slots; its scores hold until the next `score`.

    One more pass over the weights costs as much as ``pass_rows`` rows of a forward: next to nothing
    on a CPU, most of a forward on a GPU. There chains of different lengths are made even.
    """

    def __init__(
        self,
        model: LlamaModel,
        *,
        num_slots: int,
        num_context: int,
        num_threads: int,
        is_width_exact: bool = True,
        pass_rows: int = 1,
        num_snapshots: int = 0,
        uses_flash_attention: bool | None = None,
    ) -> None:
        """Raises BadOption and ModelUnreadable."""
        if num_slots > (most := int(model.lib.llama_max_parallel_sequences())):
            raise BadOption(
                f"num_slots is {num_slots} and llama.cpp keeps {most} texts; use {most} or fewer"
            )
        self.num_slots = num_slots
        self.num_threads = num_threads  # of every forward pass
        self._pass_rows = pass_rows
        self._model = model
        self._lib = model.lib
        cells = -(-(num_context + MAX_WIDTH) // _PAD) * _PAD
        self._handle = open_context(
            model,
            num_context=num_slots * cells,
            num_sequences=num_slots,
            num_threads=num_threads,
            num_batch=NUM_BATCH,
            max_rows=max(MAX_ROWS, num_slots),
            is_width_exact=is_width_exact,
            is_unified=False,
            num_snapshots=num_snapshots,
            uses_flash_attention=uses_flash_attention,
        )
        self._memory = self._lib.llama_get_memory(self._handle)
        self._threads = Threads(self._lib, self._handle)
        self._batch = Batch(self._lib, NUM_BATCH, 1)
        self._held: dict[int, Tokens] = {}  # by slot, the tokens in its cells

    @property
    def traits(self) -> TargetTraits:
        return TargetTraits(has_branches=False)

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        """Raises ContextExceeded and ComputeFailed; then what these slots held is forgotten."""
        most = MAX_ROWS // len(queries) - 1 if queries else 0
        works = {query.slot: self._fit(query, max(0, most)) for query in queries}
        try:
            self._read_long(works)
            self._even(works)
            # neighbours in the cache share a forward, others take turns
            entries = [entry for slot in sorted(works) for entry in works[slot].rest()]
            self._decode(entries)
        except BaseException:
            for slot in works:
                self._lib.llama_memory_seq_rm(self._memory, slot, 0, -1)
                self._held.pop(slot, None)
            raise
        rows = logits(self._model, self._handle, sum(entry.row is not None for entry in entries))
        answers: dict[int, Scores] = {}
        begin = 0
        for slot in sorted(works):
            work = works[slot]
            end = begin + 1 + len(work.chain)
            answers[slot] = LlamaScores(work.query, list(rows[begin:end]))
            self._held[slot] = work.held
            begin = end
        return [answers[query.slot] for query in queries]

    def close(self) -> None:
        if self._handle:
            self._lib.llama_free(self._handle)
            self._handle = None

    # --- parts

    def _fit(self, query: Query, most: int) -> Work:
        """Keep what the slot's cells have of the text, free the rest."""
        held = self._held.get(query.slot, NOTHING)
        begin = min(common_prefix(held, query.text), len(query.text) - 1)
        if begin < len(held):
            self._lib.llama_memory_seq_rm(self._memory, query.slot, begin, -1)
            self._held[query.slot] = held[:begin]
        return Work(query, chain_of(query.draft)[:most], begin)

    def _read_long(self, works: dict[int, Work]) -> None:
        """Parts of long texts, until the rest of all fits in a forward."""
        while (excess := sum(work.num_new for work in works.values()) - NUM_BATCH) > 0:
            work = max(works.values(), key=lambda work: len(work.query.text) - work.begin)
            num_left = len(work.query.text) - 1 - work.begin
            slot, text = work.query.slot, work.query.text
            self._decode(work.part(min(num_left, NUM_BATCH, max(1, excess))))
            self._held[slot] = text[: work.begin]

    def _even(self, works: dict[int, Work]) -> None:
        """Pad what is as short as a chain, where passes that are saved cost more than the rows."""
        lengths = [works[s].num_new if s in works else 0 for s in range(self.num_slots)]
        most = 1 + max((len(work.chain) for work in works.values()), default=0)
        level = max((length for length in lengths if length <= most), default=0)
        even = [length and max(length, level) for length in lengths]
        if sum(even) <= NUM_BATCH and self._cost(even) < self._cost(lengths):
            for slot, work in works.items():
                work.num_padded = even[slot] - lengths[slot]

    def _cost(self, lengths: Sequence[int]) -> int:
        return num_passes(lengths) * self._pass_rows + sum(lengths)

    def _decode(self, entries: Sequence[Entry]) -> None:
        self._threads.use(self.num_threads)
        self._batch.fill(entries)
        with stoppable():
            status = self._lib.llama_decode(self._handle, self._batch.struct)
        if status == STOPPED:
            raise KeyboardInterrupt
        if status == NO_CELLS:
            raise ContextExceeded("the context is full; ask for a larger one with `context`")
        if status:
            raise ComputeFailed(
                f"llama.cpp could not compute {self._model.path.name} (status {status}); memory "
                "may be short: use a smaller `context`, or fewer `num_slots`"
            )


def chain_of(draft: Draft) -> tuple[int, ...]:
    """The tokens of the first nodes that are a chain."""
    chain: list[int] = []
    for i, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if parent != (i - 1 if i else ROOT):
            break
        chain.append(token)
    return tuple(chain)

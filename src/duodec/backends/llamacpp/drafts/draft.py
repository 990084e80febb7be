"""Draft with llama.cpp: from the end of a long text first, and from older text if that pays."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import replace
from time import perf_counter

import numpy as np

from duodec.backends.drafter.window import (
    DEFAULT_WINDOW,
    LEAST_MEASURED,
    LEAST_WINDOW,
    NUM_FIRST,
    Track,
    Window,
)
from duodec.backends.grammar.llguidance import Masks
from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.context import LlamaContext
from duodec.backends.llamacpp.target.trees import MAX_WIDTH
from duodec.core.drafters import DraftModel, RowQuery
from duodec.core.rows import Row
from duodec.core.sampling.grammar import Grammar, Mask
from duodec.core.sampling.sampler import Tokens
from duodec.core.traits import DraftTraits, Parallel
from duodec.machine.topology import Topology

# Cells of a draft's cache, for each text beyond its window.
NUM_EXTRA_CELLS = 4 * MAX_WIDTH + NUM_FIRST
_DRAFT_SEQUENCES = 128  # leaves of a tree that a draft grows
# Tokens that a draft reads at once, at least a whole tree; between chunks it looks for requests.
_DRAFT_CHUNK = 128


class LlamaDraftModel(DraftModel):
    """Draft with a model over a `LlamaContext`; its rows hold until the next call.

    Of a long text it reads the end first, so that it drafts at once, and then older text while that
    pays: see `duodec.backends.drafter.window`. ``max_window`` is the largest number of tokens of a
    text that it holds (None: `DEFAULT_WINDOW`), and no text is longer than ``num_context``. Of a
    vocabulary larger than the target's it knows only the first ``num_vocab`` tokens. Its cache
    holds ``num_texts`` texts at once. Positions beyond those that the model was trained for are not
    used: a longer text begins again with its later half. llama.cpp's flash attention is slow for a
    draft step's few rows, and is used by default if our kernels compute it. ``clock`` returns the
    seconds by which it measures itself. ``parallel`` says how it drafts several tokens at once.
    """

    def __init__(
        self,
        model: LlamaModel,
        *,
        num_context: int,
        num_threads: int,
        num_vocab: int | None = None,
        num_texts: int = 1,
        max_window: int | None = None,
        uses_flash_attention: bool | None = None,
        parallel: Parallel | None = None,
    ) -> None:
        self.vocabulary = model
        self._num_vocab = num_vocab
        self.traits = replace(self.traits, parallel=parallel)
        self._masks = Masks(model)
        self._num_positions = model.num_context_train - MAX_WIDTH
        most = min(max_window or DEFAULT_WINDOW, num_context, self._num_positions)
        self._num_threads, self._most_threads = num_threads, len(Topology.read().fast)
        self._is_alone = False  # the target, which computes on the same cores, waits
        self.clock: Callable[[], float] = perf_counter
        self.window = Window(max(most, LEAST_WINDOW), model.num_params)
        self._origins: dict[int, int] = {}  # tokens of the text before position 0, by slot
        self._tracks: dict[int, Track] = {}  # by slot
        self.context = LlamaContext(
            model,
            num_context=num_texts * (self.window.most + NUM_EXTRA_CELLS),
            num_sequences=_DRAFT_SEQUENCES,
            num_threads=num_threads,
            max_rows=_DRAFT_SEQUENCES,
            num_chunk=_DRAFT_CHUNK,
            num_first=NUM_FIRST,
            uses_flash_attention=(
                bool(library.kernels(model.lib))
                if uses_flash_attention is None
                else uses_flash_attention
            ),
        )

    def fresh(self) -> LlamaDraftModel:
        other = copy(self)
        other.window = Window(self.window.most, self.vocabulary.num_params)
        other._origins, other._tracks = {}, {}
        return other

    traits = DraftTraits(
        reads_in_chunks=True, has_clock=True, has_window=True, has_masks=True, counts_tokens=True
    )

    @property
    def num_computed(self) -> int:
        return self.context.num_computed

    def rows(self, query: RowQuery) -> list[Row]:
        start_s, num_before = self.clock(), self.num_computed
        track = self._tracks.setdefault(query.slot, Track())
        for num_seen, is_hit in track.follow(query.text):
            self.window.observe_guess(num_seen, is_hit=is_hit)
        query = replace(query, text=self._within_positions(query.slot, query.text))
        self._place(query.slot, query.text)
        if self.vocabulary.head is not None:
            self.vocabulary.head.fit(query.text)
        (rows,) = self.context.rows([query])
        num_seen = len(query.text) - self.context.part(query.slot).begin
        for row, logits in zip(query.rows, rows, strict=True):
            first_guess = int(logits[: self._num_vocab].argmax())
            track.guess(query.draft.path_tokens(row - 1), first_guess, num_seen)
        seconds, num_read = self.clock() - start_s, self.num_computed - num_before
        if num_read - len(query.draft) < LEAST_MEASURED:
            track.spent_s += seconds
        else:
            self.window.observe_reading(num_read, seconds)
        return [row[: self._num_vocab] for row in rows]

    def widen(self, slot: int, *, is_idle: bool) -> bool:
        """Read the next tokens of older text, if the slot's text lacks some and reading pays, or
        the drafter ``is_idle`` and reading helps. Return whether anything was computed."""
        track = self._tracks.get(slot)
        if track is None:
            return False
        part = self.context.part(slot)
        num_seen = len(part.trunk) - part.begin
        num_tokens = min(self.window.block(num_seen), part.begin)
        num_missing = min(self.window.kept - num_seen, part.begin)
        if not part.num_to_come and not num_tokens:
            return False
        if is_idle:
            is_due = self.window.helps(num_seen, num_missing)
        else:
            is_due = self.window.pays(num_seen, num_missing, track.spent_s)
        if not is_due:
            return False
        if not part.num_to_come and not self.context.open_block(slot, part.begin - num_tokens):
            return False
        start_s, num_before = self.clock(), self.num_computed
        self.context.read_block(slot, self.window.chunk)
        num_read = self.num_computed - num_before
        self.window.observe_reading(num_read, self.clock() - start_s)
        return num_read > 0

    def forget(self, slot: int) -> None:
        self._origins.pop(slot, None)
        self._tracks.pop(slot, None)
        self.context.forget(slot)

    def _within_positions(self, slot: int, text: Tokens) -> Tokens:
        """Return the text, or its first tokens and the part of the rest that has positions."""
        if len(text) <= self._num_positions:
            return text
        origin = self._origins.get(slot, 0)
        if not NUM_FIRST < len(text) - origin <= self._num_positions:
            origin = self._origins[slot] = len(text) - self._num_positions // 2
        return np.concatenate([text[:NUM_FIRST], text[origin + NUM_FIRST :]])

    def _place(self, slot: int, text: Tokens) -> None:
        """Begin with the end of a text that would take long to read, and drop the oldest part of a
        text that has outgrown the window."""
        part = self.context.part(slot)
        num_known = part.num_known(text)
        if self.window.is_long(len(text) - num_known, num_known, is_alone=self._is_alone):
            self.context.start_at(slot, text, len(text) - self.window.start)
        elif num_known and len(text) - part.begin > self.window.most:
            begin = len(text) - self.window.kept
            if self.context.open_block(slot, begin):
                self.context.read_block(slot, NUM_FIRST)
            else:
                self.context.start_at(slot, text, len(text) - self.window.start)

    def mask(self, grammar: Grammar) -> Mask:
        """Return the grammar on this vocabulary. Raises BadOption."""
        return self._masks.mask(grammar)

    def compute_alone(self, is_alone: bool) -> None:
        """Compute on all fast cores and read texts whole, or compute on the draft model's share of
        the cores and read long texts from their ends."""
        self._is_alone = is_alone
        self.context.num_threads = self._most_threads if is_alone else self._num_threads

    @property
    def on_chunk(self) -> Callable[[], None]:
        """Return the function that is called between the chunks of a long text; it may raise to
        abandon the text."""
        return self.context.on_chunk

    @on_chunk.setter
    def on_chunk(self, hook: Callable[[], None]) -> None:
        self.context.on_chunk = hook

    def close(self) -> None:
        self.context.close()

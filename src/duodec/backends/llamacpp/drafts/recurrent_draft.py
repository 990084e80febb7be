"""Draft with a recurrent or hybrid model: one chain, whose state is restored where the text
differs.

A state has no branches, so the likeliest successors of a chain's tokens are also proposed, but not
expanded. The state at the end of each text is kept; a text that differs from the chain goes on from
there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from duodec.backends.drafter.window import DEFAULT_WINDOW, LEAST_WINDOW
from duodec.backends.grammar.llguidance import Masks
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.recurrent import LlamaRecurrent
from duodec.core.drafters import DraftModel, RowQuery
from duodec.core.rows import Row
from duodec.core.sampling.grammar import Grammar, Mask
from duodec.core.sampling.sampler import Tokens
from duodec.core.targets import Query
from duodec.core.traits import DraftTraits
from duodec.errors import ModelUnreadable

_FIRST_PART = 512  # in tokens: of a long new text only this many last ones are read
_MARGIN = 128  # tokens of drafts behind a text
_CHUNK = 128  # tokens that are read at once; between chunks it looks for requests


class LlamaRecurrentDraft(DraftModel):
    """Draft with a model over a `LlamaRecurrent`. A step computes one path; other paths are
    computed one after the other. The parameters are those of `LlamaDraftModel`. Raises
    ModelUnreadable for a state that cannot be restored."""

    traits = DraftTraits(
        has_branches=False, reads_in_chunks=True, has_masks=True, counts_tokens=True
    )

    def __init__(
        self,
        model: LlamaModel,
        *,
        num_context: int,
        num_threads: int,
        num_vocab: int | None = None,
        num_texts: int = 1,
        max_window: int | None = None,
    ) -> None:
        self.vocabulary = model
        self._num_vocab = num_vocab
        self._masks = Masks(model)
        most = min(max_window or DEFAULT_WINDOW, num_context, model.num_context_train - _MARGIN)
        self._most = max(most, LEAST_WINDOW)  # tokens of a text
        self._first_part = min(_FIRST_PART, self._most // 2)
        # Slots of texts -> slots of states; the last used one last.
        self._slots: dict[int, int] = {}
        self._num_texts = num_texts
        self._begins: dict[int, int] = {}  # tokens that were left out, by slot of the state
        self.target = LlamaRecurrent(
            model,
            num_slots=num_texts,
            num_context=self._most + _MARGIN,
            num_threads=num_threads,
            num_snapshots=0,
            num_chunk=_CHUNK,
        )
        if not self.target.max_draft:
            self.close()
            raise ModelUnreadable(
                f"{model.path} is a recurrent model ({model.architecture}) whose state llama.cpp "
                "cannot put back, so it cannot draft; use another draft, or `draft=none`"
            )

    @property
    def num_computed(self) -> int:
        return self.target.num_computed

    def rows(self, query: RowQuery) -> list[Row]:
        slot = self._slot_of(query.slot)
        if self.vocabulary.head is not None:
            self.vocabulary.head.fit(query.text)
        text = self._within_window(slot, query.text)
        if not query.rows:
            self._row(slot, text)
            return []
        found = []
        for row in query.rows:
            path = np.array(query.draft.path_tokens(row - 1), dtype=np.int32)
            whole = np.concatenate([text, path])
            # Its state is kept before anything is drafted that may be rejected.
            if not len(path) or self.target.num_known(slot, whole) < len(text):
                own = self._row(slot, text)
                self.target.keep(slot)
            found.append((self._row(slot, whole) if len(path) else own)[: self._num_vocab])
        return found

    def forget(self, slot: int) -> None:
        if slot in self._slots:
            self._forget(self._slots[slot])

    def mask(self, grammar: Grammar) -> Mask:
        """Return the grammar on this vocabulary. Raises BadOption."""
        return self._masks.mask(grammar)

    @property
    def on_chunk(self) -> Callable[[], None]:
        """Return the function that is called between the chunks of a long text; it may raise to
        abandon the text."""
        return self.target.on_chunk

    @on_chunk.setter
    def on_chunk(self, hook: Callable[[], None]) -> None:
        self.target.on_chunk = hook

    def close(self) -> None:
        self.target.close()

    # --- parts

    def _row(self, slot: int, text: Tokens) -> Row:
        """Return the logits after a text."""
        (scores,) = self.target.score([Query(slot, text)])
        return scores.row_logits(0).copy()

    def _slot_of(self, slot: int) -> int:
        """Return the state that holds a slot's text: its own, a free one, or the least recently
        used one."""
        if slot in self._slots:
            own = self._slots.pop(slot)
        elif len(self._slots) < self._num_texts:
            own = len(self._slots)
        else:
            own = self._slots.pop(next(iter(self._slots)))
            self._forget(own)
        self._slots[slot] = own
        return own

    def _forget(self, own: int) -> None:
        """Forget what a state was made of; it may have been another owner's text."""
        self._begins.pop(own, None)
        self.target.forget(own)

    def _within_window(self, slot: int, text: Tokens) -> Tokens:
        """Return the text without its beginning, if all of it would take long to read or is too
        long. What was left out stays so while the text goes on."""
        begin = min(self._begins.get(slot, 0), len(text))
        num_known = self.target.num_known(slot, text[begin:])
        if not num_known:
            begin = 0
        if len(text) - begin - num_known > 2 * self._first_part or len(text) - begin > self._most:
            begin = len(text) - self._first_part
        self._begins[slot] = begin
        return text[begin:]

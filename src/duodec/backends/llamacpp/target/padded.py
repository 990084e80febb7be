"""Score drafts on a device by forward passes whose widths agree.

A device's kernels may add in another order when they compute another number of rows, when a text
lies in other cells of the cache, and when llama.cpp shows them more cells. So every forward pass
that continues a text has one of the widths in which rows were found to have equal bits. Unneeded
rows are padding behind the draft, which is removed at once. Each text has a cache of its own, where
its token i lies in cell i. The cells that a row's kernels see follow from its position: no pass
crosses a position from which on llama.cpp shows more. Prompts are read in pieces that begin at
multiples of their length. So a row's bits depend only on the text.

A branch of a tree would lie in other cells than the text that it becomes, so drafts are chains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.chains import NOTHING, InFlight, LlamaChains, chain_of
from duodec.backends.llamacpp.target.context import logits
from duodec.backends.llamacpp.vision.decoding import check_size
from duodec.backends.llamacpp.vision.layout import Layout, Run
from duodec.backends.tree_cache import Entry
from duodec.core.prefix import common_prefix
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Tokens
from duodec.core.targets import Query
from duodec.core.traits import TargetTraits, Widths

MOST_ROWS = 64
NUM_PIECE = 512  # tokens of a prompt that are prefilled at once: llama.cpp's own number
_SHOWN_STEP = 256  # cells by which llama.cpp shows a forward pass more of a stream
_SHORT_TEXT = 8  # new text tokens of a round; more than these are a prompt


class LlamaPadded(LlamaChains):
    """Score the text of slot 0 on a device; scores hold until the next `launch` or `score`.

    A forward pass has one of the ``widths``; a longer chain is cut. Prompts, whose end the query's
    sampler knows, are prefilled in pieces of ``num_piece`` tokens. ``on_chunk`` is called between
    two of them, and may raise to abandon the prompt: what was prefilled stays known.
    """

    def __init__(
        self,
        model: LlamaModel,
        *,
        widths: Widths,
        num_context: int,
        num_threads: int,
        num_piece: int = NUM_PIECE,
        uses_flash_attention: bool | None = None,
        on_chunk: Callable[[], None] = lambda: None,
    ) -> None:
        assert 1 <= widths.most <= MOST_ROWS, "room behind a text for as many"
        super().__init__(
            model,
            num_slots=1,
            num_context=num_context,
            num_threads=num_threads,
            num_rows=widths.most,
            uses_flash_attention=uses_flash_attention,
        )
        self.on_chunk = on_chunk
        self.widths = widths
        self._num_piece = num_piece
        self._num_read: dict[int, int] = {}  # tokens that pieces of a slot's prompt hold
        self._layout = Layout()  # layout of the text that is computed

    def launch(self, queries: Sequence[Query]) -> InFlight:
        """Start the forward pass of a query, after what its text lacks. Raises ContextExceeded and
        ComputeFailed; then the content is forgotten."""
        (query,) = queries
        num_computed: dict[int, int] = {}
        begun = self._begin(query, num_computed)
        return InFlight(queries, lambda: {0: self._rows(begun)}, self._launches, num_computed)

    @property
    def traits(self) -> TargetTraits:
        return replace(super().traits, widths=self.widths, num_block=self._num_piece)

    def forget(self, slot: int) -> None:
        super().forget(slot)
        self._num_read.pop(slot, None)

    def _begin(self, query: Query, num_computed: dict[int, int]) -> _Pass:
        """Start the forward pass of a query, and count what it computes of the text. The rows of
        the pass before are lost."""
        self._layout = Layout.of(query.text, query.shown)
        try:
            begin, known = self._read_prompt(query)
            num_computed[query.slot] = len(query.text) - known
            return self._continue(query, begin)
        except BaseException:
            if not self._is_known(query.slot):
                self.forget(query.slot)
            raise

    def _rows(self, begun: _Pass) -> list[Row]:
        """Wait for a pass to end. The rows hold until the next one begins."""
        found = logits(self._model, self.handle, begun.num_rows)
        return list(found[begun.first_row : begun.first_row + 1 + begun.num_drafted])

    # --- prompts

    def _read_prompt(self, query: Query) -> tuple[int, int]:
        """Read what is missing of the prompt except its last token, which is computed with the
        draft. Return how many tokens of the text are known then, and how many were before."""
        slot, text, layout = query.slot, query.text, self._layout
        held, num_read = self._held.get(slot, NOTHING), self._num_read.get(slot, 0)
        known = layout.cut(min(common_prefix(held, text), len(text) - 1))
        end = self._end_of_prompt(query, known, num_read)
        if num_read == end <= known:
            self._keep(slot, known)
            return known, known
        pieces = self._pieces(end)
        most = min(known, num_read, end)
        ends = (0, *(one.end for one in pieces if one.run or not one.end % self._num_piece))
        begin = kept = max(stop for stop in ends if stop <= most)
        self._keep(slot, begin)
        for piece in pieces:
            if piece.begin < begin:
                continue
            self._read_piece(slot, text, piece)
            begin = piece.end
            self._held[slot], self._num_read[slot] = text[:begin], begin
            if begin < end:
                self.on_chunk()
        return begin, kept

    def _pieces(self, end: int) -> list[_Piece]:
        """Return how a prompt of ``end`` tokens is read: pictures whole, and what is between them
        in pieces that end at multiples of their length."""
        found: list[_Piece] = []
        begin = 0
        while begin < end:
            run = self._layout.next_run(begin)
            stop = min((begin // self._num_piece + 1) * self._num_piece, end)
            if run is not None and run.begin == begin:
                found.append(_Piece(begin, run.end, run))
            else:
                found.append(_Piece(begin, min(stop, run.begin) if run else stop))
            begin = found[-1].end
        return found

    def _read_piece(self, slot: int, text: Tokens, piece: _Piece) -> None:
        if piece.run is None:
            tokens = text[piece.begin : piece.end].tolist()
            position = self._layout.position(piece.begin)
            self._decode_of(slot, [Entry(t, position + i, (slot,)) for i, t in enumerate(tokens)])
            return
        check_size(piece.run, self._num_batch)
        known = self._held.pop(slot, NOTHING)
        self._show(piece.run, slot)
        self._held[slot] = known

    def _end_of_prompt(self, query: Query, known: int, num_read: int) -> int:
        """Return how many tokens of a text are read in pieces; what follows them continues the
        text."""
        length = len(query.text)
        if num_prompt := query.sampler.num_prompt_tokens:
            return min(num_prompt, length) - 1
        return num_read if num_read <= known and length - known <= _SHORT_TEXT else length - 1

    def _keep(self, slot: int, num_tokens: int) -> None:
        """Keep the slot's cells of the first ``num_tokens`` tokens."""
        place = self._layout.position(num_tokens)
        self._lib.llama_memory_seq_rm(self._memory, slot, place, -1)
        self._held[slot] = self._held.get(slot, NOTHING)[:num_tokens]
        self._num_read[slot] = min(self._num_read.get(slot, 0), num_tokens)

    # --- continuing

    def _continue(self, query: Query, begin: int) -> _Pass:
        """Compute the rest of the text, and with its last token the draft."""
        text, chain = query.text, chain_of(query.draft)
        while True:
            room = self._room(begin)
            tokens = text[begin : begin + room].tolist()
            is_last = begin + len(tokens) == len(text)
            drafted = chain[: room - len(tokens)] if is_last else ()
            num_rows = self._pass(query.slot, begin, [*tokens, *drafted])
            if is_last:
                held = np.array(drafted, dtype=np.int32)
                self._held[query.slot] = np.concatenate([text, held])
                return _Pass(query.slot, num_rows, len(tokens) - 1, len(drafted))
            begin += len(tokens)
            self._held[query.slot] = text[:begin]

    def _room(self, begin: int) -> int:
        """Return how many rows a pass from a position on may have while it sees as many cells as
        any other."""
        most = self.widths.most
        return min(most, _shown(begin + most) - most + 1 - begin)

    def _width(self, begin: int, num_tokens: int) -> int:
        """Return the rows of a pass from a position on: padded to the next width, or to the widest
        if llama.cpp would show a narrower one fewer cells."""
        width, most = self.widths.padded(num_tokens), self.widths.most
        return width if _shown(begin + width) == _shown(begin + most) else most

    def _pass(self, slot: int, begin: int, tokens: Sequence[int]) -> int:
        """Compute a text's tokens from ``begin`` on, and padding. All rows give logits: the last
        layer computes no others. Return the number of rows."""
        num_rows = self._width(begin, len(tokens))
        padded = [*tokens, *([tokens[-1]] * (num_rows - len(tokens)))]
        seqs, position = (slot,), self._layout.position(begin)
        self._decode_of(slot, [Entry(t, position + i, seqs, i) for i, t in enumerate(padded)])
        self._lib.llama_memory_seq_rm(self._memory, slot, position + len(tokens), -1)
        return num_rows

    def _decode_of(self, slot: int, entries: Sequence[Entry]) -> None:
        known = self._held.pop(slot, NOTHING)  # until it is computed, nothing is known to be there
        self._decode(entries)
        self._held[slot] = known

    def _is_known(self, slot: int) -> bool:
        return slot in self._held


def _shown(num_cells: int) -> int:
    """Return how many cells llama.cpp shows a pass that needs ``num_cells``."""
    return -(-num_cells // _SHOWN_STEP) * _SHOWN_STEP


@dataclass(frozen=True)
class _Piece:
    """Describe what a forward pass reads of a prompt."""

    begin: int
    end: int
    run: Run | None = None  # set if it is a picture


@dataclass(frozen=True)
class _Pass:
    """Locate the rows of a query in its forward pass."""

    slot: int
    num_rows: int  # includes padding
    first_row: int  # row that follows the text
    num_drafted: int

"""A target on transformers and torch, for CUDA; on a CPU it computes the same, slowly."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duodec.core.draft import Draft
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Distribution, Draw, Sampler, SamplingParams
from duodec.core.targets import (
    Candidates,
    Heads,
    InThisThread,
    Launched,
    Proposed,
    Query,
    Scores,
    Target,
)
from duodec.core.traits import TargetTraits, Widths
from duodec.core.verify import Verdict, propose
from duodec.errors import BadOption, ComputeFailed, ContextExceeded
from duodec_torch.checkpoint.memory import Extent
from duodec_torch.forward.attention import TAIL
from duodec_torch.forward.forwards import Forwards, InputRows, failure
from duodec_torch.forward.graphs import Queue
from duodec_torch.forward.layouts import Layouts, Readings, WindowLayouts, exact_layouts
from duodec_torch.forward.network import Network
from duodec_torch.heads.states import HeadModel, StatedText, States
from duodec_torch.library import torch
from duodec_torch.memo import SlotMemo, Slots
from duodec_torch.sampling.draws import Drawing, Drawn, RowParams, draw
from duodec_torch.sampling.summaries import NUM_COLUMNS, drawers
from duodec_torch.uploads import upload

MAX_WIDTH = TAIL  # draft tokens that a forward pass may score
_SHORT_TEXT = 8  # new text tokens of a round; more than these are a prompt
_SMALLEST = 8  # the part of ``num_chunk`` that the last part of a prompt is padded to at least
# draws of every kind
_DRAWN_FIRST = (SamplingParams(), SamplingParams(1.0), SamplingParams(1.0, top_k=20, top_p=0.9))
_WIDTHS = (1, 2, 4, 8, 16, 32, 64, 96)  # rows of a pass whose bits may depend on their number


@dataclass(frozen=True)
class TorchScores(Scores):
    """One query's draws, made on the device with the forward; its logits stay there."""

    query: Query
    drawn: Drawn  # of all queries of the call
    logits: torch.Tensor  # (rows, vocab) fp32, this query's logits
    first: int  # its first row in ``drawn``
    num_computed: int | None = None
    own: Proposed = field(default_factory=Proposed)  # what the heads propose

    @property
    def num_rows(self) -> int:
        return len(self.query.draft) + 1

    def draw(self, row: int) -> Draw:
        i = self.first + self._checked(row)
        if not math.isfinite(self.drawn.largest[i]):  # the sampler says what is wrong with the row
            return self.query.sampler.draw(self.row_logits(row), self.query.context(row))
        return Draw(int(self.drawn.tokens[i]), float(self.drawn.margins[i]))

    def candidates(self, row: int) -> Candidates:
        at, num = self.first + self._checked(row), self.query.num_candidates
        if not num or not math.isfinite(self.drawn.largest[at]):
            return Candidates()
        tokens = self.drawn.candidates[at, :num].astype(np.int64)
        return Candidates.among(tokens, self.drawn.likely[at, :num].astype(np.float32))

    def keep(self, row: int) -> Callable[[], Candidates]:
        return partial(self.candidates, row)  # they came with the draws

    def distribution(self, row: int) -> Distribution:
        """Copies the row's logits to the host."""
        return self.query.sampler.distribution(self.row_logits(row), self.query.context(row))

    def row_logits(self, row: int) -> Row:
        """Copies the row to the host."""
        found: Row = self.logits[self._checked(row)].cpu().numpy()
        return found

    def proposed(self) -> Proposed:
        return self.own

    def _checked(self, row: int) -> int:
        assert 0 <= row < self.num_rows, "a row of this draft"
        return row


class TorchTarget(Target):
    """A target over a loaded causal language model, on its device.

    ``num_slots`` texts of ``num_context`` tokens are kept. A forward pass that continues a text has
    one of the ``widths`` when ``is_width_exact``, whatever is asked for (a wider tree takes
    several), and gives a row the same bits in every tree, if the widths agree. A prompt, whose end
    the query's sampler tells, is prefilled in parts of ``num_chunk`` tokens that begin at multiples
    of it, the last one padded to a size that its length tells, so that how it was cut or known
    changes no bits either. Otherwise a pass has as few rows as it can. ``on_chunk`` is called
    between two parts of a prompt, and may raise to abandon it: what was prefilled stays known.
    ``on_warning`` gets a line when passes are slower than they should be. ``heads``, where there
    are some, propose tokens. Raises ModelUnreadable for models that cannot be scored as trees, and
    BadOption.
    """

    def __init__(
        self,
        network: Network,
        *,
        num_context: int,
        num_slots: int = 1,
        num_threads: int | None = None,
        is_width_exact: bool = True,
        widths: Widths | None = None,
        num_chunk: int | None = None,
        heads: HeadModel | None = None,
        on_warning: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._heads = heads
        if num_threads is not None:
            self.use_threads(num_threads)
        self.on_chunk = lambda: None
        self.num_context = num_context
        if is_width_exact:
            network.check_rowwise()
        self._network = network
        extent = Extent.on(network.device.type, num_context, num_slots)
        num_chunk = num_chunk or extent.num_chunk
        exact_widths = widths or Widths.only(extent.num_rows)
        self.widths = exact_widths if is_width_exact else Widths(_WIDTHS)
        self._is_exact = is_width_exact
        self.num_slots, self._num_chunk = num_slots, num_chunk
        self._num_region = extent.num_region
        self._slots = Slots(num_slots, self._num_region)
        max_rows = max(num_chunk, self.widths.most)
        self._queue = Queue(self._network.device)
        if self._queue.is_cuda:
            self._readings = Readings.few(num_chunk, num_chunk // _SMALLEST, self._num_region)
        else:
            self._readings = (
                Readings.few(num_chunk, num_chunk // _SMALLEST) if is_width_exact else Readings()
            )
        try:
            with self._queue.scope():
                self._start(max_rows, on_warning)
        except BaseException:
            self.close()  # the model can serve another
            raise

    def _start(self, max_rows: int, on_warning: Callable[[str], None]) -> None:
        """Set memory aside, and run what is to be ready."""
        self._layouts: Layouts = (
            exact_layouts(self._network, self.num_slots, self._num_region, self.widths, on_warning)
            if self._is_exact
            else WindowLayouts(self.num_slots, self._num_region)
        )
        self._recurring = self._layouts.recurring()
        self._drawers = drawers(self._network.device, self._network.num_vocab, on_warning)
        num_cells = self.num_slots * self._num_region + max_rows
        self._cache = self._network.cache(num_cells)
        self._states: States | None = None
        if self._heads is not None:
            self._network.keep_states()
            self._states = States(num_cells, self._network.embedding.weight)
        self._forwards = Forwards(
            self._network,
            self._cache,
            self._queue,
            max_rows=max_rows,
            max_logits=self.widths.most,
            on_warning=on_warning,
            states=self._states,
            summarise=self._drawers.summarise,
        )
        if self._queue.is_cuda:
            self._warm_up()

    def use_threads(self, num_threads: int) -> None:
        """Threads of what torch computes on the CPU, in the whole process."""
        torch.set_num_threads(num_threads)

    def close(self) -> None:
        """Free the cache, and give the model its own attention back; can be called twice."""
        self._network.close()
        if cache := self.__dict__.pop("_cache", None):
            cache.layers.clear()  # they know it: a cycle over all its memory
        self.__dict__.pop("_forwards", None)

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        return self.queued(queries).result()

    @cached_property
    def traits(self) -> TargetTraits:
        return TargetTraits(
            launches=self._queue.is_cuda,
            keeps_candidates=True,
            widths=self.widths if self._is_exact else Widths(),
            reads_in_chunks=True,
            num_block=self._num_chunk if self._is_exact else 1,
            heads=self._heads.kind if self._heads else "",
            num_heads=self._heads.num_heads if self._heads else 0,
            heads_share=self._heads.num_params / self._network.num_params if self._heads else 0.0,
        )

    def forget(self, slot: int) -> None:
        (memo,) = self._slots.of([slot])
        memo.cut(0)

    def launch(self, queries: Sequence[Query]) -> Launched:
        """`queued` where the device computes while the host goes on."""
        return self.queued(queries) if self._queue.is_cuda else InThisThread(self, queries)

    def queued(self, queries: Sequence[Query]) -> Launched:
        """Tell the device to score the queries and to draw; nothing is waited for."""
        self._check(queries)
        firsts = np.cumsum([0, *(len(query.draft) + 1 for query in queries)]).tolist()
        memos = self._slots.of([query.slot for query in queries])
        params = RowParams.of(queries)
        with self._queue.scope(), _blamed(memos):
            rows = _Rows.empty(self._network, params, self._drawers.summarise is not None)
            self._follow(queries, memos)
            num_known = [
                self._read(query, memo, first, rows)
                for query, memo, first in zip(queries, memos, firsts, strict=False)
            ]
            self._continue(queries, memos, firsts, rows)
            logits, copied = rows.logits, self._queue.copied
            pick, summaries = self._drawers.pick, rows.summaries
            drawing = Drawing(logits, queries, params, copied, pick, summaries)
        num_computed = [len(q.text) - num for q, num in zip(queries, num_known, strict=True)]
        return _Queued(self, self._queue, memos, queries, firsts, num_computed, logits, drawing)

    def propose(self, scores: TorchScores, memo: SlotMemo) -> Proposed:
        """What the heads propose after the text that these scores leave."""
        heads, states = self._heads, self._states
        if heads is None or states is None:
            return Proposed()
        query = scores.query
        end = memo.base + len(query.text)

        def at(verdict: Verdict) -> Heads:
            path = query.draft.path(verdict.end)
            cells = [*range(memo.base, end), *(end + node for node in path)]
            return heads.at(StatedText(query, verdict.tokens, cells, states, self._queue))

        return propose(query, scores, at, heads.num_heads)

    # --- before a forward pass

    def _check(self, queries: Sequence[Query]) -> None:
        assert len({query.slot for query in queries}) == len(queries), "one query a slot"
        if len(queries) > self.num_slots:
            raise BadOption(
                f"{len(queries)} texts at once, and the target keeps {self.num_slots}; ask for "
                "fewer, or for more slots"
            )
        for query in queries:
            if len(query.draft) > MAX_WIDTH:
                raise BadOption(
                    f"a draft of {len(query.draft)} tokens, and a forward pass scores {MAX_WIDTH}; "
                    "draft less"
                )
            if len(query.text) + len(query.draft) > self.num_context + MAX_WIDTH:
                raise ContextExceeded(
                    f"the context of {self.num_context} tokens is full; ask for a larger one "
                    "with `context`, or shorten the prompt"
                )

    def _follow(self, queries: Sequence[Query], memos: Sequence[SlotMemo]) -> None:
        """Keep what is known of the texts; accepted branches move to their places."""
        moves = []
        for query, memo in zip(queries, memos, strict=True):
            is_told = self._is_exact and query.sampler.num_prompt_tokens
            moves += memo.follow(query.text, self._ways(query) if is_told else None)
        if moves:
            source, target = upload(np.array(moves).T, self._network.device)
            self._cache.move(source, target)
            if self._states is not None:
                self._states.move(source, target)

    # --- forward passes

    def _read(self, query: Query, memo: SlotMemo, first: int, rows: _Rows) -> int:
        """Read what is missing of the prompt; the row that follows it, if it ends the text, is the
        ``first`` of the query's ``rows``. Returns how many tokens of the text were known."""
        end = self._end_of_reading(query, len(memo.trunk))
        if end <= len(memo.trunk):
            return len(memo.trunk)
        chunk = self._num_chunk
        if self._is_exact:
            memo.cut(len(memo.trunk) // chunk * chunk)
        begin = num_known = len(memo.trunk)
        while True:
            stop = min(begin + chunk, end)
            inputs = InputRows.of_text(query, memo.base, begin, stop)
            num_rows, window = self._readings.of(memo.base, begin, len(inputs))
            found = self._forwards.read(inputs, num_rows, window)
            memo.extend(query.text[begin:stop], num_rows)
            begin = stop
            if begin == end:
                break
            self.on_chunk()
        if end == len(query.text):
            row = slice(first, first + 1)
            rows.logits[row].copy_(found)
            if self._drawers.summarise is not None and rows.summaries is not None:
                ways = upload(rows.params.ways[row], found.device)
                self._drawers.summarise(rows.logits[row], ways, rows.summaries[row])
        return num_known

    def _ways(self, query: Query) -> NDArray[np.int32]:
        """Rows of the pass that reads each token of a text; 0 for those that continue it."""
        ways = np.zeros(len(query.text), dtype=np.int32)
        num_prompt, chunk = query.sampler.num_prompt_tokens, self._num_chunk
        whole = num_prompt // chunk * chunk
        ways[:whole] = chunk
        if whole < num_prompt:
            ways[whole:num_prompt] = self._readings.num_rows(num_prompt - whole)
        return ways

    def _end_of_reading(self, query: Query, num_known: int) -> int:
        """Where the part of a text ends that is read; what follows it continues the text."""
        length, num_prompt = len(query.text), query.sampler.num_prompt_tokens
        if self._is_exact and num_prompt:
            return min(length, num_prompt)
        return length if length - num_known > _SHORT_TEXT else 0

    def _continue(
        self,
        queries: Sequence[Query],
        memos: Sequence[SlotMemo],
        firsts: Sequence[int],
        rows: _Rows,
    ) -> None:
        """The rest of the texts, and the drafts, of all queries together."""
        parts, places = [], []
        for query, memo, first in zip(queries, memos, firsts, strict=False):
            end = len(query.text)
            text = InputRows.of_text(query, memo.base, len(memo.trunk), end)
            parts += [text, InputRows.of_draft(query, memo.base)]
            places += [-1] * (len(text) - 1) + [first] * bool(len(text))
            places += range(first + 1, first + 1 + len(query.draft))
        inputs = sum(parts[1:], parts[0])
        wanted = np.array(places, dtype=np.int64)
        is_row = np.flatnonzero(wanted >= 0)
        inputs.draw(is_row, rows.params.ways[wanted[is_row]])
        step = self.widths.most
        for begin in range(0, len(inputs), step):
            part = slice(begin, begin + step)
            self._score_part(inputs[part], wanted[part], rows)
        for query, memo in zip(queries, memos, strict=True):
            memo.extend(query.text[len(memo.trunk) :])
            memo.tree = query.draft

    def _score_part(self, inputs: InputRows, wanted: np.ndarray[Any, Any], rows: _Rows) -> None:
        num_rows = self.widths.padded(len(inputs))
        layout = self._layouts.of(inputs)
        can_repeat = len(inputs.bases) == 1 or layout in self._recurring
        logits, summaries = self._forwards.score(inputs, num_rows, layout, can_repeat=can_repeat)
        is_row = np.flatnonzero(wanted >= 0)
        source, target = upload(np.stack([is_row, wanted[is_row]]), logits.device)
        rows.logits.index_copy_(0, target, logits.index_select(0, source))
        if rows.summaries is not None:
            rows.summaries.index_copy_(0, target, summaries.index_select(0, source))

    def _warm_up(self) -> None:
        """Run one forward pass of each kind that comes again and again, so that nothing is planned,
        compiled or captured while somebody waits for a token, and memory that is short runs out
        at once. Only windows of other slots than the first are captured when they come."""
        inputs = InputRows.of_text(Query(0, np.zeros(1, dtype=np.int32)), 0, 0, 1)
        for num_rows, window in self._readings.for_one_text():
            self._forwards.read(inputs, num_rows, window)
        for layout in self._recurring:
            for width in self.widths.each:
                self._forwards.score(inputs, width, layout, can_repeat=True)
        logits = torch.zeros((1, self._network.num_vocab), device=self._network.device)
        for params in _DRAWN_FIRST:
            query = Query(0, np.zeros(1, dtype=np.int32), Draft(), Sampler(params), 1)
            draw(logits, [query], self._queue.to_host, self._drawers)


@dataclass(frozen=True)
class _Rows:
    """The rows of a call's queries, on the device."""

    params: RowParams
    logits: torch.Tensor  # (rows, vocab) fp32
    summaries: torch.Tensor | None  # (rows, NUM_COLUMNS) float64, where forward passes make them

    @classmethod
    def empty(cls, network: Network, params: RowParams, has_summaries: bool) -> _Rows:
        num_rows, on = len(params.values), {"device": network.device}
        logits = torch.empty((num_rows, network.num_vocab), dtype=torch.float32, **on)
        if not has_summaries:
            return cls(params, logits, None)
        return cls(params, logits, torch.empty((num_rows, NUM_COLUMNS), dtype=torch.float64, **on))


@dataclass(frozen=True)
class _Queued:
    """A forward pass that the device was told to compute."""

    target: TorchTarget
    queue: Queue
    memos: Sequence[SlotMemo]
    queries: Sequence[Query]
    firsts: Sequence[int]  # each query's first row, and the number of rows
    num_computed: Sequence[int]  # tokens of each query's text
    logits: torch.Tensor  # (rows, vocab) fp32
    drawing: Drawing
    due_s: float = math.inf

    def result(self) -> list[Scores]:
        with self.queue.scope(), _blamed(self.memos):
            drawn = self.drawing.result()
            found = [
                TorchScores(query, drawn, self.logits[first:end], first, num_computed)
                for query, first, end, num_computed in zip(
                    self.queries, self.firsts, self.firsts[1:], self.num_computed, strict=False
                )
            ]
            return [
                replace(scores, own=self.target.propose(scores, memo))
                for scores, memo in zip(found, self.memos, strict=True)
            ]


@contextmanager
def _blamed(memos: Sequence[SlotMemo]) -> Iterator[None]:
    """What a device reports becomes ComputeFailed, and what may be half computed is forgotten."""
    try:
        yield
    except (RuntimeError, ComputeFailed) as error:
        for memo in memos:
            memo.cut(0)
        if isinstance(error, ComputeFailed):
            raise
        raise failure(error) from error

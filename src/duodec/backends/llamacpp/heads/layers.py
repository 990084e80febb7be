"""Draft with layers that read a target's hidden states: multi-token prediction, and EAGLE-3.

Such a layer receives a token and the target's hidden state of the token before it, and predicts
what follows that token. For a token that it proposes itself, it reads its own state in place of the
target's. It has a context with a cache of its own, which is rolled back to the text after each
verdict, whatever the target's cache is. It sees no pictures: its cache begins after the last one.
Nothing is computed while no drafts are requested: then the
target's last states are kept, and read at the next request. Block drafters, which are also such
heads, are in `duodec.backends.llamacpp.heads.blocks`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import numpy as np

from duodec.backends.interrupts import stoppable
from duodec.backends.llamacpp.heads.files import EAGLE3, MTP, DraftLayer
from duodec.backends.llamacpp.model import LlamaModel, open_context
from duodec.backends.llamacpp.target.context import STOPPED, Batch, Threads, logits
from duodec.backends.llamacpp.target.states import FINAL, HiddenStates, Staging, State
from duodec.backends.llamacpp.vision.layout import Layout
from duodec.backends.tree_cache import Entry
from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT
from duodec.core.prefix import common_prefix
from duodec.core.sampling.sampler import Context, Sampler, Tokens
from duodec.core.targets import Candidates, Heads, Proposed, Query
from duodec.errors import BadOption, ComputeFailed, DuodecError

MOST_TOKENS = 8  # tokens that a layer proposes after one verdict, one after the other
WINDOW = 1024  # tokens at a text's end whose states are kept until the layer reads them
NUM_BATCH = 512
_TRIED = 8  # steps, to know what one costs
_LEVELS = 3  # usual levels of a draft
_ROWS = 8  # tokens of a text that are computed at once with the logits after each


@dataclass
class KnownText:
    """Hold what is known of a text: its last states, those of the draft that was scored after it,
    and what the layer has read. Of a text with pictures, this is what stands after the last one."""

    begin: int = 0
    tokens: list[int] = field(default_factory=list)  # from ``begin`` on
    states: list[State] = field(default_factory=list)
    query: Query | None = None  # query of the last forward pass
    layout: Layout = field(default_factory=Layout)  # layout of its text
    # Rows of its draft, by node + 1.
    rows: dict[int, tuple[int, State]] = field(default_factory=dict)
    # The layer has read these tokens, with the states of the tokens before.
    read: Tokens = field(default_factory=lambda: np.empty(0, dtype=np.int32))

    def follow(self, query: Query) -> None:
        """Prepare for a query that the target is about to score."""
        self.settle(query.text)
        self.query, self.rows = query, {}
        self.layout = Layout.of(query.text, query.shown)
        if self.layout.runs and (end := self.layout.runs[-1].end) > self.begin:
            del self.tokens[: end - self.begin], self.states[: end - self.begin]
            self.begin = end

    def put(self, index: int, token: int, state: State) -> None:
        """Store the state of a token. What was known from there on belongs to another text."""
        number = index - self.begin
        if not 0 <= number <= len(self.tokens):
            self.begin, number = index, 0
        del self.tokens[number:], self.states[number:]
        self.tokens.append(token)
        self.states.append(state)
        if len(self.tokens) >= 2 * WINDOW:
            num_old = len(self.tokens) - WINDOW
            del self.tokens[:num_old], self.states[:num_old]
            self.begin += num_old

    def settle(self, text: Tokens) -> None:
        """Accept that this text continues the last one: the states of accepted tokens belong to
        it."""
        query, self.query = self.query, None
        if query is None or common_prefix(query.text, text) < len(query.text):
            return
        node = ROOT
        for position in range(len(query.text), len(text)):
            token = int(text[position])
            child = query.draft.child(node, token)
            if child is None or self.rows.get(child + 1, (None,))[0] != token:
                return  # it was not scored
            self.put(position, *self.rows[child + 1])
            node = child

    def knows(self, text: Tokens) -> bool:
        """Return whether the states up to the text's last token but one are known."""
        end = len(text) - 1 - self.begin
        known = np.array(self.tokens[: max(0, end)], dtype=np.int32)
        return 0 < end <= len(self.tokens) and bool((known == text[self.begin : -1]).all())


class LlamaHead(ABC):
    """Hold layers that propose drafts after the texts of ``num_slots`` slots."""

    name: str
    layers: Sequence[int]  # layers of the target, whose states it reads
    share = 0.0  # share of the target's weights that a draft reads
    most_tokens = MOST_TOKENS  # tokens that it looks ahead

    def __init__(
        self,
        target: LlamaModel,
        model: LlamaModel,
        handle: object,
        *,
        num_slots: int,
        num_threads: int,
    ) -> None:
        """Use a model and its context. ``model`` has the layer's weights; ``handle`` is its
        context, which this closes."""
        self._lib, self._handle, self._num_slots = target.lib, handle, num_slots
        self._target, self._model, self.num_threads = target, model, num_threads
        self.width = int(self._lib.llama_model_n_embd(model.handle))  # width of the layer's states
        own = int(self._lib.llama_model_n_embd(target.handle))
        self.num_inputs = own * len(self.layers)  # numbers of the target's states that it reads
        self._staging = Staging(target.lib)
        self._memory = self._lib.llama_get_memory(handle)
        self._threads = Threads(self._lib, handle)
        self._texts: defaultdict[int, KnownText] = defaultdict(KnownText)

    @abstractmethod
    def after(self, query: Query, tokens: Sequence[int]) -> Heads:
        """Return the heads at the end of a query's text and the tokens of its verdict."""

    @abstractmethod
    def step(self, position: int) -> None:
        """Compute what a draft needs once per level, or once, behind a text of ``position`` zeros
        in slot 0. Raises ComputeFailed."""

    def close(self) -> None:
        if self._handle:
            self._lib.llama_free(self._handle)
            self._handle = None

    def states(self, handle: object, slot_of: Callable[[Entry], int]) -> HiddenStates:
        """Return what this head sees of each forward pass of one of the target's contexts."""

        def keep(entries: Sequence[Entry], states: State) -> None:
            for entry, state in zip(entries, states, strict=True):
                self.keep(slot_of(entry), entry, state)

        return HiddenStates(self._target, handle, self.layers, keep)

    def follow(self, queries: Sequence[Query]) -> None:
        """Prepare for queries that the target is about to score."""
        for query in queries:
            self._texts[self.sequence(query.slot)].follow(query)

    def keep(self, slot: int, entry: Entry, state: State) -> None:
        """Store the target's state of a token of the text, or of a draft after it."""
        text = self._texts[self.sequence(slot)]
        if entry.row:
            text.rows[entry.row] = entry.token, state
        else:
            text.put(text.layout.index(entry.position), entry.token, state)

    def forget(self, slot: int) -> None:
        """Forget what is known of a slot's text."""
        self._texts.pop(self.sequence(slot), None)

    def accounted(self, proposed: Proposed) -> Proposed:
        """Return the proposal with the number of levels that were computed for it."""
        return proposed

    def step_s(self) -> float:
        """Measure the least seconds of a step. Texts are read again after it."""
        self._lib.llama_memory_clear(self._memory, True)
        for text in self._texts.values():
            text.read = text.read[:0]
        taken = []
        for position in range(1, 1 + _TRIED):
            begin_s = perf_counter()
            self.step(position)
            taken.append(perf_counter() - begin_s)
        self._lib.llama_memory_clear(self._memory, True)
        return min(taken)

    # --- for subclasses

    def known(self, query: Query, tokens: Sequence[int]) -> tuple[KnownText, Tokens]:
        """Return what is known of the text that a verdict on a query leaves, and that text."""
        known = self._texts[self.sequence(query.slot)]
        text = np.concatenate([query.text, np.array(tokens, dtype=np.int32)])
        known.settle(text)
        return known, text

    def take_back(
        self, known: KnownText, sequence: int, text: Tokens, first: int, lag: int = 0
    ) -> int:
        """Roll the cache back to what it shares with a text. Return how many of the text's tokens,
        except the last one, it has read. Tokens before ``first`` can no longer be read. Raises
        ComputeFailed if the target's states are not known."""
        if not known.knows(text):
            raise ComputeFailed("the target's states before this token are not known")
        begin = min(common_prefix(known.read, text), len(text) - 1)
        if begin < first:  # states between are lost: the layer begins again
            begin = first
            self._lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        self._lib.llama_memory_seq_rm(self._memory, sequence, begin + lag, -1)
        known.read = text[:begin]
        return begin

    def decode(self, batch: Batch) -> None:
        """Compute a batch. Raises ComputeFailed."""
        self._threads.use(self.num_threads)
        with stoppable():
            status = self._lib.llama_decode(self._handle, batch.struct)
        if status == STOPPED:
            raise KeyboardInterrupt
        if status:
            raise ComputeFailed(f"llama.cpp could not compute a head (status {status})")

    def sequence(self, slot: int) -> int:
        """Return the sequence of a slot's text in the caches."""
        return slot if self._num_slots > 1 else 0


class ChainHead(LlamaHead):
    """Propose chains with a layer, one token after the other."""

    lag: int  # position of a token's entry, less the token's own

    def __init__(self, target: LlamaModel, model: LlamaModel, handle: object, **sizes: int) -> None:
        super().__init__(target, model, handle, **sizes)
        self._staging.set_final(handle, True, True)
        self._batch = Batch(self._lib, NUM_BATCH, 1, num_states=self.width)

    @abstractmethod
    def encoded(self, states: State) -> State:
        """Return the target's states as the layer reads them, one row per token."""

    def after(self, query: Query, tokens: Sequence[int]) -> Successors:
        known, text = self.known(query, tokens)
        return Successors(self, known, self.sequence(query.slot), text, query.sampler)

    def step(self, position: int) -> None:
        state = np.zeros((1, self.num_inputs), dtype=np.float32)
        self.compute(0, position, 0, self.encoded(state)[0])

    # --- for `Successors`

    def read(self, known: KnownText, sequence: int, text: Tokens) -> tuple[State, State]:
        """Compute what the layer lacks of a text. Return the logits and the state after it. Raises
        ComputeFailed, also if the target's states are not known."""
        first = known.begin + 1 if known.begin or self.lag else 0
        begin = self.take_back(known, sequence, text, first, self.lag)
        while True:
            num_left = len(text) - begin
            end = begin + (num_left if num_left <= _ROWS else min(NUM_BATCH, num_left - 1))
            states = [known.states[i - 1 - known.begin] for i in range(max(1, begin), end)]
            rows = self.encoded(np.stack(states))
            if begin == 0:  # nothing comes before a text
                rows = np.concatenate([np.zeros_like(rows[:1]), rows])
            self._decode(sequence, begin, text[begin:end].tolist(), rows)
            known.read = text[:end]
            if end == len(text):
                return self._last(num_left)
            begin = end

    def compute(
        self, sequence: int, position: int, token: int, state: State
    ) -> tuple[State, State]:
        """Compute a token behind the text, with the state of the one before. Return the logits and
        the state after it. Raises ComputeFailed."""
        self._decode(sequence, position, [token], state[np.newaxis])
        return self._last(1)

    # --- parts

    def _decode(self, sequence: int, position: int, tokens: Sequence[int], states: State) -> None:
        # All tokens give rows or none: graphs for some of them give the rows of others.
        has_rows = len(tokens) <= _ROWS
        seqs = (sequence,)
        entries = [
            Entry(token, position + i + self.lag, seqs, i if has_rows else None)
            for i, token in enumerate(tokens)
        ]
        self._batch.fill(entries)
        self._batch.states[: len(tokens)] = states
        self.decode(self._batch)

    def _last(self, num_rows: int) -> tuple[State, State]:
        """Return the logits and the state of the last of ``num_rows`` rows."""
        row = logits(self._model, self._handle, num_rows)[-1]
        shape = num_rows, self.width
        return row, np.ctypeslib.as_array(self._staging.final(self._handle), shape)[-1].copy()


class Successors:
    """Propose tokens after one text, along one path: the cache of the layer has no branches. They
    are ordered with the noise of the target's draws, like a draft model's."""

    def __init__(
        self, head: ChainHead, known: KnownText, sequence: int, text: Tokens, sampler: Sampler
    ) -> None:
        self._head, self._known, self._sequence, self._text = head, known, sequence, text
        self._sampler = sampler
        self._end, self._depth = ROOT, 0  # the node that was expanded last, and its depth
        self._state: State | None = None  # state after it

    def successors(
        self, tree: CandidateTree, leaves: Sequence[int], count: int
    ) -> list[Candidates]:
        """Return what may follow the first of these nodes that continues the path, best first, and
        nothing for the others."""
        found = [Candidates() for _ in leaves]
        for number, leaf in enumerate(leaves):
            if leaf == ROOT or tree.parents[leaf] == self._end:
                with suppress(ComputeFailed):  # a draft is optional
                    found[number] = self._candidates(tree, leaf, count)
                break
        return found

    def _candidates(self, tree: CandidateTree, leaf: int, count: int) -> Candidates:
        row, self._state = self._compute(tree, leaf)
        self._end = leaf
        context = Context(self._text, tuple(tree.path_tokens(leaf)))
        tokens, likely = self._sampler.candidates(row, context, count)
        return Candidates(tuple(tokens.tolist()), tuple(likely.tolist()))

    def _compute(self, tree: CandidateTree, leaf: int) -> tuple[State, State]:
        if leaf == ROOT:
            return self._head.read(self._known, self._sequence, self._text)
        assert self._state is not None, "the text comes first"
        position, self._depth = len(self._text) + self._depth, self._depth + 1
        return self._head.compute(self._sequence, position, tree.tokens[leaf], self._state)


class MtpHead(ChainHead):
    """Compute the layer of multi-token prediction in the target's own file (2412.19437)."""

    name, layers, lag = MTP, (FINAL,), 0

    def __init__(
        self, target: LlamaModel, *, num_slots: int, num_context: int, num_threads: int
    ) -> None:
        """Raise BadOption and ModelUnreadable."""
        handle = open_layers(
            target, None, num_slots=num_slots, num_context=num_context, num_threads=num_threads,
            kind=target.lib.LLAMA_CONTEXT_TYPE_MTP,
        )  # fmt: skip
        super().__init__(target, target, handle, num_slots=num_slots, num_threads=num_threads)

    def encoded(self, states: State) -> State:
        return states


class Eagle3Head(ChainHead):
    """Compute EAGLE-3 (2503.01840): a layer in a file of its own that fuses the inputs of three of
    the target's layers."""

    name, lag = EAGLE3, -1

    def __init__(
        self,
        target: LlamaModel,
        other: object,
        path: Path,
        *,
        num_slots: int,
        num_context: int,
        num_threads: int,
        num_gpu_layers: int = -1,
    ) -> None:
        """``other`` is one of the target's contexts. Raises BadOption and ModelUnreadable."""
        model = DraftLayer(path, target, num_gpu_layers=num_gpu_layers)
        self.layers = model.layers
        self.share = _LEVELS * model.num_bytes / target.num_bytes
        try:
            handle = open_layers(
                model, other, num_slots=num_slots, num_context=num_context, num_threads=num_threads
            )
        except BaseException:
            model.close()
            raise
        super().__init__(target, model, handle, num_slots=num_slots, num_threads=num_threads)
        self._features = Batch(self._lib, NUM_BATCH, 1, num_states=self.num_inputs)
        # Llama.cpp counts positions itself.
        self._features.struct.token = self._features.struct.pos = None

    def encoded(self, states: State) -> State:
        self._features.fill([Entry(0, i, (0,), i) for i in range(len(states))])
        self._features.states[: len(states)] = states
        with stoppable():
            status = self._lib.llama_encode(self._handle, self._features.struct)
        if status == STOPPED:
            raise KeyboardInterrupt
        if status:
            raise ComputeFailed(f"llama.cpp could not fuse the states for {self._model.path.name}")
        shape = len(states), self.width
        return np.ctypeslib.as_array(self._staging.final(self._handle), shape).copy()

    def close(self) -> None:
        super().close()
        self._model.close()


def cheapest(places: Sequence[Callable[[], LlamaHead]]) -> LlamaHead:
    """Open a head in each of several places, and keep it where a step takes the least time. A place
    that cannot hold or compute it is left out. If none can, the last place's error is raised.
    Raises BadOption."""
    if len(places) == 1:
        return places[0]()
    kept: LlamaHead | None = None
    least_s, failure = math.inf, DuodecError("there is no place for a head")
    try:
        for place in places:
            head = None
            try:
                head = place()
                taken_s = head.step_s()
            except BadOption:
                raise
            except DuodecError as error:
                failure, taken_s = error, math.inf
            if head is not None and taken_s < least_s:
                kept, head, least_s = head, kept, taken_s
            if head is not None:
                head.close()
    except BaseException:
        if kept is not None:
            kept.close()
        raise
    if kept is None:
        raise failure
    return kept


def open_layers(
    model: LlamaModel,
    other: object,
    *,
    num_slots: int,
    num_context: int,
    num_threads: int,
    most_tokens: int = MOST_TOKENS,
    kind: int = 0,
) -> object:
    """Return a context for layers that look ``most_tokens`` ahead; ``other`` is one of the
    target's, if they share matrices with it."""
    return open_context(
        model,
        num_context=num_slots * (num_context + most_tokens),
        num_sequences=num_slots,
        num_threads=num_threads,
        num_batch=NUM_BATCH,
        max_rows=NUM_BATCH,
        is_width_exact=True,  # on a CPU drafts are also the same in every run
        is_unified=False,
        kind=kind,
        other=other,
    )

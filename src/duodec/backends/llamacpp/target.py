"""Target and draft model on llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from duodec.backends.llamacpp.context import LlamaContext
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llguidance import Masks
from duodec.core.grammar import Grammar, Mask
from duodec.core.protocols import Candidates, Query, RowQuery, Scores
from duodec.core.rows import Row
from duodec.core.sampling import Draw, Law

MAX_WIDTH = 80  # draft tokens that a forward of the target may score
_DRAFT_SEQUENCES = 128  # leaves of a tree that a draft grows
_DRAFT_CHUNK = 128  # tokens that a draft reads at once, at least a whole tree; it looks up between


@dataclass(frozen=True)
class LlamaScores:
    """Draws from the rows of the last forward."""

    query: Query
    rows: list[Row]

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    def draw(self, row: int) -> Draw:
        return self.query.sampler.draw(self.rows[row], self.query.context(row))

    def candidates(self, row: int) -> Candidates:
        return Candidates.of(self.rows[row], self.query.num_candidates)

    def law(self, row: int) -> Law:
        return self.query.sampler.law(self.rows[row], self.query.context(row))


class LlamaTarget:
    """A target over a `LlamaContext`; its scores hold until the next `score`."""

    def __init__(
        self,
        model: LlamaModel,
        *,
        num_context: int,
        num_threads: int,
        is_width_exact: bool = True,
    ) -> None:
        self.context = LlamaContext(
            model,
            num_context=num_context + MAX_WIDTH,
            num_sequences=MAX_WIDTH + 1,  # llama.cpp keeps room for as many rows
            num_threads=num_threads,
            max_rows=2 * MAX_WIDTH,
            is_width_exact=is_width_exact,
        )

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        rows = self.context.rows(
            [RowQuery(q.slot, q.text, q.draft, tuple(range(len(q.draft) + 1))) for q in queries]
        )
        return [LlamaScores(query, own) for query, own in zip(queries, rows, strict=True)]

    def use_threads(self, num_threads: int) -> None:
        """Threads of a forward that continues a text; a prompt is read by all it was made with."""
        self.context.num_threads = num_threads

    def use_threads_throughout(self, num_threads: int) -> None:
        """Of prompts too: where others' drafts are made meanwhile."""
        self.context.num_threads = self.context.num_prompt_threads = num_threads

    @property
    def on_chunk(self) -> Callable[[], None]:
        """Called between the chunks of a long text; may raise to abandon it."""
        return self.context.on_chunk

    @on_chunk.setter
    def on_chunk(self, hook: Callable[[], None]) -> None:
        self.context.on_chunk = hook

    def close(self) -> None:
        self.context.close()


class LlamaDraftModel:
    """A draft model over a `LlamaContext`; its rows hold until the next call.

    Of a text longer than its own context it reads the last part only: a draft that sees less
    guesses worse, but it goes on guessing. Of a vocabulary larger than the target's it knows the
    first ``num_vocab`` tokens only. Its cache holds ``num_texts`` of them at once.
    """

    def __init__(
        self,
        model: LlamaModel,
        *,
        num_context: int,
        num_threads: int,
        num_vocab: int | None = None,
        num_texts: int = 1,
    ) -> None:
        self._num_vocab = num_vocab
        self._masks = Masks(model)
        self._num_window = min(num_context, model.num_context_train - MAX_WIDTH)
        self.context = LlamaContext(
            model,
            num_context=num_texts * (self._num_window + 4 * MAX_WIDTH),
            num_sequences=_DRAFT_SEQUENCES,
            num_threads=num_threads,
            max_rows=_DRAFT_SEQUENCES,
            num_chunk=_DRAFT_CHUNK,
        )

    def rows(self, query: RowQuery) -> list[Row]:
        if len(query.text) > self._num_window:
            query = replace(query, text=query.text[self._window_start(len(query.text)) :])
        (rows,) = self.context.rows([query])
        return [row[: self._num_vocab] for row in rows]

    @property
    def num_computed(self) -> int:
        """Tokens that were computed so far, in all forward passes."""
        return self.context.num_computed

    def mask(self, grammar: Grammar) -> Mask:
        """The grammar on this vocabulary. Raises BadOption."""
        return self._masks.mask(grammar)

    def _window_start(self, length: int) -> int:
        """Moves in steps, so that the window is read anew only once a step."""
        step = max(1, self._num_window // 4)
        return -(-(length - self._num_window) // step) * step

    @property
    def on_chunk(self) -> Callable[[], None]:
        """Called between the chunks of a long text; may raise to abandon it."""
        return self.context.on_chunk

    @on_chunk.setter
    def on_chunk(self, hook: Callable[[], None]) -> None:
        self.context.on_chunk = hook


@dataclass(frozen=True)
class LlamaRecipe:
    """How a process of its own makes the draft model."""

    path: Path
    num_context: int
    num_threads: int
    num_vocab: int | None = None  # of the target
    num_texts: int = 1  # that it knows at once, each of ``num_context`` tokens

    def load(self) -> LlamaDraftModel:
        model = LlamaModel(self.path, num_gpu_layers=0)
        return LlamaDraftModel(
            model,
            num_context=self.num_context,
            num_threads=self.num_threads,
            num_vocab=self.num_vocab,
            num_texts=self.num_texts,
        )

"""Target and draft model on llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from duodec.backends.llamacpp.context import LlamaContext
from duodec.backends.llamacpp.model import LlamaModel
from duodec.core.protocols import Query, RowQuery, Scores
from duodec.core.sampling import Draw, Law, Row

MAX_WIDTH = 64  # draft tokens that a forward of the target may score
_DRAFT_SEQUENCES = 32


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

    def law(self, row: int) -> Law:
        return self.query.sampler.law(self.rows[row], self.query.context(row))


class LlamaTarget:
    """A target over a `LlamaContext`; its scores hold until the next `score`."""

    def __init__(self, model: LlamaModel, *, num_context: int, num_threads: int) -> None:
        self.context = LlamaContext(
            model,
            num_context=num_context + MAX_WIDTH,
            num_sequences=MAX_WIDTH,
            num_threads=num_threads,
            max_rows=4 * MAX_WIDTH,
        )

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        rows = self.context.rows(
            [RowQuery(q.slot, q.text, q.draft, tuple(range(len(q.draft) + 1))) for q in queries]
        )
        return [LlamaScores(query, own) for query, own in zip(queries, rows, strict=True)]

    def close(self) -> None:
        self.context.close()


class LlamaDraftModel:
    """A draft model over a `LlamaContext`; its rows hold until the next call."""

    def __init__(self, model: LlamaModel, *, num_context: int, num_threads: int) -> None:
        self.context = LlamaContext(
            model,
            num_context=num_context + 4 * MAX_WIDTH,
            num_sequences=_DRAFT_SEQUENCES,
            num_threads=num_threads,
            max_rows=_DRAFT_SEQUENCES,
        )

    def rows(self, query: RowQuery) -> list[Row]:
        (rows,) = self.context.rows([query])
        return rows


@dataclass(frozen=True)
class LlamaRecipe:
    """How a process of its own makes the draft model."""

    path: Path
    num_context: int
    num_threads: int

    def load(self) -> LlamaDraftModel:
        model = LlamaModel(self.path, num_gpu_layers=0)
        return LlamaDraftModel(
            model, num_context=self.num_context, num_threads=self.num_threads
        )

"""Score trees over texts: all branches lie in one cache, and a row's bits do not depend on
others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.context import LlamaContext
from duodec.core.drafters import RowQuery
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Distribution, Draw
from duodec.core.targets import Candidates, Proposed, Query, Scores

MAX_WIDTH = 80  # draft tokens that a forward pass of the target may score


@dataclass(frozen=True)
class LlamaScores(Scores):
    """Draw from the rows of the last forward pass."""

    query: Query
    rows: list[Row]
    num_computed: int | None = None
    own: Proposed = field(default_factory=Proposed)  # proposed by the target's head

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    def draw(self, row: int) -> Draw:
        return self.query.sampler.draw(self.rows[row], self.query.context(row))

    def candidates(self, row: int) -> Candidates:
        return Candidates.of(self.rows[row], self.query.num_candidates)

    def distribution(self, row: int) -> Distribution:
        return self.query.sampler.distribution(self.rows[row], self.query.context(row))

    def row_logits(self, row: int) -> Row:
        return self.rows[row]

    def proposed(self) -> Proposed:
        return self.own


class LlamaLaunchedScores(LlamaScores):
    """Hold scores of a forward pass that a device has computed. The content of a row is computed
    while the device runs the next pass."""

    def keep(self, row: int) -> Callable[[], Candidates]:
        return partial(Candidates.of, self.rows[row].copy(), self.query.num_candidates)


class LlamaTrees:
    """Score trees with a `LlamaContext`; scores hold until the next `score`."""

    def __init__(
        self,
        model: LlamaModel,
        *,
        num_context: int,
        num_threads: int,
        is_width_exact: bool = True,
        on_chunk: Callable[[], None] = lambda: None,
    ) -> None:
        self.context = LlamaContext(
            model,
            num_context=num_context + MAX_WIDTH,
            num_sequences=MAX_WIDTH + 1,  # llama.cpp keeps room for as many rows
            num_threads=num_threads,
            max_rows=2 * MAX_WIDTH,
            is_width_exact=is_width_exact,
        )
        self.context.on_chunk = on_chunk

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        rows = self.context.rows(
            [
                RowQuery(q.slot, q.text, q.draft, tuple(range(len(q.draft) + 1)), q.shown)
                for q in queries
            ]
        )
        found = zip(queries, rows, self.context.num_read, strict=True)
        return [LlamaScores(query, own, num_read) for query, own, num_read in found]

    def close(self) -> None:
        self.context.close()

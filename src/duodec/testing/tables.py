"""Provide models that are tables: a target and a draft model in a few lines of NumPy.

They ship with the package so that methods, drafters, servers and tests run without a library
or weights. A table's logits are a pure function of the last tokens of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from time import sleep

import numpy as np

from duodec.core.candidates import CandidateTree
from duodec.core.drafters import DraftModel, RowQuery
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Context, Distribution, Draw
from duodec.core.targets import Candidates, Proposed, Query, Scores, Target
from duodec.core.traits import TargetTraits
from duodec.core.verify import Verdict, propose

PLAIN = TargetTraits()
NUM_HEADS = 3  # heads of a target that has any


@dataclass(frozen=True)
class TableModel:
    """Compute logits from a seeded generator keyed by the last ``order`` tokens.

    ``noise`` blends in logits of another seed: two models of one ``seed`` agree less the more noise
    one of them has. ``seconds`` is how long a forward pass sleeps.
    """

    num_vocab: int = 32
    order: int = 2
    seed: int = 0
    noise: float = 0.0
    seconds: float = 0.0

    def logits(self, context: Context) -> Row:
        """Return the logits of the token after ``context``, with shape (num_vocab,)."""
        return self._row(tuple(context.tokens()[-self.order :].tolist())).copy()

    @lru_cache(maxsize=1 << 14)  # noqa: B019  of all tables together
    def _row(self, last: tuple[int, ...]) -> Row:
        key = [self.seed, *last]
        row = np.random.default_rng(key).normal(0.0, 3.0, self.num_vocab)
        if self.noise:
            other = np.random.default_rng([*key, 1]).normal(0.0, 3.0, self.num_vocab)
            row = (1 - self.noise) * row + self.noise * other
        return row.astype(np.float32)

    def load(self) -> TableDraftModel:
        """Return the draft model of this table, so that a drafter process can load a table."""
        return TableDraftModel(self)


@dataclass(frozen=True)
class TableScores(Scores):
    """Draw from the table, and return its distributions."""

    model: TableModel
    query: Query
    heads: TableModel | None = field(default=None, kw_only=True)

    @property
    def num_rows(self) -> int:
        return len(self.query.draft) + 1

    def draw(self, row: int) -> Draw:
        context = self.query.context(row)
        return self.query.sampler.draw(self.model.logits(context), context)

    def candidates(self, row: int) -> Candidates:
        return Candidates.of(self.row_logits(row), self.query.num_candidates)

    def distribution(self, row: int) -> Distribution:
        context = self.query.context(row)
        return self.query.sampler.distribution(self.model.logits(context), context)

    def row_logits(self, row: int) -> Row:
        return self.model.logits(self.query.context(row))

    def proposed(self) -> Proposed:
        return propose(self.query, self, self._heads_at, NUM_HEADS) if self.heads else Proposed()

    def _heads_at(self, verdict: Verdict) -> TableHeads:
        assert self.heads is not None
        return TableHeads(self.heads, self.query, verdict.tokens)


@dataclass(frozen=True)
class TableHeads:
    """Read a table after the text of a query and the tokens of its verdict."""

    model: TableModel
    query: Query
    tokens: tuple[int, ...]

    def successors(
        self, tree: CandidateTree, leaves: Sequence[int], count: int
    ) -> list[Candidates]:
        found = []
        for leaf in leaves:
            context = Context(self.query.text, (*self.tokens, *tree.path_tokens(leaf)))
            row = self.model.logits(context)
            tokens, likely = self.query.sampler.candidates(row, context, count)
            found.append(Candidates(tuple(tokens.tolist()), tuple(likely.tolist())))
        return found


@dataclass(frozen=True)
class TableTarget(Target):
    """Read a table as a target; its ``heads``, if it has any, read another one."""

    model: TableModel
    heads: TableModel | None = field(default=None, kw_only=True)
    kind_of_heads: str = field(default="medusa", kw_only=True)

    @property
    def traits(self) -> TargetTraits:
        return TargetTraits(heads=self.kind_of_heads, num_heads=NUM_HEADS) if self.heads else PLAIN

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        if self.model.seconds:
            sleep(self.model.seconds)
        return [TableScores(self.model, query, heads=self.heads) for query in queries]


@dataclass(frozen=True)
class TableDraftModel(DraftModel):
    """Read a table as a draft model."""

    model: TableModel

    def rows(self, query: RowQuery) -> list[Row]:
        if self.model.seconds:
            sleep(self.model.seconds)
        return [
            self.model.logits(Context(query.text, tuple(query.draft.path_tokens(row - 1))))
            for row in query.rows
        ]

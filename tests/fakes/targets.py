"""Targets over another one: they score chains only, or let scores grow stale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duodec.core.protocols import Query, Scores, Target
from duodec.core.traits import TargetTraits


class Stale(Target):
    """A target whose scores hold until its next forward, as those of real ones."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.number = 0

    @property
    def traits(self) -> TargetTraits:
        return self._target.traits

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        self.number += 1
        return [_StaleScores(s, self, self.number) for s in self._target.score(queries)]


@dataclass(frozen=True)
class _StaleScores:
    scores: Scores
    owner: Stale
    number: int

    def __getattr__(self, name: str) -> object:
        assert self.number == self.owner.number, "read after the next forward"
        return getattr(self.scores, name)


class Chains(Target):
    """A target that scores of every draft only the first nodes that are a chain."""

    traits = TargetTraits(has_branches=False)

    def __init__(self, target: Target) -> None:
        self._target = target
        self.num_branches_left_out = 0

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        return [self._cut(q, s) for q, s in zip(queries, self._target.score(queries), strict=True)]

    def _cut(self, query: Query, scores: Scores) -> Scores:
        pairs = enumerate(query.draft.parents, -1)
        num_nodes = next((i + 1 for i, parent in pairs if parent != i), len(query.draft))
        self.num_branches_left_out += len(query.draft) - num_nodes
        return _Cut(scores, 1 + num_nodes)


@dataclass(frozen=True)
class _Cut:
    scores: Scores
    num_rows: int

    def __getattr__(self, name: str) -> object:
        return getattr(self.scores, name)

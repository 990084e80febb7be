"""Targets over another one: they score chains only, or let scores grow stale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from duodec.core.targets import Launched, Query, Scores, Target
from duodec.core.traits import TargetCache, TargetTraits


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


@dataclass(frozen=True)
class Caches(Target):
    """A target of several caches, each a target here: ``shared`` computes several requests at
    once, ``alone`` one that has no company, ``trees`` those that read rows off the path."""

    shared: Target
    alone: Target | None = None
    trees: Target | None = None

    @property
    def traits(self) -> TargetTraits:
        return (self.alone or self.shared).traits

    def cache_for(self, slot: int, *, reads_off_path: bool, is_alone: bool) -> TargetCache:
        target = (self.alone or self.shared) if is_alone and slot == 0 else self.shared
        target = (self.trees or self.shared) if reads_off_path else target
        number = next(i for i, own in enumerate(self._targets) if own is target)
        return TargetCache(number, target.traits)

    @property
    def _targets(self) -> list[Target]:
        return [self.alone or self.shared, self.shared, self.trees or self.shared]

    def launch(self, queries: Sequence[Query]) -> Launched:
        by_cache: dict[int, list[Query]] = {}
        for query in queries:
            by_cache.setdefault(query.cache, []).append(query)
        parts = [(own, self._targets[cache].launch(own)) for cache, own in by_cache.items()]
        return _Together(parts, queries)

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        return self.launch(queries).result()


@dataclass(frozen=True)
class _Together:
    parts: Sequence[tuple[Sequence[Query], Launched]]
    queries: Sequence[Query]

    @property
    def due_s(self) -> float:
        return max(launched.due_s for _, launched in self.parts)

    def result(self) -> list[Scores]:
        found = {
            query.slot: scores
            for queries, launched in self.parts
            for query, scores in zip(queries, launched.result(), strict=True)
        }
        return [found[query.slot] for query in self.queries]

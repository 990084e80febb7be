"""Define what a target is to the methods: queries, scores, forward passes.

A method never learns where a model runs, in which library, process or cache. ``slot`` names a memo
on the other side: callers pass the whole text each time, and the other side reuses what it has
already computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT, Draft
from duodec.core.prompts.pictures import Shown
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Context, Distribution, Draw, Sampler, Tokens
from duodec.core.traits import TargetCache, TargetTraits
from duodec.native import ranking
from duodec.native.library import NUM_CANDIDATES as NUM_CANDIDATES


@dataclass(frozen=True)
class Query:
    """Score ``draft`` after ``text``, under the distributions of ``sampler``."""

    slot: int
    text: Tokens  # shape (length,), at least one token
    draft: Draft = field(default_factory=Draft)
    sampler: Sampler = field(default_factory=Sampler)
    num_candidates: int = 0  # candidates of each row, to be returned with its draw
    heads: HeadPlan | None = None  # what the target's own heads are to propose; None: they rest
    cache: int = 0  # the number of `Target.cache_for` the slot
    sources: tuple[int, ...] = ()  # other slots whose texts may be copied where they are the same
    shown: tuple[Shown, ...] = ()  # what the text's negative tokens stand for, in order

    def context(self, row: int) -> Context:
        """Return the text and the draft tokens that precede the token drawn from ``row``."""
        return Context(self.text, tuple(self.draft.path_tokens(row - 1)))


class Candidates(NamedTuple):
    """Hold a row's likeliest tokens, best first. ``confidences`` are a softmax over the logits of
    as many tokens as the query requested; empty if the target reports tokens only."""

    tokens: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()

    def first(self, count: int) -> Candidates:
        """Return the first ``count`` candidates."""
        return Candidates(self.tokens[:count], self.confidences[:count])

    @classmethod
    def of(cls, row: Row, count: int) -> Candidates:
        """Return the ``count`` likeliest tokens of a row of logits. There are none in a row that is
        not finite, which is an error only where a text draws from it."""
        best = ranking.candidates(row, count) if count else None
        if best is None:
            return cls()
        tokens, confidences = best
        return cls(tuple(tokens.tolist()), tuple(confidences.tolist()))

    @classmethod
    def among(cls, tokens: NDArray[np.int64], logits: Row) -> Candidates:
        """Return the tokens whose logits are known, likeliest first; none if the logits are not
        finite."""
        best = ranking.candidates(logits, len(tokens))
        if best is None:
            return cls()
        order, confidences = best
        return cls(tuple(tokens[order].tolist()), tuple(confidences.tolist()))


class Heads(Protocol):
    """Compute a target's own heads at the end of one text."""

    def successors(
        self, tree: CandidateTree, leaves: Sequence[int], count: int
    ) -> list[Candidates]:
        """Return the ``count`` likeliest tokens after each of these nodes (ROOT: the text) of the
        tree, best first. All are one level deeper than those of the last call."""


class HeadPlan(Protocol):
    """Decide what heads propose. The plan runs where the heads are computed."""

    def grow(self, heads: Heads, depth: int) -> CandidateTree:
        """Return the tree under the text, at most ``depth`` tokens deep."""


@dataclass(frozen=True)
class Proposed:
    """Hold what a target's own heads propose after the tokens that a forward pass gives a text."""

    tree: CandidateTree = field(default_factory=CandidateTree)
    seconds: float = 0.0  # part of the forward pass's time
    num_computed: int | None = None  # computed levels, if they differ from those of the tree

    @property
    def num_levels(self) -> int:
        """Return how many levels were computed: by default the tokens along its longest path."""
        if self.num_computed is not None:
            return self.num_computed
        levels: list[int] = []
        for parent in self.tree.parents:
            levels.append(1 + (levels[parent] if parent != ROOT else 0))
        return max(levels, default=0)


class Scores(Protocol):
    """Hold the target's result for one query. Row 0 follows the text, row i + 1 draft node i."""

    @property
    def num_rows(self) -> int:
        """Return the number of scored rows: the text's and the first ``num_rows - 1`` nodes'."""

    @property
    def num_computed(self) -> int | None:
        """Return how many tokens of the query's text were computed for it. None means that the
        target does not report it, and computes what its slot's last text does not share."""
        return None

    def draw(self, row: int) -> Draw:
        """Return the keyed draw of a row."""

    def candidates(self, row: int) -> Candidates:
        """Return the row's likeliest tokens, best first: as many as the query requested, or none if
        the target does not know them or the row is not finite. On a GPU they come with the draws;
        elsewhere each call costs a pass over the row."""

    def keep(self, row: int) -> Callable[[], Candidates]:
        """Return a function that finds `candidates` of a row whenever it is called, also after the
        next forward pass. By default they are found at once."""
        found = self.candidates(row)
        return lambda: found

    def distribution(self, row: int) -> Distribution:
        """Return the distribution of a row under the query's sampler. Raises
        DistributionUnavailable if the target has none."""

    def row_logits(self, row: int) -> Row:
        """Return the model's own logits of a row. Raises DistributionUnavailable if there are
        none."""

    def proposed(self) -> Proposed:
        """Return what the target's heads propose after the text that the keyed verdict of these
        scores leaves; nothing where the query's ``heads`` rest, or the target has none."""
        return Proposed()


class Launched(Protocol):
    """Stand for a forward pass in flight."""

    @property
    def due_s(self) -> float:
        """Return when it will be over, in seconds of the scheduler's clock, if that is known;
        otherwise infinity. What comes later is not the target's time."""

    def result(self) -> list[Scores]:
        """Wait for the pass to end. Raises what `Target.score` raises."""


class Target(Protocol):
    """Compute the model whose text is generated. A subclass has at least `score`."""

    on_chunk: Callable[[], None] = staticmethod(lambda: None)
    """Called between two chunks of a long text that it prefills, where its traits say so. It may
    raise to abandon the text."""

    @property
    def traits(self) -> TargetTraits:
        """Return what this target can do."""
        return TargetTraits()

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        """Score every query's draft in one forward pass. Raises ContextExceeded."""

    def launch(self, queries: Sequence[Query]) -> Launched:
        """Start one forward pass over every query's draft.

        Only one pass is in flight at a time, and earlier scores end with it. A target whose traits
        do not say that it launches computes when the result is requested.
        """
        return InThisThread(self, queries)

    def cache_for(self, slot: int, *, reads_off_path: bool, is_alone: bool) -> TargetCache:
        """Return which cache computes a slot's request. ``reads_off_path``: its method reads rows
        off the text's path. ``is_alone``: no other request is running."""
        return TargetCache(traits=self.traits)

    def forget(self, slot: int) -> None:
        """Forget the slot's text, because the next one has another owner. The next text is computed
        whole, so no timing tells what the two share. No pass is in flight."""
        return


@dataclass(frozen=True)
class InThisThread:
    """Compute a forward pass when its result is requested."""

    target: Target
    queries: Sequence[Query]
    due_s: float = math.inf

    def result(self) -> list[Scores]:
        return self.target.score(self.queries)

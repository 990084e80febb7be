"""The seams: what a target, a drafter and a draft model can be asked.

A method sees only these. It never learns where a model runs, in which library, process
or cache. ``slot`` names a memo on the other side: callers pass the whole text each time,
and what of it was already computed is the other side's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from duodec.core.candidates import CandidateTree
from duodec.core.draft import Draft
from duodec.core.rows import Row, top
from duodec.core.sampling import Context, Distribution, Draw, Sampler, Tokens


@dataclass(frozen=True)
class Query:
    """Score ``draft`` after ``text``, under the distributions of ``sampler``."""

    slot: int
    text: Tokens  # (length,) int32, at least one token
    draft: Draft = field(default_factory=Draft)
    sampler: Sampler = field(default_factory=Sampler)
    num_candidates: int = 0  # of each row, to come back with its draw

    def context(self, row: int) -> Context:
        """The text and the draft tokens that precede the token drawn from ``row``."""
        return Context(self.text, tuple(self.draft.path_tokens(row - 1)))


NUM_CANDIDATES = 8  # of a row, that drafts are made of


class Candidates(NamedTuple):
    """A row's likeliest tokens, best first. ``confidences`` are the softmax over the logits of as
    many as the target was asked for; empty where it tells tokens only."""

    tokens: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()

    def first(self, count: int) -> Candidates:
        """So many of them."""
        return Candidates(self.tokens[:count], self.confidences[:count])

    @classmethod
    def of(cls, row: Row, count: int) -> Candidates:
        """Those of a row of logits."""
        if not count:
            return cls()
        best = top(row, count)
        weights = np.exp((row[best] - row[best[0]]).astype(np.float64))
        return cls(tuple(best.tolist()), tuple((weights / weights.sum()).tolist()))


class Scores(Protocol):
    """What the target says of one query. Row 0 follows the text, row i + 1 draft node i."""

    @property
    def num_rows(self) -> int:
        """Rows that were scored: the first ``num_rows - 1`` nodes of the draft."""

    def draw(self, row: int) -> Draw:
        """The keyed draw of a row."""

    def candidates(self, row: int) -> Candidates:
        """The row's likeliest tokens, best first: as many as the query asked for, and none where
        the target does not know them. On a GPU they come with the draws; elsewhere each costs a
        pass over the row, unless the scores say ``candidates_are_ready``."""

    def distribution(self, row: int) -> Distribution:
        """The distribution of a row. Raises DistributionUnavailable where the target has none."""


class Tokenizer(Protocol):
    """A vocabulary."""

    @property
    def num_vocab(self) -> int: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def bos(self) -> int: ...
    @property
    def eos(self) -> int: ...
    def token_text(self, token: int) -> bytes: ...
    def tokenize(self, text: str, *, is_templated: bool) -> list[int]: ...
    def piece(self, token: int) -> bytes: ...
    def is_end(self, token: int) -> bool: ...


class Target(Protocol):
    """The model whose text is wanted."""

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        """Score every query's draft in one forward. Raises ContextExceeded."""


class Launched(Protocol):
    """A forward pass in flight."""

    def result(self) -> list[Scores]:
        """Wait for its end. Raises what `Target.score` raises."""


@dataclass(frozen=True)
class InThisThread:
    """A forward pass that is computed when its result is wanted."""

    target: Target
    queries: Sequence[Query]

    def result(self) -> list[Scores]:
        return self.target.score(self.queries)


def launch(target: Target, queries: Sequence[Query]) -> Launched:
    """Start one forward pass over every query's draft.

    A target that computes elsewhere has a ``launch`` of its own; only one pass is in flight at a
    time, and earlier scores whose candidates are not ready end with it. Any other target computes
    when the result is wanted.
    """
    start: Callable[[Sequence[Query]], Launched] | None = getattr(target, "launch", None)
    return InThisThread(target, queries) if start is None else start(queries)


def has_branches(target: Target) -> bool:
    """Whether a target scores all of a tree; one that says ``has_branches = False`` scores its
    first chain only."""
    return bool(getattr(target, "has_branches", True))


@dataclass(frozen=True)
class DraftRequest:
    """Draft ``plan`` after ``text``; ``sampler`` is the target's, for its noise."""

    slot: int
    text: Tokens
    plan: Plan
    sampler: Sampler = field(default_factory=Sampler)


@dataclass(frozen=True)
class Drafted:
    """A draft as far as it has come, and the drafter's seconds of work on it.

    A plan that grows a tree of candidates fills ``tree`` in place of ``draft``, from its first
    word on; later polls add to the same tree.
    """

    draft: Draft = field(default_factory=Draft)
    tree: CandidateTree | None = None
    num_steps: int = 0  # forwards of the draft model
    is_complete: bool = True
    read_s: float = 0.0  # reading text that was new to the drafter
    draft_s: float = 0.0  # drafting
    num_leaves: int = 0  # of the tree, that these forwards expanded
    root_s: float = 0.0  # of draft_s, until the text's successors were known; 0: they were before
    busy_s: float = 0.0  # all work of the drafter since it was loaded, on any request

    @property
    def step_s(self) -> float | None:
        """A forward of the draft model that made a tree deeper; None before there was one."""
        num_deeper = self._num_deeper
        return (self.draft_s - self.root_s) / num_deeper if num_deeper > 0 else None

    @property
    def step_leaves(self) -> float:
        """Leaves that such a forward expanded."""
        return (self.num_leaves - (self.root_s > 0)) / max(1, self._num_deeper)

    @property
    def _num_deeper(self) -> int:
        # the first word says what is left of the last tree
        return self.num_steps - 1 - (self.root_s > 0)


class Drafter(Protocol):
    """Drafts beside the caller. A request supersedes the slot's earlier one.

    A drafter may be slow, fail or die: it then answers with less, or nothing, and never
    raises while a text is being generated.
    """

    @property
    def restarts(self) -> int:
        """How often it had to be started again."""

    def submit(self, request: DraftRequest) -> None:
        """Start to draft; returns at once."""

    def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Drafted:
        """What has been drafted for the slot's last request, after at most ``wait_s`` seconds
        of waiting for its completion, or for more than ``beyond`` candidates."""

    def cancel(self, slot: int) -> None:
        """Stop the slot's work within one draft step; returns at once."""


@dataclass(frozen=True)
class RowQuery:
    """Logits wanted of a draft model: those that follow ``rows`` (0 the text, i + 1 node i)."""

    slot: int
    text: Tokens
    draft: Draft
    rows: tuple[int, ...]


class DraftModel(Protocol):
    """A language model seen by the drafter: rows of logits after the nodes of a tree."""

    def rows(self, query: RowQuery) -> list[Row]:
        """The logits after each of ``query.rows``, in one batched forward; with no rows, the
        text and the draft are read and no more. What was computed for the slot before is not
        computed again."""


class Plan(Protocol):
    """What to draft: a shape and its size. Plans travel to the drafter by value."""

    @property
    def num_tokens(self) -> int:
        """Draft tokens at most."""

    def grow(self, model: DraftModel, request: DraftRequest) -> Iterator[Draft | CandidateTree]:
        """The draft as it grows, one forward of the draft model between two yields."""


class Datastore(Protocol):
    """Texts that were seen before, searchable by a suffix."""

    def continuations(
        self, text: Tokens, *, max_span: int, min_span: int, length: int
    ) -> NDArray[np.int32]:
        """What followed the longest known suffix of ``text`` (of ``max_span`` tokens down to
        ``min_span``): shape (found, length), in lexicographic order, -1 where a text ended."""

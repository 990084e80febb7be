"""Define the interfaces of targets, drafters and draft models.

A method sees only these. It never learns where a model runs, in which library, process
or cache. ``slot`` names a memo on the other side: callers pass the whole text each time, and the
other side reuses what it has already computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT, Draft
from duodec.core.prompts.pictures import Shown
from duodec.core.rows import Row
from duodec.core.sampling.grammar import Grammar, Mask
from duodec.core.sampling.sampler import Context, Distribution, Draw, Sampler, Tokens
from duodec.core.special_tokens import SpecialTokens, Spelled
from duodec.core.traits import DraftTraits, TargetCache, TargetTraits
from duodec.errors import BadOption
from duodec.native import ranking
from duodec.native.library import NUM_CANDIDATES as NUM_CANDIDATES


@dataclass(frozen=True)
class Query:
    """Score ``draft`` after ``text``, under the distributions of ``sampler``."""

    slot: int
    text: Tokens  # (length,) int32, at least one token
    draft: Draft = field(default_factory=Draft)
    sampler: Sampler = field(default_factory=Sampler)
    num_candidates: int = 0  # of each row, to be returned with its draw
    heads: HeadPlan | None = None  # what the target's own heads are to propose; None: they rest
    cache: int = 0  # of the target: the number of `Target.cache_for` the slot
    sources: tuple[int, ...] = ()  # other slots, whose texts may be copied where they are the same
    shown: tuple[Shown, ...] = ()  # what the text's negative tokens stand for, in order

    def context(self, row: int) -> Context:
        """The text and the draft tokens that precede the token drawn from ``row``."""
        return Context(self.text, tuple(self.draft.path_tokens(row - 1)))


class Candidates(NamedTuple):
    """A row's likeliest tokens, best first. ``confidences`` are a softmax over the logits of as
    many as the query requested; empty if the target reports tokens only."""

    tokens: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()

    def first(self, count: int) -> Candidates:
        """The first ``count`` of them."""
        return Candidates(self.tokens[:count], self.confidences[:count])

    @classmethod
    def of(cls, row: Row, count: int) -> Candidates:
        """The ``count`` likeliest tokens of a row of logits; none of a row that is not finite,
        which is an error only where a text draws from it."""
        best = ranking.candidates(row, count) if count else None
        if best is None:
            return cls()
        tokens, confidences = best
        return cls(tuple(tokens.tolist()), tuple(confidences.tolist()))

    @classmethod
    def among(cls, tokens: NDArray[np.int64], logits: Row) -> Candidates:
        """Tokens whose logits are known, likeliest first; none of logits that are not finite."""
        best = ranking.candidates(logits, len(tokens))
        if best is None:
            return cls()
        order, confidences = best
        return cls(tuple(tokens[order].tolist()), tuple(confidences.tolist()))


class Heads(Protocol):
    """A target's own heads, at the end of one text."""

    def successors(
        self, tree: CandidateTree, leaves: Sequence[int], count: int
    ) -> list[Candidates]:
        """The ``count`` likeliest tokens after each of these nodes (ROOT: the text) of the tree,
        best first. All are one level deeper than those of the last call."""


class HeadPlan(Protocol):
    """What heads are to propose. It grows where they are."""

    def grow(self, heads: Heads, depth: int) -> CandidateTree:
        """The tree under the text, at most ``depth`` tokens deep."""


@dataclass(frozen=True)
class Proposed:
    """What a target's own heads propose after the tokens that a forward pass gives a text."""

    tree: CandidateTree = field(default_factory=CandidateTree)
    seconds: float = 0.0  # of the forward pass, that it took
    num_computed: int | None = None  # levels, where these are not those of the tree

    @property
    def num_levels(self) -> int:
        """Levels that were computed: tokens along its longest path, where nothing else is said."""
        if self.num_computed is not None:
            return self.num_computed
        levels: list[int] = []
        for parent in self.tree.parents:
            levels.append(1 + (levels[parent] if parent != ROOT else 0))
        return max(levels, default=0)


class Scores(Protocol):
    """The target's result for one query. Row 0 follows the text, row i + 1 draft node i."""

    @property
    def num_rows(self) -> int:
        """Rows that were scored: the first ``num_rows - 1`` nodes of the draft."""

    @property
    def num_computed(self) -> int | None:
        """Tokens of the query's text that were computed for it; None: the target does not tell, and
        computes what its slot's last text does not share."""
        return None

    def draw(self, row: int) -> Draw:
        """The keyed draw of a row."""

    def candidates(self, row: int) -> Candidates:
        """The row's likeliest tokens, best first: as many as the query requested, or none if the
        target does not know them or the row is not finite. On a GPU they come with the draws;
        elsewhere each call costs a pass over the row."""

    def keep(self, row: int) -> Callable[[], Candidates]:
        """Return what finds `candidates` of a row whenever it is called, after the next forward
        pass as well. Here they are found at once."""
        found = self.candidates(row)
        return lambda: found

    def distribution(self, row: int) -> Distribution:
        """The distribution of a row under the query's sampler. Raises DistributionUnavailable if
        the target has none."""

    def row_logits(self, row: int) -> Row:
        """The model's own logits of a row. Raises DistributionUnavailable if there are none."""

    def proposed(self) -> Proposed:
        """What the target's heads propose after the text that the keyed verdict of these scores
        leaves; nothing where the query's ``heads`` rest, or the target has none."""
        return Proposed()


class Vocabulary(Protocol):
    """Tokens by number: what two vocabularies are compared by."""

    @property
    def num_vocab(self) -> int: ...
    @property
    def bos(self) -> int: ...
    @property
    def eos(self) -> int: ...
    def token_text(self, token: int) -> bytes: ...
    def is_end(self, token: int) -> bool: ...


class Speller(Vocabulary, Protocol):
    """A vocabulary that turns text into tokens and back."""

    def tokenize(self, text: str, *, is_templated: bool) -> list[int]: ...
    def piece(self, token: int) -> bytes: ...


class Tokenizer(Speller, Protocol):
    """A model's vocabulary, with its chat template."""

    @property
    def chat_template(self) -> str | None: ...
    @property
    def controls(self) -> SpecialTokens:
        """Tokens that direct the model: no text of a user may spell them."""

    def tokenize_around(self, text: str, controls: Sequence[Spelled]) -> list[int]:
        """Tokens of a templated text in which these are the only control tokens."""


class Launched(Protocol):
    """A forward pass in flight."""

    @property
    def due_s(self) -> float:
        """When it will be over, in seconds of the scheduler's clock, where that is known; else
        infinite. What comes later is not the target's time."""

    def result(self) -> list[Scores]:
        """Wait for the pass to end. Raises what `Target.score` raises."""


class Target(Protocol):
    """The model whose text is generated. A subclass has at least `score`."""

    on_chunk: Callable[[], None] = staticmethod(lambda: None)
    """Called between two chunks of a long text that it prefills, where its traits say so; may raise
    to abandon the text."""

    @property
    def traits(self) -> TargetTraits:
        """What it can do."""
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
        """Which cache computes a slot's request whose method reads rows off the text's path or not,
        and which has no company or some."""
        return TargetCache(traits=self.traits)

    def forget(self, slot: int) -> None:
        """Forget the slot's text, whose owner is another than the next one's: all of that is
        computed anew, so that no time tells what the two share. No pass is in flight."""
        return


@dataclass(frozen=True)
class InThisThread:
    """A forward pass that is computed when its result is requested."""

    target: Target
    queries: Sequence[Query]
    due_s: float = math.inf

    def result(self) -> list[Scores]:
        return self.target.score(self.queries)


@dataclass(frozen=True)
class DraftRequest:
    """Draft ``plan`` after ``text``; ``sampler`` is the target's, for its noise."""

    slot: int
    text: Tokens
    plan: Plan
    sampler: Sampler = field(default_factory=Sampler)
    owner: str = ""  # whose text it is: what a drafter knows of another's is of no use to it


@dataclass(frozen=True)
class Drafted:
    """A draft so far, and the drafter's seconds of work on it.

    A plan that grows a tree of candidates fills ``tree`` in place of ``draft``, from its first
    message on; later polls add to the same tree.
    """

    draft: Draft = field(default_factory=Draft)
    tree: CandidateTree | None = None
    num_steps: int = 0  # forward passes of the draft model
    is_complete: bool = True
    read_s: float = 0.0  # reading text that was new to the drafter
    draft_s: float = 0.0  # drafting
    num_leaves: int = 0  # of the tree, that these passes expanded
    root_s: float = 0.0  # of draft_s, until the text's successors were known; 0: known before
    busy_s: float = 0.0  # all work of the drafter since it was loaded, on any request

    @property
    def step_s(self) -> float | None:
        """Seconds of a draft model's forward pass that deepens a tree; None before the first
        one."""
        num_deeper = self._num_deeper
        return (self.draft_s - self.root_s) / num_deeper if num_deeper > 0 else None

    @property
    def step_leaves(self) -> float:
        """Leaves that such a pass expanded."""
        return (self.num_leaves - (self.root_s > 0)) / max(1, self._num_deeper)

    @property
    def _num_deeper(self) -> int:
        # the first message holds what is left of the last tree
        return self.num_steps - 1 - (self.root_s > 0)


class Drafter(Protocol):
    """Drafts in parallel with the caller. A request supersedes the slot's earlier one.

    A drafter may be slow, fail or die: it then returns less, or nothing, and never raises while a
    text is being generated.
    """

    @property
    def restarts(self) -> int:
        """How often it had to be restarted."""

    def submit(self, request: DraftRequest) -> None:
        """Start to draft; returns at once."""

    def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Drafted:
        """What has been drafted for the slot's last request. Waits at most ``wait_s`` seconds for
        it to be complete, or to have more than ``beyond`` candidates."""

    def heard(self, slot: int) -> Drafted:
        """What had arrived by the last call of any other method; does not look for more."""

    def cancel(self, slot: int) -> None:
        """Stop the slot's work within one draft step; returns at once."""


@dataclass(frozen=True)
class RowQuery:
    """Logits requested of a draft model: those that follow ``rows`` (0 the text, i + 1 node i)."""

    slot: int
    text: Tokens
    draft: Draft
    rows: tuple[int, ...]
    shown: tuple[Shown, ...] = ()  # as of a `Query`


class DraftModel(Protocol):
    """A language model seen by the drafter: rows of logits after the nodes of a tree.

    A subclass has at least `rows`; whatever else it has, its ``traits`` declare.
    """

    clock: Callable[[], float] = perf_counter
    """The seconds by which it measures itself; others may set it. With ``has_clock``."""
    on_chunk: Callable[[], None] = staticmethod(lambda: None)
    """Called between two chunks of a text that it prefills. An exception from there must leave the
    model usable, with what it has prefilled so far. A model is taken for hung that prefills for
    10 s without its first call, or later for five times the usual pause between two calls, a second
    at least. With ``reads_in_chunks``."""

    @property
    def traits(self) -> DraftTraits:
        """What it can do."""
        return DraftTraits()

    def rows(self, query: RowQuery) -> list[Row]:
        """The logits after each of ``query.rows``, in one batched forward pass; with no rows, the
        text and the draft are only prefilled. What was computed for the slot before is not computed
        again."""

    @property
    def num_computed(self) -> int:
        """Tokens computed so far, by all forward passes; with ``counts_tokens``."""
        return 0

    def widen(self, slot: int, *, is_idle: bool) -> bool:
        """Prefill a little older text of the slot, where that pays or, if the drafter ``is_idle``,
        where it helps; within tens of milliseconds. Whether anything was computed. With
        ``has_window``."""
        return False

    def forget(self, slot: int) -> None:
        """Forget the slot's text, as `Target.forget`."""
        return

    def anew(self) -> DraftModel:
        """The same model over the same cache, which has measured nothing of itself yet."""
        return self

    def compute_alone(self, is_alone: bool) -> None:
        """Whether the target waits from now on, on whose cores this computes: then on all of them,
        and a text is read whole, where the model can choose."""
        return

    def mask(self, grammar: Grammar) -> Mask:
        """The grammar on its vocabulary; with ``has_masks``. Raises BadOption."""
        raise BadOption("this draft model follows no grammars")


class Plan(Protocol):
    """What to draft: a shape and its size. Plans are sent to the drafter by value."""

    @property
    def num_tokens(self) -> int:
        """The most draft tokens."""

    def grow(self, model: DraftModel, request: DraftRequest) -> Iterator[Draft | CandidateTree]:
        """The draft as it grows, one forward pass of the draft model between two yields."""


class Datastore(Protocol):
    """Texts seen before, searchable by suffix."""

    def continuations(
        self, text: Tokens, *, max_span: int, min_span: int, length: int
    ) -> NDArray[np.int32]:
        """What followed the longest known suffix of ``text`` (of ``max_span`` tokens down to
        ``min_span``): shape (found, length), in lexicographic order, -1 where a text ended."""

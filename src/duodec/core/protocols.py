"""Define the interfaces of targets, drafters and draft models.

A method sees only these. It never learns where a model runs, in which library, process or cache.
``slot`` names a cache on the other side: callers pass the whole text each time, and the other side
reuses what it has already computed.
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


class Vocabulary(Protocol):
    """Number the tokens of a model; two vocabularies are compared by this."""

    @property
    def num_vocab(self) -> int: ...
    @property
    def bos(self) -> int: ...
    @property
    def eos(self) -> int: ...
    def token_text(self, token: int) -> bytes: ...
    def is_end(self, token: int) -> bool: ...


class Speller(Vocabulary, Protocol):
    """Turn text into tokens and back."""

    def tokenize(self, text: str, *, is_templated: bool) -> list[int]: ...
    def piece(self, token: int) -> bytes: ...


class Tokenizer(Speller, Protocol):
    """Add a chat template to a model's vocabulary."""

    @property
    def chat_template(self) -> str | None: ...
    @property
    def controls(self) -> SpecialTokens:
        """Return the tokens that direct the model; no user's text may spell them."""

    def tokenize_around(self, text: str, controls: Sequence[Spelled]) -> list[int]:
        """Return the tokens of a templated text in which these are the only control tokens."""


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


@dataclass(frozen=True)
class DraftRequest:
    """Draft ``plan`` after ``text``; ``sampler`` is the target's, for its noise."""

    slot: int
    text: Tokens
    plan: Plan
    sampler: Sampler = field(default_factory=Sampler)
    owner: str = ""  # owner of the text; what a drafter knows of another owner's is not used for it


@dataclass(frozen=True)
class Drafted:
    """Hold a draft so far, and the drafter's seconds of work on it.

    A plan that grows a tree of candidates fills ``tree`` in place of ``draft``, from its first
    message on; later polls add to the same tree.
    """

    draft: Draft = field(default_factory=Draft)
    tree: CandidateTree | None = None
    num_steps: int = 0  # forward passes of the draft model
    is_complete: bool = True
    read_s: float = 0.0  # reading text that was new to the drafter
    draft_s: float = 0.0  # drafting
    num_leaves: int = 0  # leaves of the tree that these passes expanded
    root_s: float = 0.0  # part of draft_s until the text's successors were known; 0: known before
    busy_s: float = 0.0  # all work of the drafter since it was loaded, on any request

    @property
    def step_s(self) -> float | None:
        """Return the seconds of a draft model's forward pass that deepens a tree; None before the
        first one."""
        num_deeper = self._num_deeper
        return (self.draft_s - self.root_s) / num_deeper if num_deeper > 0 else None

    @property
    def step_leaves(self) -> float:
        """Return how many leaves such a pass expanded."""
        return (self.num_leaves - (self.root_s > 0)) / max(1, self._num_deeper)

    @property
    def _num_deeper(self) -> int:
        # The first message holds what is left of the last tree.
        return self.num_steps - 1 - (self.root_s > 0)


class Drafter(Protocol):
    """Draft in parallel with the caller. A request supersedes the slot's earlier one.

    A drafter may be slow, fail or die: it then returns less, or nothing, and never raises while a
    text is being generated.
    """

    @property
    def restarts(self) -> int:
        """Return how often the drafter had to be restarted."""

    def submit(self, request: DraftRequest) -> None:
        """Start to draft, and return at once."""

    def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Drafted:
        """Return what has been drafted for the slot's last request. Waits at most ``wait_s``
        seconds for it to be complete, or to have more than ``beyond`` candidates."""

    def heard(self, slot: int) -> Drafted:
        """Return what had arrived by the last call of any other method, without looking for
        more."""

    def cancel(self, slot: int) -> None:
        """Stop the slot's work within one draft step, and return at once."""


@dataclass(frozen=True)
class RowQuery:
    """Request logits of a draft model: those that follow ``rows`` (0 the text, i + 1 node i)."""

    slot: int
    text: Tokens
    draft: Draft
    rows: tuple[int, ...]
    shown: tuple[Shown, ...] = ()  # as in a `Query`


class DraftModel(Protocol):
    """Compute a language model for the drafter: rows of logits after the nodes of a tree.

    A subclass has at least `rows`; its ``traits`` declare what else it has.
    """

    clock: Callable[[], float] = perf_counter
    """The seconds by which it measures itself; others may set it. It needs ``has_clock``."""
    on_chunk: Callable[[], None] = staticmethod(lambda: None)
    """Called between two chunks of a text that it prefills. An exception from there must leave the
    model usable, with what it has prefilled so far. A model counts as hung if it prefills for 10 s
    before the first call, or later for five times the usual pause between two calls, at least a
    second. It needs ``reads_in_chunks``."""

    @property
    def traits(self) -> DraftTraits:
        """Return what this model can do."""
        return DraftTraits()

    def rows(self, query: RowQuery) -> list[Row]:
        """Return the logits after each of ``query.rows``, in one batched forward pass; with no
        rows, the text and the draft are only prefilled. What was computed for the slot before is
        not computed again."""

    @property
    def num_computed(self) -> int:
        """Return how many tokens all forward passes have computed so far. It needs
        ``counts_tokens``."""
        return 0

    def widen(self, slot: int, *, is_idle: bool) -> bool:
        """Prefill a little older text of the slot, where that pays or, if the drafter ``is_idle``,
        where it helps, within tens of milliseconds. Return whether anything was computed. It needs
        ``has_window``."""
        return False

    def forget(self, slot: int) -> None:
        """Forget the slot's text, as in `Target.forget`."""
        return

    def fresh(self) -> DraftModel:
        """Return the same model over the same cache, without measurements of itself."""
        return self

    def compute_alone(self, is_alone: bool) -> None:
        """Use all cores while the target, which computes on the same cores, waits (``is_alone``),
        or stop doing so. Meanwhile a text is read whole, if the model can choose."""
        return

    def mask(self, grammar: Grammar) -> Mask:
        """Return the grammar on its vocabulary. Raises BadOption. It needs ``has_masks``."""
        raise BadOption("this draft model follows no grammars")


class Plan(Protocol):
    """Say what to draft: a shape and its size. Plans are sent to the drafter by value."""

    @property
    def num_tokens(self) -> int:
        """Return the most draft tokens."""

    def grow(self, model: DraftModel, request: DraftRequest) -> Iterator[Draft | CandidateTree]:
        """Yield the draft as it grows, with one forward pass of the draft model between two
        yields."""


class Datastore(Protocol):
    """Search texts seen before by their suffixes."""

    def continuations(
        self, text: Tokens, *, max_span: int, min_span: int, length: int
    ) -> NDArray[np.int32]:
        """Return what followed the longest known suffix of ``text`` (of ``max_span`` tokens down to
        ``min_span``): shape (found, length), in lexicographic order, -1 where a text ended."""

"""Define what a drafter, its draft model and its datastore are to the methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from duodec.core.candidates import CandidateTree
from duodec.core.draft import Draft
from duodec.core.prompts.pictures import Shown
from duodec.core.rows import Row
from duodec.core.sampling.grammar import Grammar, Mask
from duodec.core.sampling.sampler import Sampler, Tokens
from duodec.core.traits import DraftTraits
from duodec.errors import BadOption


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

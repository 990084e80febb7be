"""What a method sees of one answer: its text, a target to ask, a drafter to set to work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from duodec.core.candidates import CandidateTree
from duodec.core.draft import Draft
from duodec.core.protocols import (
    Datastore,
    Drafted,
    Drafter,
    DraftRequest,
    Plan,
    Query,
    Scores,
    Target,
    has_branches,
)
from duodec.core.round import Round
from duodec.core.sampling import Sampler, Tokens
from duodec.core.verify import Verdict
from duodec.drafting.plans import Chain
from duodec.planning.costs import Costs

PATIENCE = 3.0  # a draft may take this many times its expected time, then it is left


class NoDrafter:
    """A drafter that never has anything to say."""

    @property
    def restarts(self) -> int:
        return 0

    def submit(self, request: DraftRequest) -> None: ...

    def heard(self, slot: int) -> Drafted:
        return Drafted()

    def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Drafted:
        return Drafted()

    def cancel(self, slot: int) -> None: ...


class NoDatastore:
    """A datastore that knows nothing."""

    def continuations(
        self, text: Tokens, *, max_span: int, min_span: int, length: int
    ) -> NDArray[np.int32]:
        return np.empty((0, length), dtype=np.int32)


@dataclass(frozen=True)
class Forward:
    """One target forward: what it said, and when it ran."""

    scores: Scores
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


@dataclass
class Session:
    """One answer in the making. Only `commit` moves its text."""

    target: Target
    prompt: Sequence[int]
    capacity: int  # length that the text may reach
    drafter: Drafter = field(default_factory=NoDrafter)
    sampler: Sampler = field(default_factory=Sampler)
    slot: int = 0
    datastore: Datastore = field(default_factory=NoDatastore)
    costs: Costs = field(default_factory=Costs)
    shares_cores: bool = False  # drafter and target compute on the same cores
    prepare: Callable[[bool], None] = lambda is_beside: None
    """Shares the cores, with a drafter at work beside the target or not."""
    max_width: int = 80  # draft tokens that one forward may score
    clock: Callable[[], float] = perf_counter

    def __post_init__(self) -> None:
        self._buffer = np.empty(self.capacity, dtype=np.int32)
        self._length = len(self.prompt)
        self._buffer[: self._length] = self.prompt
        self.num_rounds = 0

    @property
    def text(self) -> Tokens:
        """Prompt and answer so far; a view that later tokens do not change."""
        return self._buffer[: self._length]

    @property
    def has_branches(self) -> bool:
        """The target scores all of a tree, not its first chain only; of a shared one, that depends
        on who else is at work."""
        return has_branches(self.target)

    @property
    def remaining(self) -> int:
        """Tokens that may still join the text."""
        return self.capacity - self._length

    @property
    def room(self) -> int:
        """Draft tokens after the text that can be of use."""
        return max(0, min(self.remaining - 1, self.max_width))

    def score(self, draft: Draft, num_candidates: int = 0) -> Forward:
        """One target forward over ``draft`` after the text."""
        query = Query(self.slot, self.text, draft, self.sampler, num_candidates)
        start = self.clock()
        (scores,) = self.target.score([query])
        forward = Forward(scores, start, self.clock())
        if self.num_rounds:  # the first one reads the prompt
            self.costs.observe_forward(forward.duration_s, len(draft))
        return forward

    def read_ahead(self) -> None:
        """Let the drafter read the text while the target does, where they share no cores."""
        if not self.shares_cores:
            self.submit(Chain(0))

    def submit(self, plan: Plan, pending: Draft | None = None) -> None:
        """Set the drafter to work on what follows the text and the chain ``pending``."""
        text = self.text
        if pending:
            text = np.concatenate([text, np.array(pending.tokens, dtype=np.int32)])
        self.drafter.submit(DraftRequest(self.slot, text, plan, self.sampler))

    def peek(self) -> Drafted:
        """The draft asked for, as far as it is now."""
        drafted = self.drafter.poll(self.slot)
        self.costs.observe_draft(len(drafted.draft), drafted.draft_s)
        return drafted

    def collect(self, plan: Plan) -> Drafted:
        """The draft asked for, waited for with patience; what there is when it runs out."""
        wait_s = PATIENCE * self.costs.draft_s(plan.num_tokens)
        start = self.clock()
        drafted = self.drafter.poll(self.slot, wait_s)
        self.costs.observe_draft(len(drafted.draft), drafted.draft_s)
        if not len(drafted.draft) and plan.num_tokens and self.clock() - start >= wait_s:
            self.costs.observe_draft(1, wait_s)  # it was drafting, and a token takes longer
        return drafted

    def rest(self) -> None:
        """The drafter has nothing to do; what it read and drafted stays known to it."""
        self.drafter.cancel(self.slot)

    def peek_tree(self) -> Drafted:
        """How far the drafter's tree is."""
        drafted = self.drafter.poll(self.slot)
        self._learn_steps(drafted)
        return drafted

    def tree(self, mirror: CandidateTree, wait_s: float = 0.0) -> CandidateTree:
        """The drafter's tree under the text, once it has said what is in it, else ``mirror``;
        waited for until it holds more than that."""
        drafted = self.drafter.poll(self.slot, wait_s, len(mirror) if wait_s else None)
        if wait_s:
            self._learn_steps(drafted)
        if drafted.tree is None or len(drafted.tree) < len(mirror):
            return mirror
        return drafted.tree

    def _learn_steps(self, drafted: Drafted) -> None:
        if drafted.root_s:
            self.costs.observe_root(drafted.root_s)
        if drafted.step_s is not None:
            self.costs.observe_step(drafted.step_s, drafted.step_leaves)

    def draft(self, plan: Plan) -> Draft:
        """Draft after the text and wait for it."""
        self.submit(plan)
        return self.collect(plan).draft

    def commit(
        self,
        verdict: Verdict,
        forward: Forward,
        *,
        num_scored: int,
        num_drafted: int,
        draft_wait_s: float = 0.0,
        overlap_s: float = 0.0,
    ) -> Round:
        """The verdict's tokens join the text; the round is written down."""
        tokens = verdict.tokens[: self.remaining]
        self._buffer[self._length : self._length + len(tokens)] = tokens
        self._length += len(tokens)
        self.num_rounds += 1
        return Round(
            tokens=tokens,
            num_accepted=min(len(verdict.accepted), len(tokens)),
            num_drafted=num_drafted,
            num_scored=num_scored,
            margin=verdict.margin,
            start_s=forward.start_s,
            end_s=forward.end_s,
            draft_wait_s=draft_wait_s,
            overlap_s=min(overlap_s, forward.duration_s),
        )

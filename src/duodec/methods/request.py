"""Follow one completion from its admission to its end: what a method sees and what it produces."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duodec.core.draft import ROOT, Draft
from duodec.core.drafters import Datastore, Drafted, Drafter, DraftRequest, Plan
from duodec.core.events import DraftSource, FinishReason, Segment
from duodec.core.prompts.pictures import blanked, shown_in
from duodec.core.round import Round
from duodec.core.sampling.logprobs import Logprob, logprob
from duodec.core.sampling.sampler import Sampler, Tokens
from duodec.core.targets import HeadPlan, Query, Scores
from duodec.core.text import TextStream
from duodec.core.traits import TargetTraits
from duodec.core.turns import InTurns
from duodec.core.verify import Verdict
from duodec.drafting import constants
from duodec.drafting.plans import Chain
from duodec.planning.costs import Costs


class NoDrafter:
    """Never draft."""

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
    """Know nothing."""

    def continuations(
        self, text: Tokens, *, max_span: int, min_span: int, length: int
    ) -> NDArray[np.int32]:
        return np.empty((0, length), dtype=np.int32)


@dataclass(frozen=True)
class Score:
    """Request one forward pass of the target over ``draft`` after the text. The scheduler sends a
    `Forward`."""

    draft: Draft = field(default_factory=Draft)
    num_candidates: int = 0  # candidates of each row
    num_text: int | None = None  # tokens of the text that the draft follows; None: all
    heads: HeadPlan | None = None  # what the target's own heads are to propose; None: they rest


@dataclass(frozen=True)
class Wait:
    """Wait until the drafter is done, or knows more than ``beyond`` candidates, for at most
    ``seconds``. The scheduler sends what is `Drafted` by then. If other requests are running, it
    may keep them going meanwhile."""

    seconds: float
    beyond: int | None = None


@dataclass(frozen=True)
class Forward:
    """Hold one forward pass of the target: its scores, and when it ran."""

    scores: Scores
    start_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s


Need = Score | Wait
Loop = Generator[Need, Any, None]
"""The coroutine of a method for a request: it yields what it needs next, and is sent the result."""


@dataclass
class Request:
    """Hold one completion. Only `commit` changes its text.

    ``prompt`` are tokens, ``capacity`` is the length that the text may reach, ``sampler`` holds the
    sampling parameters and ``slot`` names the target's cache of this text. The scheduler sets what
    depends on the other requests of a batch: ``slot``, ``costs`` and the target's ``traits``.
    """

    prompt: Sequence[int]
    capacity: int
    drafter: Drafter = field(default_factory=NoDrafter)
    sampler: Sampler = field(default_factory=Sampler)
    slot: int = 0
    datastore: Datastore = field(default_factory=NoDatastore)
    costs: Costs = field(default_factory=Costs)
    shares_cores: bool = False  # drafter and target compute on the same cores
    # The drafter computes only while the target waits: on the same cores, or on the same GPU.
    takes_turns: bool = False
    max_width: int = constants.MAX_DRAFT  # most draft tokens that one forward pass may score
    traits: TargetTraits = field(default_factory=TargetTraits)
    clock: Callable[[], float] = perf_counter
    is_end: Callable[[int], bool] = lambda token: False
    """Return whether a token ends the completion."""
    stream: TextStream | None = None  # makes text of the tokens
    num_logprobs: int | None = None  # alternatives for each token; None: no logprobs
    num_prompt_logprobs: int | None = None  # the same for the prompt's tokens
    owner: str = ""  # owner of the text; what was learned from another owner's is not used for it
    blank: int = 0  # token that drafts see in place of each token of a picture

    def __post_init__(self) -> None:
        self.shown = shown_in(self.prompt)
        self._scored = self._buffer = np.empty(self.capacity, dtype=np.int32)
        self._length = len(self.prompt)
        self._buffer[: self._length] = self.prompt
        if self.shown:
            self._buffer = blanked(self._buffer, self.blank)
        self._deferred: list[Callable[[], None]] = []
        self.rounds: list[Round] = []
        self.segments: list[Segment] = []  # text that was not taken yet
        self.logprobs: list[Logprob] = []
        self.prompt_logprobs: list[Logprob | None] = []
        self.finish_reason: FinishReason | None = None  # set once an end was drawn
        self.is_drafting = False  # the draft model takes part
        self.is_contended = False  # the draft model works on the target's cores out of turn
        self.outside_s = 0.0  # time that the caller spent between forward passes
        self.rehearse: Callable[[float], None] | None = None
        """Prepare the next round for the likeliest verdicts. It may be called shortly before the
        end of a forward pass that is computed elsewhere, with the moment of that end."""
        self._waited_s = 0.0  # time waiting for drafts since the last forward pass
        # Time of the last look at drafts, and what it saw.
        self._looked: tuple[float, Drafted] | None = None

    # --- what a method sees

    @property
    def text(self) -> Tokens:
        """Return the prompt and the completion so far, with pictures left blank, as a view that
        later tokens do not change."""
        return self._buffer[: self._length]

    @property
    def scored_text(self) -> Tokens:
        """Return the text as the target sees it, with negative tokens for pictures."""
        return self._scored[: self._length]

    @property
    def num_rounds(self) -> int:
        return len(self.rounds)

    @property
    def remaining(self) -> int:
        """Return the number of tokens that may still join the text."""
        return 0 if self.finish_reason else self.capacity - self._length

    @property
    def room(self) -> int:
        """Return how many draft tokens after the text can be of use."""
        return max(0, min(self.remaining - 1, self.max_width))

    def now(self) -> float:
        """Return the time in seconds, without what the caller spent."""
        return self.clock() - self.outside_s

    def defer(self, work: Callable[[], None]) -> None:
        """Run work while the target computes the next forward pass, or before it where the target
        computes in this thread."""
        self._deferred.append(work)

    def prefill_ahead(self) -> None:
        """Let the drafter prefill the text while the target does, where they share no cores."""
        if not self.shares_cores:
            self.submit(Chain(0))

    def submit(self, plan: Plan, pending: Draft | None = None) -> None:
        """Let the drafter work on what follows the text and the chain ``pending``."""
        text = self.text
        if pending:
            text = np.concatenate([text, np.array(pending.tokens, dtype=np.int32)])
        self._looked = None
        self.drafter.submit(DraftRequest(self.slot, text, plan, self.sampler, self.owner))

    def peek(self) -> Drafted:
        """Return the requested draft, as far as it is now."""
        drafted = self.drafter.poll(self.slot)
        self.costs.observe_draft(len(drafted.draft), drafted.draft_s)
        return drafted

    def wait(self, seconds: float, beyond: int | None = None) -> Generator[Need, Any, Drafted]:
        """Wait for drafts, and record for how long."""
        start_s = self.clock()
        drafted: Drafted = yield Wait(seconds, beyond)
        self._waited_s += self.clock() - start_s
        return drafted

    def collect(self, plan: Plan) -> Generator[Need, Any, Drafted]:
        """Wait, with patience, for the requested draft; return what there is when patience runs
        out."""
        wait_s = constants.MAX_WAIT * self.costs.draft_s(plan.num_tokens)
        start_s = self.clock()
        drafted = yield from self.wait(wait_s)
        self.costs.observe_draft(len(drafted.draft), drafted.draft_s)
        if not len(drafted.draft) and plan.num_tokens and self.clock() - start_s >= wait_s:
            self.costs.observe_draft(1, wait_s)  # it was drafting, and a token takes longer
        return drafted

    def draft(self, plan: Plan) -> Generator[Need, Any, Draft]:
        """Draft after the text and wait for it."""
        self.submit(InTurns(plan) if self.takes_turns else plan)
        drafted = yield from self.collect(plan)
        return drafted.draft

    def pause_drafter(self) -> None:
        """Give the drafter nothing to do; it keeps what it has cached and drafted."""
        self.drafter.cancel(self.slot)

    def poll_drafter(self) -> None:
        """Receive what has arrived from the drafter, so that `peek_tree` need not do it soon
        after."""
        if self.is_drafting:
            self._looked = self.clock(), self.drafter.poll(self.slot)

    def peek_tree(self) -> Drafted:
        """Return the drafter's tree so far."""
        (looked_s, drafted), self._looked = self._looked or (-math.inf, Drafted()), None
        if self.clock() - looked_s > constants.FRESH_S:
            drafted = self.drafter.poll(self.slot)
        self.learn_steps(drafted)
        return drafted

    def learn_steps(self, drafted: Drafted) -> None:
        """Record what the steps of the draft model cost."""
        if drafted.root_s:
            self.costs.observe_root(drafted.root_s)
        if drafted.step_s is not None:
            self.costs.observe_step(drafted.step_s, drafted.step_leaves)

    def learn_turn(self, drafted: Drafted, seconds: float) -> None:
        """Record what a step of the draft model cost that the target waited for, including the
        messages."""
        if drafted.root_s:
            self.costs.observe_root(seconds)
        elif drafted.step_s is not None:
            self.costs.observe_step(seconds, drafted.step_leaves)

    def commit(
        self,
        draft: Draft,
        verdict: Verdict,
        forward: Forward,
        *,
        num_drafted: int,
        num_from_model: int,
        overlap_s: float = 0.0,
        num_sequences: int = 0,
    ) -> Round:
        """Append the verdict's tokens to the text, up to its end, and record the round. The draft
        model proposed the first ``num_from_model`` of the accepted tokens, and earlier text the
        others."""
        tokens = verdict.tokens[: self.remaining]
        num_accepted = min(len(verdict.accepted), len(tokens))
        by: list[DraftSource] = ["draft model"] * min(num_from_model, num_accepted)
        by += ["earlier text"] * (num_accepted - len(by))
        tokens = self._until_end(tokens, by)
        # Few tokens: faster than an array of them.
        for place, token in enumerate(tokens, self._length):
            self._buffer[place] = self._scored[place] = token
        self._length += len(tokens)
        if self.num_logprobs is not None:
            self._add_logprobs(draft, verdict, forward.scores, tokens)
        done = Round(
            tokens=tokens,
            num_accepted=min(num_accepted, len(tokens)),
            num_drafted=num_drafted,
            num_scored=forward.scores.num_rows - 1,  # some targets leave out branches
            margin=verdict.margin,
            start_s=forward.start_s,
            end_s=forward.end_s,
            draft_wait_s=self._waited_s,
            overlap_s=min(overlap_s, forward.duration_s),
            num_from_model=min(num_from_model, num_accepted, len(tokens)),
            num_sequences=num_sequences,
        )
        self._waited_s = 0.0
        self.rounds.append(done)
        return done

    def _until_end(self, tokens: tuple[int, ...], by: Sequence[DraftSource]) -> tuple[int, ...]:
        """Return the tokens up to the end of the completion. Their text is made now if it may hold
        a stop string, and later otherwise. ``by`` names what proposed the accepted ones."""
        spoken = tokens
        for end, token in enumerate(tokens):
            if self.is_end(token):
                self.finish_reason = "stop"
                spoken = tokens[:end]
                tokens = tokens[: end + 1]
                break
        stream = self.stream
        if stream is None:
            return tokens
        if not stream.can_stop:
            self.defer(lambda: self._speak(stream, spoken, by))
            return tokens
        for i, token in enumerate(spoken):
            self._speak(stream, (token,), by[i : i + 1])
            if stream.is_stopped:
                self.finish_reason = "stop"
                return tokens[: i + 1]
        return tokens

    def _speak(self, stream: TextStream, tokens: Sequence[int], by: Sequence[DraftSource]) -> None:
        for token, source in zip_longest(tokens, by[: len(tokens)]):
            self.segments += stream.push(token, source)

    def _add_logprobs(
        self, draft: Draft, verdict: Verdict, scores: Scores, tokens: Sequence[int]
    ) -> None:
        assert self.num_logprobs is not None
        path = [ROOT, *draft.path(verdict.end)]
        for token, node in zip(tokens, path, strict=False):
            self.logprobs.append(logprob(scores, node + 1, token, self.num_logprobs))

    # --- what the scheduler does

    def query(self, need: Score) -> Query:
        """Return what the target is to score."""
        if need.num_text is None:
            return Query(
                self.slot, self.scored_text, need.draft, self.sampler, need.num_candidates,
                need.heads, shown=self.shown,
            )  # fmt: skip
        # Nothing is drawn from a prompt's rows.
        plain = Sampler(num_prompt_tokens=len(self.prompt))
        return Query(self.slot, self.text[: need.num_text], need.draft, plain)

    def run_deferred(self) -> None:
        """Do the work that need not run between two forward passes."""
        while self._deferred:
            work = self._deferred
            self._deferred = []
            for do in work:
                do()

    def take_segments(self) -> tuple[Segment, ...]:
        """Return the text that is new since the last call."""
        taken = tuple(self.segments)
        self.segments.clear()
        return taken

"""Random company: requests that share a scheduler, and everything that may happen to them.

`keep_company` admits, aborts and kills requests at random, over targets of every shape and a
drafter of every mood, in virtual time: a seed is one course of events. Each text is compared with
plain decoding by a loop that shares nothing with the scheduler or the methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random

import numpy as np
import pytest
from fakes import oracles
from fakes.decoding import ListedTexts
from fakes.dice import RuleMask
from fakes.targets import Caches

from duodec.core.candidates import CandidateTree
from duodec.core.draft import Draft
from duodec.core.drafters import Drafted, Drafter, DraftRequest
from duodec.core.rows import Row
from duodec.core.sampling.grammar import NoEndBefore
from duodec.core.sampling.logprobs import Logprob
from duodec.core.sampling.sampler import Context, Distribution, Draw, Sampler, SamplingParams
from duodec.core.targets import Candidates, Query, Scores, Target
from duodec.core.text import TextStream
from duodec.core.traits import TargetTraits
from duodec.drafting.growth import Tree
from duodec.errors import ComputeFailed
from duodec.methods.method import Method
from duodec.methods.registry import METHODS
from duodec.methods.request import NoDatastore, NoDrafter, Request
from duodec.planning.costs import Costs
from duodec.scheduler import rehearsal
from duodec.scheduler.outputs import Done, Failed, Output, Piece
from duodec.scheduler.scheduled_request import ScheduledRequest
from duodec.scheduler.scheduler import Scheduler
from duodec.scheduler.warm_up import WarmUp
from duodec.testing import TableModel, TableScores

NUM_VOCAB = 16
END = NUM_VOCAB - 1
DOOM = NUM_VOCAB  # no token of the vocabulary: begins a prompt whose forward passes fail
_FEW = Tree(num_candidates=4, max_expanded=24, depth=8)


class RandomClock:
    """Each look at it takes a moment, now and then a long one."""

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self.now = 100.0

    def __call__(self) -> float:
        self.now += self._chance.expovariate(1e5) if self._chance.random() > 1e-3 else 0.1
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += max(0.0, seconds)


# --- models and targets


class Remembering(TableModel):
    """A table that computes each of its rows once, and gives out copies."""

    def logits(self, context: Context) -> Row:
        tail = context.tokens()[-self.order :].tolist()
        return _row(self.seed, self.noise, *tail).copy()


@cache
def _row(seed: int, noise: float, *tail: int) -> Row:
    table = TableModel(NUM_VOCAB, seed=seed, noise=noise)
    return table.logits(Context(np.array(tail, dtype=np.int32)))


@dataclass(frozen=True)
class FreshScores(TableScores):
    """The first ``num_rows`` rows of a query, to be read before the target's next forward pass."""

    owner: Computed
    number: int
    num_scored: int

    @property
    def num_rows(self) -> int:
        return self.num_scored

    def draw(self, row: int) -> Draw:
        self._check(row)
        return super().draw(row)

    def candidates(self, row: int) -> Candidates:
        self._check(row)
        return super().candidates(row)

    def distribution(self, row: int) -> Distribution:
        self._check(row)
        return super().distribution(row)

    def row_logits(self, row: int) -> Row:
        self._check(row)
        return super().row_logits(row)

    def _check(self, row: int) -> None:
        assert self.number == self.owner.number, "read after the next forward pass"
        assert 0 <= row < self.num_scored, "a row that was not scored"


@dataclass
class Computed(Target):
    """A target whose forward passes take virtual time: ``row_s`` a row, or as much as
    ``num_padded`` rows take. It may score chains only, fails for texts that are doomed, and now and
    then, for one time, for a batch."""

    model: TableModel
    clock: RandomClock
    chance: Random
    row_s: float = 1e-3
    num_padded: int = 1
    has_branches: bool = True
    number: int = 0

    @property
    def traits(self) -> TargetTraits:
        return TargetTraits(has_branches=self.has_branches)

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        self.number += 1
        self.clock.advance(self.seconds(queries))
        return self.computed(queries)

    def seconds(self, queries: Sequence[Query]) -> float:
        num_rows = sum(len(query.draft) + 1 for query in queries)
        return 4e-3 + self.row_s * max(self.num_padded, num_rows)

    def computed(self, queries: Sequence[Query]) -> list[Scores]:
        if any(is_doomed(query.text.tolist()) for query in queries):
            raise ComputeFailed("no memory for this text")
        if len(queries) > 1 and self.chance.random() < 0.01:
            raise ComputeFailed("no memory for all of these")
        return [
            FreshScores(self.model, query, self, self.number, 1 + self._num_scored(query.draft))
            for query in queries
        ]

    def _num_scored(self, draft: Draft) -> int:
        if self.has_branches:
            return len(draft)
        pairs = enumerate(draft.parents, -1)
        return next((i + 1 for i, parent in pairs if parent != i), len(draft))


def is_doomed(tokens: Sequence[int]) -> bool:
    """Its forward passes fail, some at once and some later."""
    return tokens[0] == DOOM and len(tokens) > 4


class Elsewhere(Computed):
    """The same on other hardware: a forward pass goes on while the scheduler does other work."""

    @property
    def traits(self) -> TargetTraits:
        return replace(super().traits, launches=True)

    def launch(self, queries: Sequence[Query]) -> _Passing:
        self.number += 1
        return _Passing(self, queries, self.clock() + self.seconds(queries))


@dataclass(frozen=True)
class _Passing:
    target: Elsewhere
    queries: Sequence[Query]
    due_s: float

    def result(self) -> list[Scores]:
        clock = self.target.clock
        clock.advance(self.due_s - clock.now)
        return self.target.computed(self.queries)


# --- the drafter


@dataclass
class _Work:
    """A draft on its way: a step is made when its time has come and somebody looks."""

    steps: Iterator[Draft | CandidateTree]
    made: Draft | CandidateTree
    next_s: float
    num_steps: int = 0
    is_complete: bool = False

    @property
    def drafted(self) -> Drafted:
        draft_s = 1e-3 * self.num_steps
        known = Drafted(
            num_steps=self.num_steps, is_complete=self.is_complete, draft_s=draft_s, busy_s=draft_s
        )
        if isinstance(self.made, Draft):
            return replace(known, draft=self.made)
        return replace(known, tree=self.made)


class MoodyDrafter:
    """Makes a step in ``step_s`` of virtual time, or hangs for a while, or is killed: then it
    forgets all drafts and is silent until it was started anew."""

    def __init__(
        self, model: TableModel, clock: RandomClock, chance: Random, step_s: float, p_kill: float
    ) -> None:
        self._model = model.load()
        self._clock, self._chance = clock, chance
        self._step_s, self._p_kill = step_s, p_kill
        self._works: dict[int, _Work] = {}
        self._silent_until_s = 0.0
        self.restarts = 0

    def submit(self, request: DraftRequest) -> None:
        self._works.pop(request.slot, None)
        if self._chance.random() < self._p_kill:
            self._works.clear()
            self._silent_until_s = self._clock() + self._chance.choice([0.01, 0.1, 1.0])
            self.restarts += 1
        elif self._clock() >= self._silent_until_s:
            steps = request.plan.grow(self._model, request)
            self._works[request.slot] = _Work(steps, Draft(), self._clock.now + self._a_step_s())

    def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Drafted:
        end_s = self._clock() + wait_s
        while (work := self._works.get(slot)) is not None and not work.is_complete:
            size = len(work.made)
            if work.next_s > max(end_s, self._clock.now) or (
                beyond is not None and size > beyond and work.next_s > self._clock.now
            ):
                break
            self._clock.advance(work.next_s - self._clock.now)
            self._advance(work)
        else:
            return self.heard(slot)
        if beyond is None or len(work.made) <= beyond:
            self._clock.advance(end_s - self._clock.now)
        return self.heard(slot)

    def heard(self, slot: int) -> Drafted:
        work = self._works.get(slot)
        return Drafted() if work is None else work.drafted

    def cancel(self, slot: int) -> None:
        self._works.pop(slot, None)

    @property
    def slots_at_work(self) -> set[int]:
        return set(self._works)

    def _advance(self, work: _Work) -> None:
        made = next(work.steps, None)
        if made is None:
            work.is_complete = True
            return
        work.made = made
        work.num_steps += 1
        work.next_s += self._a_step_s()

    def _a_step_s(self) -> float:
        return self._step_s * self._chance.choice([0.3, 1.0, 1.0, 1.0, 3.0, 40.0])


# --- the requests


@dataclass(frozen=True)
class Wish:
    """A request, and what is going to happen to it."""

    prompt: tuple[int, ...]
    sampler: Sampler
    num_tokens: int
    method: str
    num_logprobs: int | None
    ends: bool  # the end token ends it
    stop_after: int | None  # rounds, after which it is told to end with what there is
    num_prompt_logprobs: int | None
    owner: str

    @property
    def is_doomed(self) -> bool:
        return self.prompt[0] == DOOM

    def plain(self, model: TableModel) -> tuple[list[int], str]:
        """The tokens and the text of plain decoding."""
        tokens, text = list(self.prompt), ""
        for _ in range(self.num_tokens):
            context = Context(np.array(tokens, dtype=np.int32))
            token = self.sampler.draw(model.logits(context), context).token
            tokens.append(token)
            if self.ends and token == END:
                break
            text += letter(token)
            found = [text.index(stop) for stop in self.sampler.params.stop if stop in text]
            if found:
                text = text[: min(found)]
                break
        return tokens[len(self.prompt) :], text


def letter(token: int) -> str:
    return chr(ord("a") + token)


def _in_turn(answer: tuple[int, ...]) -> Sequence[bool]:
    """Every other token, by the last one."""
    turn = answer[-1] % 2 if answer else 0
    return tuple(token % 2 == turn or token > 11 for token in range(NUM_VOCAB))


def _wish(chance: Random, prompts: Sequence[tuple[int, ...]], methods: Sequence[str]) -> Wish:
    pick = chance.choice
    params = SamplingParams(
        temperature=pick([0.0, 0.0, 0.6, 1.0, 1.6]),
        top_k=pick([0, 0, 0, 1, 5]),
        top_p=pick([1.0, 1.0, 0.8]),
        min_p=pick([0.0, 0.0, 0.05]),
        repetition_penalty=pick([1.0, 1.0, 1.3]),
        presence_penalty=pick([0.0, 0.0, 0.5]),
        frequency_penalty=pick([0.0, 0.0, 0.4]),
        logit_bias=pick([{}, {}, {3: 2.0, 5: -np.inf}]),
        seed=chance.randrange(1 << 64),
        stop=pick([(), (), ("ab", "c"), ("dd",)]),
    )
    prompt = pick(prompts)
    if chance.random() < 0.03:
        prompt = (DOOM, *prompt[: chance.randrange(6)])
    masks = [RuleMask(_in_turn), NoEndBefore(pick([3, 12]), [END], NUM_VOCAB)]
    mask = pick(masks) if chance.random() < 0.3 else None
    return Wish(
        prompt,
        Sampler(params, chance.randrange(3), len(prompt), mask),
        pick([1, 2, 5, 9, 16, 24, 40]),
        pick(methods),
        pick([None, None, 0, 2]),
        ends=chance.random() < 0.5,
        stop_after=pick([None] * 9 + [2]),
        num_prompt_logprobs=pick([None, None, None, 0, 2]),
        owner=pick(["", "", "", "alice"]),
    )


@dataclass(frozen=True)
class Guest:
    """A wish on its way, and all that was said to it."""

    wish: Wish
    task: ScheduledRequest
    said: list[Output]
    num_said_at_abort: list[int] = field(default_factory=list)

    def abort(self) -> None:
        if not self.num_said_at_abort:
            self.num_said_at_abort.append(len(self.said))
            self.task.abort()

    @property
    def text(self) -> str:
        pieces = [piece for piece in self.said if isinstance(piece, Piece)]
        return "".join(segment.text for piece in pieces for segment in piece.delta.segments)


@dataclass
class Record:
    """What became of the requests."""

    num_requests: int = 0
    num_done: int = 0
    num_aborted: int = 0
    num_doomed: int = 0
    num_accepted: int = 0  # draft tokens
    num_shared: int = 0  # rounds in which others were at work
    deaths: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    def plus(self, other: Record) -> Record:
        names = vars(self)
        return Record(**{name: getattr(self, name) + getattr(other, name) for name in names})


# --- the company


class Company:
    """A scheduler with its targets, drafter and methods, all drawn by a seed."""

    def __init__(self, seed: int, drafter: Drafter | None = None) -> None:
        self.seed = seed
        chance = self.chance = Random(seed)
        self.clock = RandomClock(Random(seed + 1))
        self.model = Remembering(NUM_VOCAB, seed=seed % 7)
        draft = replace(self.model, noise=chance.choice([0.0, 0.2, 0.5, 1.0]))
        moody = self._moody(draft)
        self.drafter: Drafter = drafter or chance.choice([moody, moody, NoDrafter()])
        self.costs = Costs()
        self.shares_cores = chance.random() < 0.5
        self.takes_turns = self.shares_cores and Random(seed + 4).random() < 0.5
        self.num_chunk = chance.choice([None, None, 4, 7])
        crowd = Random(seed + 5)
        self.scheduler = Scheduler(
            self._target(),
            self.costs,
            num_slots=chance.randint(1, 6),
            cores_for_target=chance.choice([1, 2]) if self.shares_cores else None,
            num_chunk=self.num_chunk,
            num_chunk_in_company=(None, 2)[self.seed % 3 == 1],
            most_slots=(None, 1, 2)[self.seed % 5 % 3],
            is_crowded=lambda: crowd.random() < 0.3,
            warm_up=WarmUp(Scheduler),
            clock=self.clock,
        )
        self.datastore = ListedTexts([
            [chance.randrange(NUM_VOCAB) for _ in range(60)] for _ in range(2)
        ])  # fmt: skip
        self.methods: dict[str, Method] = {
            name: kind(plan=_FEW) if name in ("stream", "auto") else kind()
            for name, kind in METHODS.items()
            if not ((kind.needs_draft_model and self._is_without_drafter) or kind.needs_heads)
        }
        some = chance.choice([list(self.methods), ["auto"], ["auto", "stream"]])  # the usual ones
        self.usual = [name for name in [*self.methods, *some] if name in self.methods]
        if chance.random() < 0.3:
            self.usual = [name for name in some if name in self.methods]
        self.prompts = [
            tuple(chance.randrange(NUM_VOCAB) for _ in range(chance.choice([1, 2, 5, 9, 30])))
            for _ in range(10)
        ]
        self.record = Record()

    @property
    def _is_without_drafter(self) -> bool:
        return isinstance(self.drafter, NoDrafter)

    def _moody(self, model: TableModel) -> MoodyDrafter:
        chance = self.chance
        step_s, p_kill = chance.choice([1e-4, 1e-3, 1e-2]), chance.choice([0.0, 0.01, 0.3])
        return MoodyDrafter(model, self.clock, Random(self.seed + 2), step_s, p_kill)

    def _target(self) -> Target:
        """One for all, or others for one alone and for methods that read off the path."""
        chance = self.chance
        kind = chance.choice([Computed, Elsewhere])

        def target(has_branches: bool, num_padded: int) -> Computed:
            row_s = chance.choice([0.0, 1e-4, 1e-3, 4e-3])
            return kind(
                self.model, self.clock, Random(self.seed + 3), row_s, num_padded, has_branches
            )

        trees, chains, padded = target(True, 1), target(False, 1), target(True, 32)
        return chance.choice([
            trees, chains, padded, Caches(chains, trees=trees),
            Caches(chains, alone=trees, trees=trees), Caches(chains, alone=padded, trees=trees),
        ])  # fmt: skip

    def run(self, num_requests: int) -> Record:
        """Let so many requests come and go. What is raised out of the scheduler is a death."""
        chance, scheduler, guests = self.chance, self.scheduler, list[Guest]()
        rush = chance.choice([0.2, 0.6, 0.9])  # how likely somebody comes in a round
        p_abort = chance.choice([0.0, 0.02, 0.1])
        left = num_requests
        try:
            while left or scheduler.has_work:
                if left and (chance.random() < rush or not scheduler.has_work):
                    come = [self._guest() for _ in range(min(left, chance.choice([1, 1, 2, 6])))]
                    left -= len(come)
                    guests += come
                    tasks = [guest.task for guest in come]
                    is_one_request = self.seed % 2 == 1  # and these are its completions
                    for submission in [tasks] if is_one_request else [[task] for task in tasks]:
                        scheduler.submit(submission)
                self._abort_some(guests, p_abort)
                self.record.num_shared += len(scheduler.running) > 1
                if scheduler.launch():
                    self._abort_some(guests, p_abort)
                    scheduler.finish_forward()
        except Exception as error:  # noqa: BLE001  it is what this looks for
            self.record.deaths.append(f"company {self.seed}: out of the scheduler: {error!r}")
        for guest in guests:
            self._judge(guest)
        if isinstance(self.drafter, MoodyDrafter) and self.drafter.slots_at_work:
            self.record.deaths.append(f"company {self.seed}: drafts for nobody")
        return self.record

    def _abort_some(self, guests: Sequence[Guest], p_abort: float) -> None:
        if self.chance.random() < p_abort:
            there = [guest for guest in guests[-20:] if not guest.task.is_over]
            if there:
                self.chance.choice(there).abort()

    def _guest(self) -> Guest:
        wish = _wish(self.chance, self.prompts, self.usual)
        said: list[Output] = []
        method = self.methods[wish.method]
        request = Request(
            wish.prompt,
            len(wish.prompt) + wish.num_tokens,
            self.drafter if method.takes_draft_model else NoDrafter(),
            wish.sampler,
            datastore=self.datastore if method.needs_datastore else NoDatastore(),
            costs=self.costs,
            shares_cores=self.shares_cores,
            takes_turns=self.takes_turns,
            clock=self.clock,
            is_end=lambda token: wish.ends and token == END,
            owner=wish.owner,
            stream=TextStream(lambda token: letter(token).encode(), wish.sampler.params.stop),
            num_logprobs=wish.num_logprobs,
            num_prompt_logprobs=wish.num_prompt_logprobs,
        )
        limit = wish.stop_after
        should_stop = None if limit is None else lambda: request.num_rounds >= limit
        return Guest(
            wish, ScheduledRequest(request, method, said.append, should_stop=should_stop), said
        )

    # --- what became of them

    def _judge(self, guest: Guest) -> None:
        record, wish = self.record, guest.wish
        record.num_requests += 1
        last = guest.said[-1] if guest.said else None
        if guest.num_said_at_abort and not isinstance(last, Done):
            record.num_aborted += 1
            if len(guest.said) > guest.num_said_at_abort[0]:
                self._differs(guest, "something was said after the abort")
            self._compare_part(guest)
        elif isinstance(last, Done):
            record.num_done += 1
            record.num_accepted += last.finished.stats.num_accepted_tokens
            self._compare_whole(guest, last)
        elif isinstance(last, Failed) and wish.is_doomed and "this text" in str(last.error):
            record.num_doomed += 1
        else:
            what = repr(last.error) if isinstance(last, Failed) else "never ended"
            record.deaths.append(self._named(guest, what))

    def _compare_whole(self, guest: Guest, done: Done) -> None:
        wish, finished = guest.wish, done.finished
        tokens = list(finished.tokens)
        if wish.method == "sps-rejection":  # exact in distribution only
            return
        wanted, text = wish.plain(self.model)
        if wish.stop_after is not None:
            wanted = wanted[: len(tokens)]
        if tokens != wanted:
            self._differs(guest, f"{tokens} in place of {wanted}")
        elif finished.text != guest.text:
            self._differs(guest, f"{guest.text!r} was said of {finished.text!r}")
        elif wish.stop_after is None and finished.text != text:
            self._differs(guest, f"{finished.text!r} in place of {text!r}")
        if wish.num_logprobs is not None:
            self._compare_logprobs(guest, tokens, done)
        self._compare_prompt_logprobs(guest)

    def _compare_part(self, guest: Guest) -> None:
        if guest.wish.method == "sps-rejection":
            return
        wanted = guest.wish.plain(self.model)[1]
        if not wanted.startswith(guest.text):
            self._differs(guest, f"{guest.text!r} does not begin {wanted!r}")

    def _compare_logprobs(self, guest: Guest, tokens: Sequence[int], done: Done) -> None:
        wish = guest.wish
        told = [one for said in guest.said if isinstance(said, Piece) for one in said.logprobs]
        told = [one for one in [*told, *done.logprobs] if not (wish.ends and one.token == END)]
        spoken = [token for token in tokens if not (wish.ends and token == END)]
        if [one.token for one in told] != spoken:
            self._differs(guest, f"logprobs of {[one.token for one in told]}, not of {spoken}")
            return
        self._compare_rows(guest, wish.prompt, told, wish.num_logprobs or 0)

    def _compare_prompt_logprobs(self, guest: Guest) -> None:
        """They come once, with the first output."""
        wish = guest.wish
        outputs = [said for said in guest.said if isinstance(said, Piece | Done)]
        told = [one for said in outputs for one in said.prompt_logprobs]
        if wish.num_prompt_logprobs is None:
            if told:
                self._differs(guest, f"logprobs of the prompt that nobody requested: {told}")
            return
        known = [one for one in told if one is not None]
        if told != [None, *known] or [one.token for one in known] != [*wish.prompt[1:]]:
            self._differs(guest, f"the prompt's logprobs are {told}")
            return
        self._compare_rows(guest, wish.prompt[:1], known, wish.num_prompt_logprobs)

    def _compare_rows(
        self, guest: Guest, text: Sequence[int], told: Sequence[Logprob], num_tops: int
    ) -> None:
        text = list(text)
        for one in told:
            row = self.model.logits(Context(np.array(text, dtype=np.int32))).astype(np.float64)
            wanted = row[one.token] - np.log(np.exp(row).sum())
            if abs(one.logprob - wanted) > 1e-5 or len(one.tops) != num_tops:
                self._differs(guest, f"{one} in place of {wanted}")
                return
            text.append(one.token)

    def _differs(self, guest: Guest, what: str) -> None:
        self.record.differences.append(self._named(guest, what))

    def _named(self, guest: Guest, what: str) -> str:
        return f"company {self.seed}: {guest.wish.method} with {guest.wish.prompt}: {what}"


def keep_company(
    seeds: Sequence[int], num_requests: int, of: Callable[[int], Company] = Company
) -> Record:
    """So many requests in each of the companies of these seeds."""
    record = Record()
    for seed in seeds:
        with pytest.MonkeyPatch.context() as patch:
            if seed % 3 == 2:
                oracles.use(patch)
            company = of(seed)
            patch.setattr(rehearsal, "sleep", company.clock.advance)
            record = record.plus(company.run(num_requests))
    return record

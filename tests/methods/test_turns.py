"""Target and drafter take turns on the same cores, and a pass that both contend for teaches
nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from fakes.decoding import PROMPT, FakeClock, Session, decode_rounds, plain_text

from duodec.backends.translation.wrapped import Wrapped
from duodec.core.drafters import Drafted, DraftModel, DraftRequest, RowQuery
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.targets import Query, Scores
from duodec.core.turns import InTurns
from duodec.drafting import constants
from duodec.drafting.growth import Tree
from duodec.methods.auto import Auto
from duodec.methods.request import Request
from duodec.methods.stream import Stream
from duodec.planning.costs import Costs
from duodec.planning.governor import Governor, Sources
from duodec.testing import InlineDrafter, TableDraftModel, TableModel, TableTarget

TABLE = TableModel(seed=7)
DRAFT = replace(TABLE, noise=0.4)
WARM = SamplingParams(temperature=0.8, seed=5)
PASS_S, FOUGHT_S = 1.0, 3.0  # a forward pass of the target: alone, and with the drafter at work
SOON_S, LATE_S = 0.02, 2.0  # a step of the draft model: waited for, and left alone at its work
READING_S = 2.0  # of a long prompt


class Working(InlineDrafter):
    """Takes its time for a step; every ``num_soon`` + 1st one is late. None is stopped midway."""

    def __init__(self, clock: FakeClock, num_soon: int) -> None:
        super().__init__(DRAFT.load())
        self.clock, self.num_soon = clock, num_soon
        self.num_submitted = 0
        self.first_s = math.inf
        self.ready_s = 0.0

    @property
    def is_at_work(self) -> bool:
        return self.clock.now < self.ready_s

    def submit(self, request: DraftRequest) -> None:
        assert isinstance(request.plan, InTurns)
        self.num_submitted += 1
        self.first_s = min(self.first_s, self.clock.now)
        is_late = not self.num_submitted % (self.num_soon + 1)
        self.ready_s = self.clock.now + (LATE_S if is_late else SOON_S)
        super().submit(request)

    def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Drafted:
        self.clock.advance(min(wait_s, max(0.0, self.ready_s - self.clock.now)))
        return self.heard(slot)

    def heard(self, slot: int) -> Drafted:
        if self.is_at_work:
            return Drafted(is_complete=False)
        made = super().heard(slot)
        return replace(made, draft_s=SOON_S * made.num_steps)


@dataclass(frozen=True)
class Fought(TableTarget):
    """Is slowed by a drafter that is at work; notes when it was, and when the request knew."""

    drafter: Working
    is_contended: list[bool] = field(default_factory=list)
    is_known: list[bool] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        (request,) = self.requests
        self.is_contended.append(self.drafter.is_at_work)
        self.is_known.append(request.is_contended)
        self.drafter.clock.advance(FOUGHT_S if self.drafter.is_at_work else PASS_S)
        return super().score(queries)


class Reader(Working):
    """Reads what is new of a long text before its step."""

    def submit(self, request: DraftRequest) -> None:
        is_first = not self.num_submitted
        super().submit(request)
        if is_first:
            self.ready_s += READING_S

    def heard(self, slot: int) -> Drafted:
        made = super().heard(slot)
        if self.is_at_work or self.num_submitted > 1:
            return made
        read_s = READING_S + SOON_S
        return replace(made, draft_s=made.draft_s + READING_S, root_s=read_s)


class Noted(Governor):
    """Allows what `stream` has, and notes what rounds took and what was charged."""

    def __init__(self) -> None:
        super().__init__([Sources.ALL])
        self.rounds_s: list[float] = []
        self.charged_s: list[float] = []

    def charge(self, sources: Sources, seconds: float) -> None:
        assert sources == Sources.ALL
        self.charged_s.append(seconds)
        super().charge(sources, seconds)

    def sources(self, most: Sources = Sources.ALL) -> Sources:
        return most

    def observe(self, sources: Sources, num_tokens: int, seconds: float, most: Sources) -> None:
        self.rounds_s.append(seconds)
        super().observe(sources, num_tokens, seconds, most)


@dataclass(frozen=True)
class NotedStream(Stream):
    noted: Noted = field(default_factory=Noted)

    def governor(self, request: Request) -> Governor:
        return self.noted


@dataclass(frozen=True)
class Run:
    target: Fought
    costs: Costs
    tokens: list[int]


def run(
    method: Stream,
    num_soon: int,
    num_tokens: int = 60,
    prompt: Sequence[int] = PROMPT,
    params: SamplingParams = WARM,
    kind: type[Working] = Working,
) -> Run:
    clock = FakeClock()
    drafter = kind(clock, num_soon)
    target = Fought(TABLE, drafter)
    session = Session(
        target=target,
        prompt=prompt,
        capacity=len(prompt) + num_tokens,
        drafter=drafter,
        sampler=Sampler(params, 0, len(prompt)),
        shares_cores=True,
        takes_turns=True,
        clock=clock,
    )
    target.requests.append(session)
    for _ in decode_rounds(method, session):
        pass
    return Run(target, session.costs, session.text[len(prompt) :].tolist())


@pytest.mark.parametrize("num_soon", [0, 1, 2, 5])
@pytest.mark.parametrize("method", [Stream, Auto])
def test_a_request_knows_which_passes_are_contended(method: type[Stream], num_soon: int) -> None:
    made = run(method(), num_soon)
    assert made.target.is_known == made.target.is_contended
    assert any(made.target.is_contended)
    assert not all(made.target.is_contended)


@pytest.mark.parametrize("num_soon", [0, 1, 2, 5])
@pytest.mark.parametrize("method", [Stream, Auto])
def test_a_contended_pass_is_no_measure_of_the_targets_costs(
    method: type[Stream], num_soon: int
) -> None:
    made = run(method(), num_soon)
    assert any(made.target.is_contended)
    assert made.costs.knows_plain
    widest = max(made.costs._by_width)
    assert made.costs.curve(widest)[: widest + 1] == pytest.approx([PASS_S] * (widest + 1))


def test_nor_of_what_drafts_bring() -> None:
    method = NotedStream()
    made = run(method, num_soon=2)
    num_fought = sum(made.target.is_contended)
    assert num_fought > 2
    assert 0 < len(method.noted.rounds_s) <= len(made.target.is_contended) - num_fought
    assert max(method.noted.rounds_s) < FOUGHT_S


@pytest.mark.parametrize("num_soon", [0, 1, 2, 5, 10**9])
@pytest.mark.parametrize("method", [Stream, Auto])
def test_contention_changes_no_text(method: type[Stream], num_soon: int) -> None:
    assert run(method(), num_soon).tokens == plain_text(TABLE, WARM, 60)


# --- the plan


@dataclass(frozen=True, eq=False)
class Threaded(TableDraftModel):
    """Notes on which cores each step is computed."""

    is_alone: list[bool] = field(default_factory=lambda: [False])
    steps: list[bool] = field(default_factory=list)

    def compute_alone(self, is_alone: bool) -> None:
        self.is_alone.append(is_alone)

    def rows(self, query):
        self.steps.append(self.is_alone[-1])
        if len(self.steps) == 4:
            raise RuntimeError("the step failed")
        return super().rows(query)


def drafting(model: DraftModel, num_steps: int | None):
    text = np.array(PROMPT, np.int32)
    plan = Tree(num_leaves=2, max_expanded=64, depth=12)
    return InTurns(plan, num_steps).grow(model, DraftRequest(0, text, plan, Sampler()))


def test_all_cores_are_used_for_a_step_and_given_back_after_it() -> None:
    model = Threaded(TABLE)
    steps = drafting(model, None)
    for _ in range(3):
        assert next(steps) is not None
        assert not model.is_alone[-1]
    with pytest.raises(RuntimeError, match="the step failed"):
        list(steps)
    assert model.steps == [True] * 4
    assert not model.is_alone[-1]


def test_a_draft_model_of_another_vocabulary_uses_all_cores_too() -> None:
    class Renamed(Wrapped):
        def rows(self, query: RowQuery) -> Sequence[Row]:
            return self.model.rows(query)

    model = Threaded(TABLE)
    list(drafting(Renamed(model), 2))
    assert model.steps == [True] * 2


def test_a_turn_has_so_many_steps() -> None:
    model = Threaded(TABLE)
    list(drafting(model, 1))
    assert len(model.steps) == 1
    list(drafting(model, 2))
    assert len(model.steps) == 3


def test_a_long_text_is_read_when_decoding_has_taken_as_long_as_that_may_save() -> None:
    """The drafter is asked nothing before: its reading would stop the target."""
    prompt = PROMPT * 800
    read_s = Costs().read_s(len(prompt)) / constants.EXPECTED_SAVING
    made = run(Stream(), num_soon=10**9, prompt=prompt)
    waited_s = made.target.drafter.first_s - FakeClock().now
    assert read_s <= waited_s <= read_s + 5 * PASS_S
    assert made.tokens == plain_text(TABLE, WARM, 60, prompt)
    short = run(Stream(), num_soon=10**9)
    assert short.target.drafter.first_s - FakeClock().now <= 5 * PASS_S


def test_what_the_drafter_has_cached_is_not_read_again() -> None:
    method, prompt = Stream(), PROMPT * 800
    for params in (WARM, replace(WARM, seed=6)):  # no text that is remembered
        made = run(method, num_soon=10**9, prompt=prompt, params=params)
        assert made.tokens == plain_text(TABLE, params, 60, prompt)
    assert made.target.drafter.first_s - FakeClock().now <= 5 * PASS_S


def test_what_the_drafter_reads_is_neither_a_step_nor_a_round() -> None:
    """Learned as a step, it would be the last one that is waited for; as a round, it would end the
    trial."""
    method, prompt = NotedStream(), PROMPT * 100
    made = run(method, num_soon=10**9, prompt=prompt, kind=Reader)
    assert made.tokens == plain_text(TABLE, WARM, 60, prompt)
    assert method.noted.charged_s == [pytest.approx(READING_S + SOON_S)]
    assert max(method.noted.rounds_s) < PASS_S + READING_S
    assert made.costs.root_s() < 3 * SOON_S
    assert made.costs.read_s(len(prompt)) == pytest.approx(READING_S, rel=0.1)
    assert made.target.drafter.num_submitted > 20


def test_who_decodes_long_completions_reads_at_once() -> None:
    method = Stream()
    run(method, num_soon=10**9, num_tokens=120)
    assert method.memory.decoding.value > 30 * PASS_S
    prompt = PROMPT * 800
    made = run(method, num_soon=10**9, prompt=prompt, params=replace(WARM, seed=6))
    assert made.target.drafter.first_s - FakeClock().now <= 5 * PASS_S
    assert made.tokens == plain_text(TABLE, replace(WARM, seed=6), 60, prompt)


@pytest.mark.parametrize("shares_cores", [False, True])
def test_a_draft_model_on_the_targets_device_is_tried_at_once(shares_cores: bool) -> None:
    """One on its cores has to repay reading the prompt, and rests first."""
    request = Request(
        PROMPT, 64, drafter=InlineDrafter(DRAFT.load()), takes_turns=True, shares_cores=shares_cores
    )
    governor = Auto().governor(request)
    assert governor.sources() == (Sources.FREE if shares_cores else Sources.ALL)

"""Whether a draft model is put to work: T(n) decides, and a target that is alone has all cores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fakes.decoding import PROMPT, FakeClock, FixedBudget, Session, decode_rounds
from fakes.server import TABLE, Slowed, engine_on_tables

from duodec.core.drafters import DraftRequest, Plan
from duodec.core.events import Finished
from duodec.core.round import Round
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.turns import InTurns
from duodec.machine.cores import CoreSharing
from duodec.methods.auto import Auto
from duodec.methods.registry import method
from duodec.methods.stream import Stream
from duodec.planning.costs import Costs
from duodec.planning.governor import Sources
from duodec.testing import InlineDrafter, TableTarget


def measured(*curve: tuple[int, float]) -> Costs:
    costs = Costs()
    for num_tokens, seconds in curve * 4:
        costs.observe_forward(seconds, num_tokens)
    return costs


@pytest.mark.parametrize("takes_turns", [False, True])
def test_measured_costs_decide_and_not_the_device(takes_turns: bool) -> None:
    """A draft model on the target's own cores is tried like any other, after simpler sources."""
    engine = engine_on_tables()
    engine.loaded = replace(
        engine.loaded,
        target=Slowed(engine.loaded.target, 0.02),
        cores=CoreSharing(is_shared=takes_turns, takes_turns=lambda: takes_turns),
    )
    submitted: list[Plan] = []
    drafter = engine.loaded.drafter
    assert drafter is not None
    submit = drafter.submit
    drafter.submit = lambda request: (submitted.append(request.plan), submit(request))[1]  # type: ignore[method-assign]
    *_, last = engine.stream("hello", SamplingParams(seed=1, max_tokens=60), method="auto")
    assert isinstance(last, Finished)
    assert submitted
    assert all(isinstance(plan, InTurns) == takes_turns for plan in submitted)


def test_nothing_is_waited_for_where_no_width_can_pay() -> None:
    engine = engine_on_tables()
    engine.loaded = replace(
        engine.loaded,
        cores=CoreSharing(is_shared=True, takes_turns=lambda: True),
        costs=measured(*((n, 0.01 * (1 + n)) for n in (0, 1, 2, 4, 8, 16, 32, 64))),
    )
    assert engine.loaded.drafter is not None
    asked: list[DraftRequest] = []
    engine.loaded.drafter.submit = asked.append  # type: ignore[method-assign]
    *_, last = engine.stream("hello", SamplingParams(seed=1, max_tokens=4), method="auto")
    assert isinstance(last, Finished)
    assert not asked


class Changing(Costs):
    """Rows cost as much as passes, until they cost nothing."""

    is_steep = True
    knows_plain = True

    def curve(self, num_tokens: int) -> list[float]:
        return [0.01 * (1 + n * self.is_steep) for n in range(num_tokens + 1)]


def test_where_drafts_begin_to_pay_it_is_seen_soon() -> None:
    costs = Changing()
    session = Session(TableTarget(TABLE), PROMPT, len(PROMPT) + 60, costs=costs, clock=FakeClock())
    widths: list[int] = []
    for number, done in enumerate(decode_rounds(Stream(), session)):
        costs.is_steep = number < 10
        widths.append(done.num_scored)
    assert not any(widths[:11])
    assert any(widths[11:20]), "it is looked at again every eighth round"


@pytest.mark.parametrize("name", ["stream", "auto"])
def test_a_target_has_all_cores_while_nothing_is_drafted(name: str) -> None:
    """So that what is measured of plain decoding is plain decoding."""
    log: list[str] = []

    class Logged(TableTarget):
        def score(self, queries: Any) -> Any:
            log.append("score")
            return super().score(queries)

    class LoggedDrafter(InlineDrafter):
        def submit(self, request: Any) -> None:
            log.append("draft")
            super().submit(request)

        def cancel(self, slot: int) -> None:
            log.append("rest")
            super().cancel(slot)

    session = Session(
        target=Logged(TABLE),
        prompt=PROMPT,
        capacity=len(PROMPT) + 60,
        drafter=LoggedDrafter(TABLE.load()),
        sampler=Sampler(),
        shares_cores=True,
        prepare=lambda is_prepared: log.append(f"drafting {is_prepared}"),
    )
    for _ in decode_rounds(method(name), session):
        pass
    assert log[0] == "drafting False", "the prompt is read by all"
    is_prepared, is_drafting, changes = False, False, 0
    for line in log[1:]:
        if line.startswith("drafting "):
            assert line != f"drafting {is_prepared}", "only changes are told"
            is_prepared, changes = line == "drafting True", changes + 1
        elif line == "score":
            assert is_prepared == is_drafting
        else:
            is_drafting = line == "draft"
    assert not is_prepared, "in the end the cores are given back"
    assert changes >= (1 if name == "stream" else 2)


class Allowed(FixedBudget):
    """Costs of a target that others share: they allow a round as much as ``most`` says, and rows
    cost nothing."""

    def __init__(self, most: list[Sources]) -> None:
        super().__init__(6)
        self.most = most

    def sources(self) -> Sources:
        return self.most[0] if len(self.most) == 1 else self.most.pop(0)


class Counting(InlineDrafter):
    """Which requests it got, and how often it was told to rest."""

    def __init__(self) -> None:
        super().__init__(TABLE.load())
        self.num_submitted = self.num_rests = 0

    def submit(self, request: DraftRequest) -> None:
        self.num_submitted += 1
        super().submit(request)

    def cancel(self, slot: int) -> None:
        self.num_rests += 1
        super().cancel(slot)


def rounds_of(most: list[Sources], way: Stream) -> tuple[list[Round], Counting]:
    drafter = Counting()
    session = Session(
        TableTarget(TABLE), PROMPT, len(PROMPT) + 60, drafter, Sampler(), costs=Allowed(most)
    )
    return list(decode_rounds(way, session)), drafter


def test_others_may_forbid_the_draft_model_or_all_drafts() -> None:
    texts = []
    for most, has_drafts, has_model in (
        (Sources.NONE, False, False),
        (Sources.FREE, True, False),
        (Sources.ALL, True, True),
    ):
        rounds, drafter = rounds_of([most], Auto())
        assert any(done.num_drafted for done in rounds) == has_drafts
        assert bool(drafter.num_submitted) == has_model
        texts.append([token for done in rounds for token in done.tokens])
    assert texts[0] == texts[1] == texts[2]


def test_what_others_forbid_is_no_measure_of_what_pays() -> None:
    auto = Auto()
    rounds_of([Sources.NONE], auto)
    (governor,) = auto.governors.values()
    assert not any(trial.rate.num_rounds for trial in governor._trials.values())
    rounds_of([Sources.ALL], auto)
    assert any(trial.rate.num_rounds for trial in governor._trials.values())


def test_the_drafter_is_told_to_rest_once() -> None:
    rounds, drafter = rounds_of([Sources.NONE], Auto())
    assert len(rounds) > 40
    assert drafter.num_rests == 1, "at its end"
    _, drafter = rounds_of([Sources.ALL] * 3 + [Sources.NONE], Stream())
    assert drafter.num_submitted == 3
    assert drafter.num_rests == 2


def test_requests_that_run_at_once_are_judged_apart() -> None:
    auto = Auto()
    first, second = (Session(TableTarget(TABLE), PROMPT, len(PROMPT) + 9) for _ in range(2))
    second.slot = 1
    assert auto.governor(first) is auto.governor(first)
    assert auto.governor(first) is not auto.governor(second)

"""Where the target computes elsewhere, its time is used: the text stays what it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from time import perf_counter, sleep
from typing import Any

import pytest
from fakes.decoding import (
    PROMPT,
    DyingDrafter,
    FakeClock,
    FixedBudget,
    Session,
    SlowDrafter,
    decode_rounds,
    plain_text,
)

from duodec.core.draft import Draft
from duodec.core.drafters import Drafted, Drafter
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.targets import Candidates, Launched, Query, Scores, Target
from duodec.core.traits import TargetTraits
from duodec.drafting.plans import Chain
from duodec.methods.draft_selector import DraftSelector
from duodec.methods.registry import METHODS, method
from duodec.methods.request import NoDrafter, Request
from duodec.planning.costs import Costs
from duodec.planning.planner import Planner
from duodec.planning.sources import Lessons, TextSources
from duodec.scheduler.rehearsal import _Lead
from duodec.scheduler.scheduler import Scheduler
from duodec.scheduler.warm_up import WarmUp
from duodec.testing import InlineDrafter, TableModel, TableTarget

KEYED = [name for name in METHODS if name not in ("rest", "sps-rejection")]
TABLE = TableModel(seed=7)
DRAFT = replace(TABLE, noise=0.3)
WARM = SamplingParams(temperature=0.8, seed=5)
NUM_TOKENS = 40


class Elsewhere(Target):
    """A target that computes at once, and whose result is there after a moment. Like a device's,
    its scores end with the next forward pass, unless its candidates are ready."""

    def __init__(
        self,
        *,
        seconds: float = 0.0,
        keeps_candidates: bool = True,
        on_result: Callable[[], None] = lambda: None,
    ) -> None:
        self._target = TableTarget(TABLE)
        self._seconds = seconds
        self._keeps = keeps_candidates
        self.on_result = on_result
        self.number = 0
        self.is_flying = False

    @property
    def traits(self) -> TargetTraits:
        return TargetTraits(launches=True, keeps_candidates=self._keeps)

    def launch(self, queries: Sequence[Query]) -> Launched:
        assert not self.is_flying, "two forward passes at once"
        self.is_flying = True
        self.number += 1
        found = [
            _Scores(scores, self, self.number, self._keeps)
            for scores in self._target.score(queries)
        ]
        return _Arriving(self, found, perf_counter() + self._seconds)

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        return self.launch(queries).result()


class _Arriving:
    due_s = inf

    def __init__(self, owner: Elsewhere, scores: list[Scores], due_s: float) -> None:
        self._owner, self._scores, self._due_s = owner, scores, due_s

    def result(self) -> list[Scores]:
        self._owner.on_result()
        sleep(max(0.0, self._due_s - perf_counter()))
        self._owner.is_flying = False
        return self._scores


class _Scores:
    """They hold until the next forward pass, but for candidates that are kept."""

    def __init__(self, scores: Scores, owner: Elsewhere, number: int, keeps: bool) -> None:
        self._scores, self._owner, self._number = scores, owner, number
        self._keeps = keeps

    def __getattr__(self, name: str) -> object:
        assert self._number == self._owner.number, "read after the next forward pass"
        return getattr(self._scores, name)

    def keep(self, row: int) -> Callable[[], Candidates]:
        assert self._number == self._owner.number, "kept after the next forward pass"
        return partial(self._scores.candidates, row) if self._keeps else self._scores.keep(row)


def decoded(
    name: str,
    target: Target,
    drafter: Drafter,
    params: SamplingParams,
    costs: Costs,
    warm_up: Callable[[], None] | None = None,
) -> list[int]:
    request = Session(
        target=target,
        prompt=PROMPT,
        capacity=len(PROMPT) + NUM_TOKENS,
        drafter=drafter,
        sampler=Sampler(params, 0, len(PROMPT)),
        costs=costs,
        warm_up=warm_up,
    )
    rounds = list(decode_rounds(method(name), request))
    tokens: list[int] = request.text[len(PROMPT) :].tolist()
    assert tokens == [token for done in rounds for token in done.tokens]
    return tokens


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "at once": lambda: InlineDrafter(DRAFT.load()),
    "slow": lambda: SlowDrafter(DRAFT.load(), 1, 2),
    "dying": lambda: DyingDrafter(DRAFT.load(), 5),
    "none": NoDrafter,
}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("params", [SamplingParams(), WARM], ids=["greedy", "sampled"])
@pytest.mark.parametrize("name", KEYED)
def test_the_text_is_plain_decodings_where_the_target_computes_elsewhere(
    name: str, params: SamplingParams, drafter: str
) -> None:
    if method(name).needs_draft_model or drafter in ("at once", "none"):
        for keeps in (True, False):
            target = Elsewhere(keeps_candidates=keeps)
            found = decoded(name, target, DRAFTERS[drafter](), params, FixedBudget(6))
            assert found == plain_text(TABLE, params, NUM_TOKENS)


@pytest.mark.parametrize(("keeps", "share"), [(True, 0.01), (False, 0.03)])
def test_rows_that_are_kept_for_later_take_less_of_the_time_between_two_passes(
    keeps: bool, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: list[float] = []
    wanted: list[float] = []
    lessons, follow_verdict = TextSources.lessons, DraftSelector.follow_verdict

    def spy_on_lessons(*args: Any, budget_s: float, **options: Any) -> Lessons:
        budgets.append(budget_s)
        return lessons(*args, budget_s=budget_s, **options)

    def spy_on_forwards(*args: Any) -> None:
        forward = args[4]
        if forward is not None:
            wanted.append(share * forward.duration_s)
        follow_verdict(*args)

    monkeypatch.setattr(TextSources, "lessons", spy_on_lessons)
    monkeypatch.setattr(DraftSelector, "follow_verdict", spy_on_forwards)
    decoded("auto", Elsewhere(keeps_candidates=keeps), NoDrafter(), SamplingParams(), Costs())
    assert len(budgets) > 3
    assert budgets == wanted


@pytest.mark.parametrize("milliseconds", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("name", ["ar", "stream", "auto"])
def test_nor_does_it_matter_how_long_that_takes(name: str, milliseconds: float) -> None:
    """The next round is prepared at once, at another moment, or before the drafter's next step."""
    target = Elsewhere(seconds=milliseconds / 1e3)
    drafter = SlowDrafter(DRAFT.load(), 1, 2)
    assert decoded(name, target, drafter, WARM, Costs()) == plain_text(TABLE, WARM, NUM_TOKENS)


def verdict_of(text: Sequence[int], draft: Draft, rest: Sequence[int]) -> tuple[int, ...]:
    """What comes of a draft after ``text`` where the text goes on with ``rest``."""
    node, tokens = -1, []
    for token in rest:
        tokens.append(token)
        child = draft.child(node, token)
        if child is None:
            break
        node = child
    return tuple(tokens)


@pytest.mark.parametrize("is_right", [True, False], ids=["the verdict came", "another one came"])
def test_what_was_rehearsed_is_offered_without_another_selection(
    is_right: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [*PROMPT, *plain_text(TABLE, WARM, NUM_TOKENS)]
    rehearsing: list[bool] = []
    selected_for: list[bool] = []  # by selection, whether it was for a rehearsal
    propose, rehearse = Planner.propose, DraftSelector._rehearse

    def foreseen(self: DraftSelector, draft: Draft) -> Iterator[tuple[int, ...]]:
        verdict = verdict_of(self._text, draft, whole[len(self._text) :])
        yield verdict if is_right else (*verdict[:-1], (verdict[-1] + 1) % TABLE.num_vocab)

    def noted(self: Planner, *args: object) -> object:
        selected_for.append(bool(rehearsing))
        return propose(self, *args)  # type: ignore[arg-type]

    def in_rehearsal(self: DraftSelector, *args: object) -> None:
        rehearsing.append(True)
        rehearse(self, *args)  # type: ignore[arg-type]
        rehearsing.clear()

    monkeypatch.setattr(DraftSelector, "_likely_verdicts", foreseen)
    monkeypatch.setattr(DraftSelector, "_rehearse", in_rehearsal)
    monkeypatch.setattr(Planner, "propose", noted)
    drafter = InlineDrafter(DRAFT.load())
    assert decoded("stream", Elsewhere(), drafter, WARM, FixedBudget(6)) == whole[len(PROMPT) :]
    num_rehearsals, num_others = selected_for.count(True), selected_for.count(False)
    assert num_rehearsals > 5
    if is_right:
        # after the first round, and where a draft step was waited for
        assert num_others < num_rehearsals
    else:
        assert num_others >= num_rehearsals


def test_nothing_is_rehearsed_where_this_thread_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take the target's own time."""
    monkeypatch.setattr(DraftSelector, "_rehearse", lambda *_: pytest.fail("it was rehearsed"))
    request = Session(
        target=TableTarget(TABLE),
        prompt=PROMPT,
        capacity=len(PROMPT) + NUM_TOKENS,
        drafter=InlineDrafter(DRAFT.load()),
        costs=FixedBudget(6),
    )
    assert len(list(decode_rounds(method("stream"), request))) < NUM_TOKENS


def test_a_rehearsal_that_fails_ends_its_request_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: DraftSelector, *args: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(DraftSelector, "_rehearse", fail)
    target = Elsewhere()
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        decoded("stream", target, InlineDrafter(DRAFT.load()), WARM, FixedBudget(6))
    assert not target.is_flying
    assert decoded("ar", target, NoDrafter(), WARM, Costs()) == plain_text(TABLE, WARM, NUM_TOKENS)


def test_what_is_put_off_is_done_while_the_target_computes() -> None:
    """The drafter gets the text, and what was learned is learned, with a forward pass in flight."""
    target = Elsewhere()
    seen: list[bool] = []

    class Watched(InlineDrafter):
        def submit(self, request: object) -> None:
            seen.append(target.is_flying)
            super().submit(request)  # type: ignore[arg-type]

    decoded("stream", target, Watched(DRAFT.load()), WARM, FixedBudget(6))
    assert seen.count(True) > seen.count(False)


# --- what warms the processor's caches


def test_a_warm_up_goes_on_from_text_to_text() -> None:
    """It ends none of them early and leaves nothing in its scheduler."""
    schedulers: list[Scheduler] = []

    def made(target: Target) -> Scheduler:
        schedulers.append(Scheduler(target))
        return schedulers[0]

    warm_up = WarmUp(made)
    for _ in range(1200):
        warm_up()
    (scheduler,) = schedulers
    assert scheduler.num_forwards >= 1190
    assert len(scheduler.running) <= 1
    assert not scheduler.waiting


@pytest.mark.parametrize("name", ["ar", "stream"])
def test_long_forward_passes_end_with_a_warm_up(name: str) -> None:
    """Once each, as the last thing before the result; only the prefill and the first one of about
    so many tokens, whose duration nobody knows yet, have none."""
    log: list[str] = []
    sizes: list[int] = []

    class Sized(Elsewhere):
        def launch(self, queries: Sequence[Query]) -> Launched:
            sizes.append(len(queries[0].draft).bit_length())
            return super().launch(queries)

    target = Sized(seconds=0.004, on_result=lambda: log.append("result"))
    drafter = SlowDrafter(DRAFT.load(), 1, 2)
    warm_up = lambda: log.append("warm_up")  # noqa: E731
    found = decoded(name, target, drafter, WARM, Costs(), warm_up)
    assert found == plain_text(TABLE, WARM, NUM_TOKENS)
    expected = []
    for number, size in enumerate(sizes):
        is_known = size in sizes[1:number]
        expected += ["warm_up", "result"] if is_known else ["result"]
    assert log == expected


def test_short_forward_passes_have_no_warm_up() -> None:
    class Quick(Costs):
        def soonest_s(self, num_drafted: int) -> float:
            return 0.001

    log: list[str] = []
    warm_up = lambda: log.append("warm_up")  # noqa: E731
    decoded("ar", Elsewhere(), NoDrafter(), WARM, Quick(), warm_up)
    assert not log


def test_nothing_is_warm_where_this_thread_computes() -> None:
    """It would take the target's own time."""
    drafter = InlineDrafter(DRAFT.load())
    warm_up = lambda: pytest.fail("it warmed_up")  # noqa: E731
    found = decoded("stream", TableTarget(TABLE), drafter, WARM, FixedBudget(6), warm_up)
    assert found == plain_text(TABLE, WARM, NUM_TOKENS)


def test_a_warm_up_that_fails_ends_its_request_alone() -> None:
    def fail() -> None:
        raise RuntimeError("a mistake of ours")

    target = Elsewhere(seconds=0.004)
    with pytest.raises(RuntimeError, match="a mistake of ours"):
        decoded("ar", target, NoDrafter(), WARM, Costs(), fail)
    assert not target.is_flying
    assert decoded("ar", target, NoDrafter(), WARM, Costs()) == plain_text(TABLE, WARM, NUM_TOKENS)


class Polled(NoDrafter):
    """Counts looks at it; each sees a step more."""

    num_polls = 0

    def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Drafted:
        self.num_polls += 1
        return Drafted(num_steps=self.num_polls)


def test_what_the_drafter_made_is_looked_at_once_shortly_before_the_end() -> None:
    drafter, clock = Polled(), FakeClock()
    request = Request(PROMPT, 20, drafter, clock=clock)
    request.poll_drafter()  # it does not draft: there is nothing to see
    assert drafter.num_polls == 0
    request.is_drafting = True
    request.poll_drafter()
    assert request.peek_tree().num_steps == 1  # what was seen
    assert request.peek_tree().num_steps == 2  # which counts once
    request.poll_drafter()
    clock.advance(0.01)
    assert request.peek_tree().num_steps == 4  # that was long ago
    request.poll_drafter()
    request.submit(Chain(1))
    assert request.peek_tree().num_steps == 6  # of another request


def test_a_warm_up_that_was_interrupted_does_not_make_later_ones_early() -> None:
    lead, clock = _Lead(0.001), FakeClock()
    for _ in range(20):
        lead.observe(0.002)
    assert lead.longest_s == 0.002
    lead.observe(0.5)
    assert lead.longest_s == 0.002
    assert lead.wait(clock.now, clock) == clock.now  # there is no time: at once
    for _ in range(3):
        lead.observe(0.004)  # it does take longer now
    assert lead.longest_s == 0.004

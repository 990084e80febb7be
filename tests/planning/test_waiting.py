"""What draft steps brought that were waited for decides whether the next one is waited for."""

from __future__ import annotations

import pytest
from fakes.decoding import GivenSource, selected

from duodec.core.candidates import CandidateTree, TreeCursor
from duodec.core.draft import ROOT, Draft
from duodec.methods.draft_selector import Offer
from duodec.planning.acceptance import Acceptance
from duodec.planning.costs import Costs
from duodec.planning.planner import Planner, Waits


def planner(waits: Waits) -> Planner:
    """Of a target that yields 40 tokens a second, and a drafter whose steps take 1 ms."""
    costs = Costs()
    costs.observe_forward(0.025, 0)
    costs.observe_step(0.001)
    costs.observe_root(0.001)
    made = Planner(costs, Acceptance(), waits=waits)
    made.observe(1, 0.025)
    return made


def test_what_is_promised_is_believed_at_first() -> None:
    assert Waits().trust == 1.0


def test_steps_that_bring_more_than_they_promise_are_waited_for_sooner() -> None:
    waits, nothing = Waits(), selected(GivenSource({(): [(1, 0.9)]}))
    tree = CandidateTree()
    tree.expand(ROOT, [1, 2], [0.15, 0.05])
    own = planner(waits)
    assert not own.promised_by_waiting(TreeCursor(tree), nothing)
    for _ in range(20):
        waits.observe(0.5, 2.0)
    assert waits.trust > 1.0
    assert own.promised_by_waiting(TreeCursor(tree), nothing)


@pytest.mark.parametrize("brought", [0.0, -1.0])
def test_steps_that_bring_nothing_are_waited_for_no_more_for_some_time(brought: float) -> None:
    waits = Waits()
    own, nothing = planner(waits), selected(GivenSource())
    assert own.promised_by_waiting(TreeCursor(), nothing)
    num_waits = 0
    while own.promised_by_waiting(TreeCursor(), nothing):
        waits.observe(own.promised_by_waiting(TreeCursor(), nothing), brought)
        num_waits += 1
        assert num_waits < 20
    assert waits.trust > 0.0
    num_rounds = 0
    while not own.promised_by_waiting(TreeCursor(), nothing):
        waits.observe(0.0, 0.0)
        num_rounds += 1
        assert num_rounds < 1000, "it is tried again"
    assert num_rounds >= 1


def test_steps_that_bring_what_they_promise_are_waited_for() -> None:
    waits = Waits()
    own, nothing = planner(waits), selected(GivenSource())
    for number in range(200):
        promised = own.promised_by_waiting(TreeCursor(), nothing)
        assert promised
        waits.observe(promised, number % 2 * 2 * promised)
    assert waits.trust == pytest.approx(1.0, abs=0.02)


def test_a_promise_is_the_same_whatever_came_of_earlier_ones() -> None:
    """Or trust would fall for having fallen."""
    tree = CandidateTree()
    tree.expand(ROOT, [1, 2], [0.9, 0.05])
    nothing = selected(GivenSource())
    for cursor in (TreeCursor(), TreeCursor(tree)):
        promises = set()
        for brought in (1.0, 0.8):
            waits = Waits()
            waits.observe(1.0, brought)
            promises.add(round(planner(waits).promised_by_waiting(cursor, nothing), 9))
        assert len(promises) == 1
        assert promises.pop() > 0.0


def test_what_would_have_been_drafted_without_waiting_was_not_brought_by_it() -> None:
    offer = Offer(Draft.chain([4, 5, 6]), without_waiting=Draft((4, 7), (ROOT, ROOT)))
    assert offer.num_brought([9]) == 0
    assert offer.num_brought([4, 9]) == 0
    assert offer.num_brought([4, 5, 6, 9]) == 2
    worse = Offer(Draft.chain([4]), without_waiting=Draft.chain([7, 8]))
    assert worse.num_brought([7]) == 0, "the target's own token was no draft"
    assert worse.num_brought([4, 8]) == 1
    assert Offer(without_waiting=Draft.chain([1, 2])).num_brought([1]) == 0

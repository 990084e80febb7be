"""How many draft tokens the planner scores, and which steps it waits for."""

from __future__ import annotations

import pytest

from duodec.core.candidates import CandidateTree, TreeCursor
from duodec.core.draft import ROOT
from duodec.drafting.constants import EXPECTED_IN_TURNS
from duodec.planning.acceptance import Acceptance
from duodec.planning.costs import Costs
from duodec.planning.governor import Governor, Sources
from duodec.planning.mixing import Mixer
from duodec.planning.planner import Planner, best_width
from duodec.planning.selection import Selection
from duodec.planning.sources import TreeSource

A_ROW = 0.25  # forward passes without a draft: a processor whose rows are dear


@pytest.fixture
def costs() -> Costs:
    """Costs on which every row takes a quarter of a forward pass longer, as far as 40 rows."""
    costs = Costs()
    for width in (0, 1, 2, 4, 8, 16, 32, 40):
        for _ in range(3):
            costs.observe_forward(1.0 + A_ROW * width, width)
    return costs


@pytest.mark.parametrize("allowance", [1.0, 16.0])
def test_one_draft_costs_five_forward_passes_at_most(costs: Costs, allowance: float) -> None:
    width = best_width([0.98] * 40, costs, allowance=allowance)
    assert width >= 8
    assert costs.forward_s(width) <= 5.0


def test_a_draft_without_allowance_costs_what_it_promises_and_little_more(costs: Costs) -> None:
    cheap = best_width([0.98] * 40, costs, allowance=0.0)
    assert cheap <= 2.0 / A_ROW
    assert cheap < best_width([0.98] * 40, costs, allowance=2.0)


def test_wide_drafts_stay_where_rows_are_free() -> None:
    costs = Costs()
    for width in (0, 1, 2, 4, 8, 16, 32, 40):
        for _ in range(3):
            costs.observe_forward(1.0, width)
    assert best_width([0.98] * 40, costs, allowance=1.0) == 40


def test_covered_counts_the_rank_that_was_right() -> None:
    known = Acceptance()
    assert known.covered() == pytest.approx([0.4, 0.55, 0.63, 0.68])
    assert known.covered(EXPECTED_IN_TURNS) == pytest.approx([0.7, 0.8, 0.85, 0.9])
    for _ in range(600):
        known.label([0.5, 0.2, 0.1, 0.05, 0.02], [False, True, False, False, False])
        known.label([0.5, 0.2, 0.1, 0.05, 0.02], [False, False, False, False, True])
        known.label([0.5, 0.2], [False, False])
    assert known.covered() == pytest.approx([0.0, 1 / 3, 1 / 3, 2 / 3], abs=0.02)


def test_a_step_is_not_waited_for_where_its_candidates_cost_more_than_they_bring() -> None:
    """Of a token that is right four times in five, for the time of half a pass, and three times in
    four by its later candidates: those cost a row each."""

    def waits(row_s: float, rank: int) -> bool:
        costs = Costs()
        for width in (0, 1, 2, 4, 8):
            for _ in range(3):
                costs.observe_forward(1.0 + row_s * width, width)
        for _ in range(5):
            costs.observe_root(0.5)
            costs.observe_step(0.5)
        known = Acceptance()
        for number in range(300):
            known.label([0.2] * 4, [number % 5 > 0 and i == rank for i in range(4)])
        planner = Planner(costs, known, patience=1.0, takes_turns=True)
        planner.observe(1, 1.0)
        nothing = Selection((), Mixer())
        return planner.promised_by_waiting(TreeCursor(), nothing) > 0.0

    assert [waits(0.0, rank) for rank in range(4)] == [True] * 4
    assert [waits(0.1, rank) for rank in range(4)] == [True, True, False, False]
    assert [waits(0.5, rank) for rank in range(4)] == [False] * 4


def test_drafts_from_text_that_promise_too_much_say_nothing_of_the_draft_model(
    costs: Costs,
) -> None:
    planner = Planner(costs, Acceptance())
    tree = CandidateTree()
    tree.expand(ROOT, [7], [0.9])
    by_text, by_model = (
        Selection([TreeSource(tree, Acceptance())], Mixer()) for tree in (CandidateTree(), tree)
    )
    for selection in (by_text, by_model):
        selection.tokens, selection.parents, selection.values = [7], [ROOT], [0.9]
    assert planner.width(by_text) == planner.width(by_model) == 1
    for _ in range(20):
        planner.observe_promise(by_text, 1, 0)
    assert planner.width(by_text) == 0
    assert planner.width(by_model) == 1
    for _ in range(20):
        planner.observe_promise(by_model, 1, 0)
    assert planner.width(by_model) == 0


def tried(governor: Governor, tokens: int) -> int:
    """A trial of the draft model, so many tokens a round, which lasts as long as a plain one; and
    for how many rounds it then rests."""
    for _ in range(4):
        governor.observe(Sources.NONE, 1, 1.0)
    for _ in range(governor.trial):
        governor.observe(Sources.ALL, tokens, 1.5)
    return rests(governor)


def rests(governor: Governor) -> int:
    rest = 0
    while governor.sources() != Sources.ALL:
        governor.observe(Sources.NONE, 1, 1.0)
        rest += 1
    return rest


def test_what_a_failed_trial_was_charged_lengthens_its_rest() -> None:
    def made() -> Governor:
        return Governor([Sources.ALL], trial=4, probes=(), pause_per_lost=20)

    uncharged = tried(made(), 1)
    assert uncharged == pytest.approx(40, abs=4)  # 2 rounds were lost
    charged = made()
    charged.charge(Sources.ALL, 3.0)
    assert tried(charged, 1) == uncharged + 60
    assert tried(charged, 1) == pytest.approx(64, abs=4)  # charged once: twice as long as at first
    paying = made()
    paying.charge(Sources.ALL, 3.0)
    assert tried(paying, 3) == 0
    while paying.sources() == Sources.ALL:  # later on it no longer pays
        paying.observe(Sources.ALL, 1, 1.5)
    assert rests(paying) == 32


def test_a_lucky_probe_costs_what_has_paid_for_long_a_short_rest() -> None:
    governor = Governor([Sources.FREE, Sources.ALL], trial=4, probes=(Sources.FREE,))
    governor.observe(Sources.NONE, 1, 1.0)
    for _ in range(40):
        governor.observe(Sources.ALL, 2, 1.0)
    governor.observe(Sources.FREE, 5, 1.0)
    governor.observe(Sources.ALL, 2, 1.0)
    assert governor.sources() == Sources.FREE
    num_rounds = 0
    while governor.sources() == Sources.FREE:
        governor.observe(Sources.FREE, 1, 1.0)
        num_rounds += 1
    assert num_rounds == 8
    while governor.sources() == Sources.ALL:  # it is tried again, and is better
        governor.observe(Sources.ALL, 2, 1.0)
        num_rounds += 1
    assert num_rounds > 40


def test_the_share_of_time_that_a_choice_saves() -> None:
    governor = Governor([Sources.ALL], trial=3)
    assert governor.saved(Sources.ALL) == pytest.approx(0.2)
    governor.observe(Sources.NONE, 1, 1.0)
    for number in range(3):
        assert governor.saved(Sources.ALL) == pytest.approx(0.2), number  # it is still tried
        governor.observe(Sources.ALL, 2, 1.0)
    assert governor.saved(Sources.ALL) == pytest.approx(0.5)
    for _ in range(9):
        governor.observe(Sources.ALL, 1, 0.98)
    assert 0.0 < governor.saved(Sources.ALL) < 0.5


def test_after_a_failed_trial_the_next_one_is_expected_to_save_less() -> None:
    governor = Governor([Sources.ALL], trial=4, probes=())
    for expected in (0.2, 0.1, 0.05):
        assert governor.saved(Sources.ALL) == pytest.approx(expected)
        tried(governor, 1)
    for _ in range(4):
        governor.observe(Sources.ALL, 3, 1.5)
    assert governor.saved(Sources.ALL) == pytest.approx(0.5)

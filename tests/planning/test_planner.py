"""How many draft tokens the planner scores."""

from __future__ import annotations

import pytest

from duodec.planning.costs import Costs
from duodec.planning.planner import best_width

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

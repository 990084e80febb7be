"""Costs are the same whenever they were looked at before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duodec.planning.costs import Costs

PASSES = st.lists(st.tuples(st.sampled_from([0, 0, 1, 3, 7, 20]), st.floats(0.001, 0.1)))


@given(PASSES, st.data())
def test_what_is_kept_between_forward_passes_is_computed_anew_after_one(passes, data) -> None:
    looked_at, untouched = Costs(), Costs()
    for num_tokens, seconds in passes:
        if data.draw(st.booleans()):
            looked_at.curve(80)
            looked_at.row_s(2)
        for costs in (looked_at, untouched):
            costs.observe_forward(seconds, num_tokens)
    assert list(looked_at.curve(80)) == list(untouched.curve(80))
    assert list(looked_at.worst(80)) == list(untouched.worst(80))


@given(PASSES)
def test_a_width_beyond_those_measured_may_take_as_long_as_two_of_the_widest_or_fall_off_a_cliff(
    passes,
) -> None:
    costs = Costs()
    for num_tokens, seconds in passes:
        costs.observe_forward(seconds, num_tokens)
    widest = max((num_tokens for num_tokens, _ in passes), default=80)
    expected, worst = costs.curve(80), costs.worst(80)
    assert list(worst[: widest + 1]) == list(expected[: widest + 1])
    row_s = max(0.4 * expected[0], costs._slope_s)
    for num in range(widest + 1, 81):
        dear_s = expected[widest] + row_s * (num - widest)
        assert worst[num] == max(expected[num], 2 * expected[widest], dear_s)


def test_where_loading_timed_the_widths_of_passes_more_rows_take_two_of_the_widest() -> None:
    costs = Costs()
    costs.teach_rows({1: 0.010, 4: 0.011})
    expected, worst = costs.curve(80), costs.worst(80)
    finite = [num for num in range(4, 81) if expected[num] < 2 * expected[3]]
    assert finite
    assert all(worst[num] == 2 * expected[3] for num in finite)


def test_costs_of_another_target_begin_with_none_of_its_own() -> None:
    costs = Costs()
    for num_tokens, seconds in ((0, 0.01), (0, 0.01), (4, 0.02)):
        costs.observe_forward(seconds, num_tokens)
    assert costs.forward_s(4) == 0.02
    other = costs.of_another_target()
    assert list(other.curve(80)) == list(Costs().curve(80))
    assert costs.forward_s(4) == 0.02


def test_what_loading_measured_is_known_before_the_first_completion() -> None:
    costs = Costs()
    costs.teach_rows({1: 0.010, 2: 0.011, 4: 0.013, 8: 0.020})
    assert costs.knows_plain
    measured = [costs.forward_s(num) for num in (0, 1, 3, 7)]
    assert measured == pytest.approx([0.010, 0.011, 0.013, 0.020])

    padded = Costs()
    padded.teach_rows({4: 0.013})
    assert padded.knows_plain
    assert [padded.forward_s(num) for num in (0, 3)] == pytest.approx([0.013, 0.013])

    unknown = Costs()
    unknown.teach_rows({})
    assert not unknown.knows_plain

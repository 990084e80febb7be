"""What `auto` loses to plain decoding while it learns a curve: bounded, whatever the curve."""

from __future__ import annotations

from itertools import accumulate

import pytest
from benchmarks.decoding.grid import (
    CASES,
    DRAFTS,
    LENGTHS,
    SHAPES,
    Case,
    rounds,
    scaled,
    speedups,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from duodec.backends.curves import CostCurve, published
from duodec.core.round import Round
from duodec.methods.registry import method
from duodec.testing import TableModel

MOST_LOST = 2.0  # forward passes of plain decoding, in the first 50 tokens
LEAST = (0.9, 0.97, 0.97)  # of plain decoding's speed, in the first 20, 60 and 240 tokens


def most_lost(done: list[Round], forward_s: float, length: int = 50) -> float:
    """Forward passes of plain decoding by which it was late at most, after the prompt's."""
    late, counts = 0.0, list(accumulate(len(r.tokens) for r in done[1:]))
    for count, own in zip(counts, done[1:], strict=True):
        late = max(late, (own.end_s - done[0].end_s) / forward_s - count)
        if count >= length:
            break
    return late


def is_quick(case: Case) -> bool:
    """Whether `make test` runs it: each shape with one of the drafts in turn."""
    number = list(SHAPES).index(case.shape) % len(DRAFTS)
    return case.milliseconds == 25.0 and case.draft == list(DRAFTS)[number]


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if is_quick(case) else pytest.mark.slow) for case in CASES],
    ids=lambda case: f"{case.shape}, {case.milliseconds:g} ms, {case.draft}",
)
def test_steep_curves_cost_little_to_learn(case: Case) -> None:
    done = rounds(case.curve, DRAFTS[case.draft])
    found = speedups(done, case.curve.forward_s, LENGTHS)
    for value, least in zip(found, LEAST, strict=True):
        assert value >= least, (case, found)
    assert most_lost(done, case.curve.forward_s) <= MOST_LOST, case


@pytest.mark.parametrize("name", sorted(published()))
def test_on_published_curves_drafts_gain(name: str) -> None:
    curve = published()[name]
    done = rounds(curve, DRAFTS["good"])
    assert speedups(done, curve.forward_s)[-1] > 1.5
    assert most_lost(done, curve.forward_s) <= MOST_LOST


@st.composite
def curves(draw) -> CostCurve:
    """Any curve by which a pass costs no more than its two halves, steps and plateaus included."""
    cost, points = 1.0, {1: 1.0}
    for rows in (1, 2, 4, 8, 16, 32, 64):
        before, cost = cost, cost * draw(st.sampled_from([1.0, 1.1, 1.3, 1.5, 1.7, 2.0]))
        points[2 * rows] = cost
        if rows > 1 and draw(st.booleans()):
            points[rows + 1] = cost  # a step and a plateau
        elif rows > 2 and draw(st.booleans()):
            points[2 * rows - 1] = before  # a plateau and a step
    return CostCurve(tuple(sorted(points.items())))


@pytest.mark.parametrize("num_examples", [15, pytest.param(60, marks=pytest.mark.slow)])
def test_no_curve_costs_more_than_two_plain_passes_to_learn(num_examples: int) -> None:
    @settings(
        derandomize=True,
        deadline=None,
        max_examples=num_examples,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(
        curves(),
        st.sampled_from([0.01, 0.025, 0.1]),
        st.sampled_from([0.05, 0.15, 0.5, 0.9, None]),
        st.sampled_from([1, 2]),
        st.integers(0, 3),
    )
    def check(
        curve: CostCurve, forward_s: float, noise: float | None, order: int, seed: int
    ) -> None:
        target = TableModel(num_vocab=64, order=order, seed=seed)
        done = rounds(scaled(curve, forward_s), noise, target=target, num_tokens=60)
        assert most_lost(done, forward_s) <= MOST_LOST

    check()


@pytest.mark.parametrize("name", ["stream", "auto"])
def test_plain_decoding_is_measured_before_anything_is_drafted(name: str) -> None:
    done = rounds(published()["mi50-27b-q8_0"], 0.05, method=method(name), num_tokens=40)
    assert [own.num_scored for own in done[:3]] == [0, 0, 0]
    assert max(own.num_scored for own in done) > 3


@pytest.mark.slow
def test_a_width_that_was_never_tried_is_not_far_from_those_that_were() -> None:
    """One pass of 63 draft tokens cost 64 plain ones."""
    for shape in SHAPES:
        done = rounds(scaled(SHAPES[shape], 0.025), DRAFTS["weak"])
        widest = 0
        for own in done:
            assert own.num_scored <= max(1, 2 * widest + 1), shape
            widest = max(widest, own.num_scored)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_about_as_fast_as_drafting_without_doubts(shape: str) -> None:
    """What `stream` reaches, which always drafts, or plain decoding."""
    curve = scaled(SHAPES[shape], 0.025)
    own = speedups(rounds(curve, DRAFTS["good"]), curve.forward_s)[-1]
    always = speedups(rounds(curve, DRAFTS["good"], method=method("stream")), curve.forward_s)[-1]
    assert own >= 0.9 * always

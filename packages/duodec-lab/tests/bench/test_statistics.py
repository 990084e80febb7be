"""Paired ratios and outliers against what is known of them."""

from __future__ import annotations

import random

import pytest

from duodec_lab.bench.reports.statistics import Rate, Ratio, ratio_of_rates, slow_outliers


def rates(seed: int, num_prompts: int, factor: float, spread: float = 0.1) -> list[Rate]:
    """Rates of about 40 tokens a second times ``factor``."""
    dice = random.Random(seed)
    return [
        (100.0, 2.5 / factor * dice.uniform(1 - spread, 1 + spread)) for _ in range(num_prompts)
    ]


def test_the_value_is_a_ratio_of_summed_rates() -> None:
    ratio = ratio_of_rates([(10, 1), (90, 2)], [(50, 1), (50, 4)], ["a", "b"])
    assert ratio.value == pytest.approx((100 / 3) / (100 / 5))


def test_a_run_against_itself_is_one() -> None:
    mine = rates(1, 20, 1.0)
    ratio = ratio_of_rates(mine, mine, range(20))
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((1, 1, 1))
    assert not ratio.is_slower
    assert not ratio.is_faster


def test_two_equal_runs_have_one_in_the_interval() -> None:
    ratio = ratio_of_rates(rates(1, 30, 1.0), rates(2, 30, 1.0), range(30))
    assert ratio.low is not None
    assert ratio.high is not None
    assert ratio.low < 1 < ratio.high


def test_the_interval_covers_a_known_ratio_about_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(150):
        ours, theirs = rates(seed, 25, 1.4), rates(100_000 + seed, 25, 1.0)
        ratio = ratio_of_rates(ours, theirs, range(25))
        assert ratio.low is not None
        assert ratio.high is not None
        covered += ratio.low <= 1.4 <= ratio.high
    assert covered >= 0.9 * 150  # a percentile interval over 25 prompts promises a little less


def test_a_loss_is_one_only_if_the_interval_says_so() -> None:
    plain = rates(1, 30, 1.0)
    assert ratio_of_rates(rates(2, 30, 0.7), plain, range(30)).is_slower
    assert ratio_of_rates(rates(3, 30, 1.4), plain, range(30)).is_faster
    assert not ratio_of_rates(rates(2, 3, 0.97, 0.5), rates(1, 3, 1.0, 0.5), range(3)).is_slower


def test_repeats_of_a_prompt_are_no_further_evidence() -> None:
    ours, theirs = rates(1, 8, 1.2, 0.3), rates(2, 8, 1.0, 0.3)
    once = ratio_of_rates(ours, theirs, range(8))
    thrice = ratio_of_rates(ours * 3, theirs * 3, [*range(8)] * 3)
    assert (thrice.low, thrice.high) == pytest.approx((once.low, once.high))
    assert thrice.num_prompts == 8
    taken_apart = ratio_of_rates(ours * 3, theirs * 3, range(24))
    assert width(taken_apart) < 0.8 * width(once)


def width(ratio: Ratio) -> float:
    assert ratio.low is not None
    assert ratio.high is not None
    return ratio.high - ratio.low


def test_one_prompt_has_no_interval() -> None:
    ratio = ratio_of_rates([(10, 1), (10, 1)], [(10, 3), (10, 3)], ["a", "a"])
    assert ratio.value == pytest.approx(3)
    assert (ratio.low, ratio.high, ratio.num_prompts) == (None, None, 1)
    assert not ratio.is_faster


def test_the_interval_is_the_same_each_time() -> None:
    assert ratio_of_rates(rates(1, 9, 1.2), rates(2, 9, 1), range(9)) == ratio_of_rates(
        rates(1, 9, 1.2), rates(2, 9, 1), range(9)
    )


def test_a_far_longer_duration_is_an_outlier_and_a_shorter_one_is_not() -> None:
    assert slow_outliers([1.0, 1.01, 0.99, 1.02, 1.0, 2.0, 0.2]) == [5]


@pytest.mark.parametrize(
    "seconds",
    [
        [],
        [1.0, 9.0, 1.0, 1.0],  # too few
        [1.0] * 9,
        [1.0] * 9 + [1.2],  # less than a quarter is no finding, however quiet the rest
        [1.0, 1.5, 0.7, 1.9, 1.2, 0.6],  # what differs as much by nature
    ],
)
def test_what_is_no_outlier(seconds: list[float]) -> None:
    assert slow_outliers(seconds) == []

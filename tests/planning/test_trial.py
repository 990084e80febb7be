"""What does not pay rests, longer each time; what pays begins with a short rest again."""

from __future__ import annotations

import pytest

from duodec.planning.trial import Supplement, Trial

RATE, SECONDS = 100.0, 0.001  # tokens a second; of each round of a supplement


def rests(trial: Trial, num: int) -> list[int]:
    """The rounds of so many rests, each after a round that brought nothing."""
    found = []
    for _ in range(num):
        trial.observe(0, 1.0)
        trial.fails()
        found.append(0)
        while trial.rest:
            trial.tick()
            found[-1] += 1
    return found


def test_each_failure_in_a_row_makes_the_next_rest_longer_up_to_a_bound() -> None:
    trial = Trial(backoff=3, first_pause=4, max_pause=50)
    assert rests(trial, 5) == [4, 12, 36, 50, 50]
    trial.pays()
    assert rests(trial, 2) == [4, 12]


def test_it_is_judged_anew_after_a_rest() -> None:
    trial = Trial()
    trial.observe(3, 1.0)
    trial.lost_s = 2.0
    trial.fails(100)
    assert (trial.rest, trial.num_tried, trial.lost_s, trial.rate.value) == (100, 0, 0.0, 0.0)
    trial.observe(1, 0.5)
    assert (trial.num_tried, trial.rate.value) == (1, 2.0)


def test_it_is_new_until_it_was_tried() -> None:
    trial = Trial()
    assert trial.is_new
    trial.observe(1, 1.0)
    assert not trial.is_new
    trial.fails()
    assert not trial.is_new


def test_another_one_rests_as_long_and_knows_nothing() -> None:
    trial = Trial(first_pause=4)
    rests(trial, 2)
    other = trial.fresh(rest=5)
    assert (other.rest, other.pause, other.rate.num_rounds) == (5, 16, 0)


# --- a source that takes time of its own


def rounds_with(supplement: Supplement, num_rounds: int, *brought: int) -> int:
    """The rounds that it took part in, bringing so many tokens by turns."""
    num = 0
    for _ in range(num_rounds):
        if supplement.takes_part():
            supplement.observe(brought[num % len(brought)], SECONDS, RATE)
            num += 1
    return num


@pytest.mark.parametrize("brought", [(1,), (0, 0, 0, 1), (0,) * 9 + (3,)])
def test_what_pays_never_rests(brought: tuple[int, ...]) -> None:
    assert sum(brought) / len(brought) > RATE * SECONDS
    assert rounds_with(Supplement(), 500, *brought) == 500


def test_what_brings_less_than_it_costs_rests_longer_each_time() -> None:
    supplement = Supplement()
    assert rounds_with(supplement, 24, 0) == 24
    assert rounds_with(supplement, 31, 0) == 0
    assert rounds_with(supplement, 2000, 0) < 150


def test_it_returns_when_a_text_suits_it() -> None:
    supplement = Supplement()
    rounds_with(supplement, 200, 0)
    rounds_with(supplement, 600, 1)
    assert rounds_with(supplement, 100, 1) == 100


def test_what_costs_nothing_need_bring_nothing() -> None:
    supplement = Supplement()
    for _ in range(100):
        assert supplement.takes_part()
        supplement.observe(0, 0.0, RATE)

"""What does not pay rests, longer each time; what pays begins with a short rest again."""

from __future__ import annotations

from duodec.planning.trial import Trial


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
    trial.charged_s = 2.0
    trial.fails(100)
    assert (trial.rest, trial.num_tried, trial.charged_s, trial.rate.value) == (100, 0, 0.0, 0.0)
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
    other = trial.anew(rest=5)
    assert (other.rest, other.pause, other.rate.num_rounds) == (5, 16, 0)

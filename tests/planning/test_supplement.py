"""A source that takes time of its own takes part while it brings more than decoding does in it."""

from __future__ import annotations

import pytest

from duodec.planning.supplement import Supplement

RATE, SECONDS = 100.0, 0.001  # tokens a second; of each round


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

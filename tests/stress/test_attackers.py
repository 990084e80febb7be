"""What attacks may get is told from what they got."""

from __future__ import annotations

from stress.attackers import ATTACKS, GOOD, unexpected


def test_what_an_attack_should_not_have_got_is_named() -> None:
    ended = {
        "num_attackers": 4, "shaped_grammars 200": 3, "shaped_grammars 500": 1,
        "large_grammars 400": 2, "large_grammars closed": 1, "slow_loris 408": 9,
    }  # fmt: skip
    assert unexpected(ended) == ["shaped_grammars 500", "large_grammars closed"]


def test_each_attack_with_statuses_is_there() -> None:
    assert set(GOOD) <= {one.__name__ for one, _ in ATTACKS}

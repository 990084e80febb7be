"""The closing lines of an answer: its speed, its drafts, and a comparison with plain decoding."""

from __future__ import annotations

from dataclasses import replace

import pytest

from duodec.cli.summary import comparison, draft_line, end_line, speed_line, times
from duodec.core.round import Round, Stats


def stats_of(*rounds: Round) -> Stats:
    first = Round((0,), 0, 0, 0, 1.0, 0.0, 1.0)
    return Stats(10, (first, *rounds), 0.0, 1.0, rounds[-1].end_s if rounds else 1.0)


def rounds_of(
    count: int,
    *,
    accepted: int = 0,
    drafted: int = 4,
    forward_s: float = 0.1,
    wait_s: float = 0.0,
    gap_s: float = 0.0,
    overlap_s: float = 0.0,
) -> Stats:
    period = forward_s + wait_s + gap_s
    return stats_of(
        *(
            Round(
                (1,) * (accepted + 1), accepted, drafted, drafted, 1.0,
                1.0 + i * period + wait_s + gap_s, 1.0 + (i + 1) * period, wait_s, overlap_s,
            )
            for i in range(count)
        )
    )  # fmt: skip


def few_scored() -> Stats:
    """A draft token is scored in every third pass only, as with PEARL."""
    rounds = rounds_of(9, drafted=1, forward_s=0.25).rounds[1:]
    return stats_of(*(replace(r, num_scored=int(i % 3 == 0)) for i, r in enumerate(rounds)))


@pytest.mark.parametrize(
    ("stats", "words"),
    [
        (
            rounds_of(9, accepted=1, forward_s=0.11),
            ("1.82x plain decoding (10.0 tok/s): 1.90 tokens a forward pass at 1.1 times its cost"),
        ),
        (
            rounds_of(9, forward_s=0.31),
            (
                "0.32x plain decoding (10.0 tok/s): scoring 4.0 draft tokens"
                " costs 3.1 plain passes, and 0% of the drafts were accepted"
            ),
        ),
        (
            rounds_of(9, forward_s=0.2, overlap_s=0.2),
            (
                "0.50x plain decoding (10.0 tok/s): scoring 4.0 draft tokens while the drafter "
                "works on the same cores costs 2.0 plain passes, and 0% of the drafts were "
                "accepted"
            ),
        ),
        (
            rounds_of(9, accepted=1, wait_s=0.3),
            (
                "0.50x plain decoding (10.0 tok/s): waiting for "
                "drafts costs 3.0 plain passes a round, and 25% of the drafts were accepted"
            ),
        ),
        (
            rounds_of(9, gap_s=0.1),
            (
                "0.50x plain decoding (10.0 tok/s): the time between passes "
                "costs 1.0 plain passes a round, and 0% of the drafts were accepted"
            ),
        ),
        (rounds_of(9, drafted=0), "1.00x plain decoding (10.0 tok/s): nothing was drafted"),
        (
            rounds_of(9),
            (
                "1.00x plain decoding (10.0 tok/s): 0% of the drafts were accepted, 1.00 "
                "tokens a forward pass"
            ),
        ),
        (
            rounds_of(9, forward_s=0.08),
            "no faster than plain decoding (10.0 tok/s): nothing was accepted",
        ),
        (
            rounds_of(9, forward_s=0.09, drafted=0),
            "no faster than plain decoding (10.0 tok/s): nothing was drafted",
        ),
        (
            few_scored(),
            (
                "0.40x plain decoding (10.0 tok/s): a forward pass costs 2.5 plain passes, and 0% "
                "of the drafts were accepted"
            ),
        ),
        (rounds_of(2), "too short to compare with plain decoding"),
        (stats_of(), "too short to compare with plain decoding"),
    ],
)
def test_the_comparison_names_what_decided_it(stats: Stats, words: str) -> None:
    assert comparison(stats, 0.1, shares_cores=True) == words


def test_timings_that_contradict_each_other_are_not_compared() -> None:
    """A round cannot cost a tenth of a plain forward pass: the machine's speed changed."""
    words = comparison(rounds_of(9), 1.0)
    assert words.startswith("not compared with plain decoding")
    assert "10.0 times as slow" in words
    assert "x plain decoding" not in words


def test_a_busy_machine_gets_a_range_and_the_reason() -> None:
    words = comparison(rounds_of(9, accepted=1), 0.0875, num_busy=1.3)
    head = "about 1.5 to 2 times plain decoding (11.4 tok/s; other programs kept 1.3 cores busy): "
    assert words.startswith(head)
    assert times(1.02, 0.6) == "about 0.75 to 1.25 times"
    assert times(1.02, 0.4) == "1.02x"


def test_without_a_probe_nothing_is_compared() -> None:
    assert comparison(rounds_of(9), None) == "too short to compare with plain decoding"


def test_lines_of_an_answer() -> None:
    stats = rounds_of(9, accepted=1)
    assert speed_line(stats) == "19 tokens at 20.0 tok/s, the first after 1.0 s"
    assert draft_line(stats, "sps", "small") == (
        "sps with small: 1.90 tokens a forward pass, 36 drafted, 9 accepted (25%)"
    )
    assert draft_line(stats_of(), "ar", None) == "ar: 1.00 tokens a forward pass"
    assert end_line("stop", is_interrupted=False, num_context=8) is None
    assert end_line("length", is_interrupted=True, num_context=8) == "interrupted"

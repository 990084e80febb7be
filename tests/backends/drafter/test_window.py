"""The window of a draft model: its sizes follow measured speeds, its growth pays for itself."""

from __future__ import annotations

import numpy as np
import pytest

from duodec.backends.drafter.window import Track, Window

LARGE, SMALL = 5e8, 5e7  # parameters


def measured(token_s: float, most: int = 8192, num_params: float = LARGE) -> Window:
    window = Window(most, num_params)
    window.observe_reading(100, 100 * token_s)
    return window


def text(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


@pytest.mark.parametrize(
    ("token_s", "start", "chunk"),
    [(1e-5, 512, 128), (3e-4, 100, 33), (1e-3, 32, 10), (1e-1, 32, 8), (0.0, 512, 128)],
)
def test_what_is_read_first_takes_thirty_milliseconds(
    token_s: float, start: int, chunk: int
) -> None:
    window = measured(token_s)
    assert (window.start, window.chunk) == (start, chunk)


def test_before_anything_was_measured_the_start_is_short() -> None:
    assert Window().start == 96
    assert Window(128).start == 64  # and never more than half of the window


def test_few_tokens_tell_nothing_of_the_speed_of_reading() -> None:
    window = Window()
    window.observe_reading(3, 10.0)
    assert window.start == 96


def test_a_text_is_long_that_takes_more_than_twice_the_start() -> None:
    window = measured(3e-4)
    assert not window.is_long(200, 0)
    assert window.is_long(201, 0)
    assert not window.is_long(400, 1000)  # after known text
    assert window.is_long(401, 1000)
    assert measured(3e-4, most=128).is_long(65, 1000)


def test_who_computes_alone_reads_as_much_as_it_can_hold() -> None:
    window = measured(3e-4, most=4000)
    assert window.is_long(3000, 0)
    assert not window.is_long(3000, 0, is_alone=True)
    assert window.is_long(3001, 0, is_alone=True)
    assert window.is_long(3001, 1000, is_alone=True)


def test_blocks_double_the_window_up_to_three_quarters_of_it() -> None:
    window, num_seen, blocks = measured(3e-4, most=2048), 100, []
    while block := window.block(num_seen):
        blocks.append(block)
        num_seen += block
    assert blocks == [100, 200, 400, 512, 224]
    assert num_seen == window.kept == 1536
    assert window.block(1600) == 0  # it grew beyond by itself: nothing that went is read again


def test_reading_pays_once_the_text_has_taken_as_long_as_it_gains() -> None:
    window = measured(1e-3)
    # 0.30 to 0.45 of first guesses: runs grow by a quarter, for 156 tokens
    assert not window.pays(100, 160, 0.55)
    assert window.pays(100, 160, 0.60)
    # more of the text could join, which gains more
    assert window.pays(100, 3000, 0.60)
    assert not measured(1e-1).pays(100, 3000, 5.0)


def test_a_small_draft_reads_older_text_when_it_is_idle_only() -> None:
    window = measured(1e-3, num_params=SMALL)
    assert not window.pays(100, 3000, 1e6)
    assert window.helps(100, 3000)
    assert not window.helps(100, 0)


@pytest.mark.parametrize(("is_better", "num_params"), [(True, SMALL), (False, LARGE)])
def test_what_wider_windows_gain_is_learned(is_better: bool, num_params: float) -> None:
    window = measured(1e-3, num_params=num_params)
    for i in range(3000):
        window.observe_guess(100, is_hit=i % 10 < 5)
        for num_seen in (200, 300, 600, 1500, 3000):
            window.observe_guess(num_seen, is_hit=i % 10 < (8 if is_better else 2))
    assert window.pays(100, 3000, 3.0) == is_better
    assert window.helps(100, 3000) == is_better


# --- what became of guesses


def test_a_guess_is_judged_when_its_token_is_certain() -> None:
    track = Track()
    assert list(track.follow(text(1, 2))) == []
    track.guess([], 3, 50)
    track.guess([3], 4, 60)
    track.guess([3, 4], 5, 70)
    track.guess([9], 9, 99)  # a branch that is not taken
    assert list(track.follow(text(1, 2, 3))) == []
    assert list(track.follow(text(1, 2, 3, 4, 6))) == []
    later = text(1, 2, 3, 4, 6, *range(20, 40))
    assert list(track.follow(later)) == [(50, True), (60, True), (70, False)]
    assert list(track.follow(later)) == []


def test_a_refused_draft_is_no_right_guess() -> None:
    """The text that drafts are asked for may end with drafts that the target refuses."""
    track = Track()
    list(track.follow(text(1, 2)))
    for path, token in (([], 3), ([3], 4), ([3, 4], 5)):
        track.guess(path, token, 50)
    list(track.follow(text(1, 2, 3, 4, 5)))  # all of them are pending
    found = list(track.follow(text(1, 2, 3, 7, *range(20, 40))))
    assert found == [(50, True), (50, False)]


def test_another_text_begins_anew() -> None:
    track = Track()
    list(track.follow(text(*range(100))))
    track.guess([], 100, 50)
    track.spent_s = 3.0
    list(track.follow(text(*range(101))))
    assert track.spent_s == 3.0
    assert list(track.follow(text(*range(40), *range(200, 300)))) == []
    assert track.spent_s == 0.0

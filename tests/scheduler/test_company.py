"""Whoever comes, goes, fails or drafts beside it: a request lives, and its text is its own."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from random import Random

import pytest
from fakes.company import NUM_VOCAB, Company, FreshScores, Record, keep_company

from duodec.backends.drafter.process import ProcessDrafter
from duodec.core.drafters import DraftRequest
from duodec.core.sampling.sampler import Draw
from duodec.testing import TableModel

NUM_A_COMPANY = 20  # requests


def assert_nobody_was_harmed(record: Record, num_requests: int) -> None:
    assert not record.deaths
    assert not record.differences
    assert record.num_requests == num_requests
    assert record.num_done > 0.6 * num_requests
    assert record.num_aborted > 0.02 * num_requests
    assert record.num_doomed > 0
    assert record.num_accepted > 0.5 * num_requests, "hardly anything was drafted"
    assert record.num_shared > num_requests, "hardly anybody had company"


def test_300_requests_in_random_company_live_and_say_their_own() -> None:
    assert_nobody_was_harmed(keep_company(range(15), NUM_A_COMPANY), 300)


@pytest.mark.parametrize(
    "part", [pytest.param(i, marks=pytest.mark.soak if i else pytest.mark.slow) for i in range(10)]
)
def test_2_000_requests_in_random_company_live_and_say_their_own(part: int) -> None:
    seeds = range(1000 + 100 * part, 1000 + 100 * (part + 1))
    assert_nobody_was_harmed(keep_company(seeds, NUM_A_COMPANY), 2000)


class KilledDrafter(ProcessDrafter):
    """A real process that is killed at random."""

    chance = Random(5)

    def submit(self, request: DraftRequest) -> None:
        super().submit(request)
        if self.chance.random() < 0.02 and (pid := self.pid) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_random_company_outlives_a_drafter_that_is_killed() -> None:
    recipe = TableModel(NUM_VOCAB, seed=1, noise=0.3)
    with KilledDrafter(recipe, on_warning=lambda line: None) as drafter:
        drafter.wait_ready()
        record = keep_company(range(1, 85, 7), NUM_A_COMPANY, lambda seed: Company(seed, drafter))
        assert_nobody_was_harmed(record, 240)
        assert drafter.restarts > 0


def test_a_row_off_by_one_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = FreshScores.draw

    def off_by_one(scores: FreshScores, row: int) -> Draw:
        return draw(scores, min(row + 1, scores.num_rows - 1))

    monkeypatch.setattr(FreshScores, "draw", off_by_one)
    record = keep_company(range(15), NUM_A_COMPANY)
    assert len(record.differences) > 50

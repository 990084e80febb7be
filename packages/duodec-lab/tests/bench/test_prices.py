"""What a simulation charges, measured in a replay: rounds in, seconds out."""

from __future__ import annotations

import pytest

from duodec.core.round import Round
from duodec_lab.bench.beds import prices
from duodec_lab.bench.beds.host import HostPrices


def round_at(start_s: float, end_s: float, *, num_scored: int = 0, wait_s: float = 0.0) -> Round:
    return Round(
        tokens=(1,), num_accepted=0, num_drafted=num_scored, num_scored=num_scored, margin=1.0,
        start_s=start_s, end_s=end_s, draft_wait_s=wait_s, overlap_s=0.0, num_from_model=0,
        num_sequences=0,
    )  # fmt: skip


ROUNDS = (
    round_at(0.0, 1.0),  # reads the prompt
    round_at(5.0, 6.0),
    round_at(6.25, 7.0),
    round_at(8.0, 9.0, num_scored=3, wait_s=0.5),
)


def test_gaps_lie_between_passes_without_waits_for_drafts() -> None:
    assert prices._gaps_s(ROUNDS) == [0.25, 0.5]
    assert prices._gaps_s(ROUNDS, with_draft=True) == [0.5]
    assert prices._gaps_s(ROUNDS[:1]) == []


def test_a_gap_that_others_made_long_does_not_count() -> None:
    assert prices._usual([1.0] * 9 + [100.0]) == 1.0
    assert prices._usual([2.0]) == 2.0
    assert prices._usual([]) == 0.0


@pytest.mark.parametrize("microseconds", [2.0, 45.25, 754.0, 6204.0])
def test_prices_are_written_as_they_are_read(microseconds: float) -> None:
    written = str(HostPrices(handover=microseconds / 1e6))
    assert "e+" not in written
    assert HostPrices.parse(written).handover == pytest.approx(microseconds / 1e6, rel=1e-2)

"""Where `duodec doctor` says that a draft model computes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duodec.backends.placement import Placement
from duodec.cli.checks import places
from duodec.cli.checks.payoff import DraftTrial, Speed
from duodec.errors import BackendUnavailable
from duodec.loading.config import EngineConfig
from duodec.loading.placing import Steps
from duodec.machine.core_plan import CorePlan
from duodec.models.discovery import Candidate

TRIAL = DraftTrial(
    Candidate(Path("small.gguf"), "small.gguf", "chosen"),
    Speed(10e-3, 12e-3, 5e-3, 6e-3),
    agreement=0.7,
    shares_cores=False,
)


def checked(placement: Placement = Placement.ELSEWHERE, **options: Any) -> list[places.Check]:
    pair: Any = SimpleNamespace(
        config=EngineConfig(**options), draft=SimpleNamespace(num_bytes=400_000_000)
    )
    target: Any = SimpleNamespace(placement=placement)
    return places.check_places(pair, target, cast(CorePlan, None), TRIAL)


@pytest.mark.parametrize(("step_s", "first"), [(0.5e-3, "the device"), (40e-3, "the CPU")])
def test_the_place_that_loading_takes_is_told_first(
    monkeypatch: pytest.MonkeyPatch, step_s: float, first: str
) -> None:
    closed: list[bool] = []
    drafter = SimpleNamespace(close=lambda: closed.append(True))
    monkeypatch.setattr(places, "draft_on_device", lambda *given: drafter)
    monkeypatch.setattr(places.Steps, "of", lambda drafter: Steps(step_s, 0.01))
    (check,) = checked()
    assert check.verdict == "ok"
    assert check.words.startswith(f"{first}: ")
    assert "400 MB of its memory" in check.words
    assert "5.0 ms a step on a core" in check.words
    assert closed == [True]


def test_a_device_without_room_leaves_it_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> None:
        raise BackendUnavailable("the card has 1 MB free; use a smaller draft")

    monkeypatch.setattr(places, "draft_on_device", full)
    (check,) = checked()
    assert (check.verdict, check.words) == (
        "warn", "the CPU: the card has 1 MB free; use a smaller draft",
    )  # fmt: skip


def test_there_is_nothing_to_say_where_no_device_is_tried() -> None:
    assert checked(Placement.CPU) == []
    assert checked(draft_device="cpu") == []

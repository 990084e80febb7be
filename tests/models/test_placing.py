"""Where a draft model computes: what is expected of each place, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duodec.backends.curves import CostCurve
from duodec.backends.paced import PacedTarget
from duodec.backends.placement import Placement
from duodec.core.traits import Widths
from duodec.errors import BadOption
from duodec.loading.backends import TargetFiles, named
from duodec.loading.config import EngineConfig
from duodec.loading.forecast import Forecast
from duodec.loading.load import _costs, unless_busy
from duodec.loading.placing import is_for_device
from duodec.loading.resolve import ResolvedPair
from duodec.machine.core_plan import CorePlan
from duodec.models.base import ModelFile
from duodec.testing import TableModel, TableTarget

FILE = ModelFile(Path("/models/large.gguf"), "large.gguf", "file", None, None)
DRAFT = ModelFile(Path("/models/small.gguf"), "small.gguf", "file", None, None)


def pair(**options: str) -> ResolvedPair:
    config = EngineConfig(**{"target": str(FILE.path), **options})  # type: ignore[arg-type]
    return ResolvedPair(config, named("llama.cpp"), TargetFiles(FILE), DRAFT)


@pytest.mark.parametrize(
    ("device", "placement", "is_tried"),
    [
        ("auto", Placement.ELSEWHERE, True),
        ("auto", Placement.SPLIT, False),
        ("auto", Placement.CPU, False),
        ("cpu", Placement.ELSEWHERE, False),
        ("none", Placement.ELSEWHERE, False),  # as llama.cpp says
        ("gpu", Placement.SPLIT, True),
    ],
)
def test_the_device_is_tried_where_the_target_is(
    device: str, placement: Placement, is_tried: bool
) -> None:
    assert is_for_device(EngineConfig(draft_device=device), placement) == is_tried


def test_a_target_on_the_cpu_has_no_device() -> None:
    with pytest.raises(BadOption, match="draft_device is gpu"):
        is_for_device(EngineConfig(draft_device="gpu"), Placement.CPU)
    with pytest.raises(BadOption, match="card"):
        EngineConfig(draft_device="card")


def test_a_step_that_is_short_beside_a_pass_belongs_on_the_device() -> None:
    forecast = Forecast(forward_s=6e-3, step_s=0.7e-3)
    assert forecast.plain < forecast.in_turns
    assert Forecast(6e-3, 12e-3).in_parallel < forecast.in_turns
    # as short on a core that computes in parallel, it delays nothing there
    assert Forecast(6e-3, 2e-3).in_parallel > Forecast(6e-3, 6e-3).in_turns
    assert Forecast(6e-3, 60.0).in_turns == pytest.approx(forecast.plain)


def test_a_pass_that_ends_otherwise_wastes_what_was_drafted_beyond_it() -> None:
    """In simulations of such cards the device was 3 and 5% faster, though nothing waits for a core
    that takes a millisecond a step."""
    for forward_s in (6.39e-3, 6.3e-3, 3.97e-3):
        assert Forecast(forward_s, 0.25e-3).in_turns > Forecast(forward_s, 0.93e-3).in_parallel
    # a card that is no faster than a core only delays the target
    assert Forecast(25e-3, 2e-3).in_parallel > Forecast(25e-3, 12e-3).in_turns


@pytest.mark.parametrize(
    ("options", "placement", "num_busy", "has_draft"),
    [
        ({}, Placement.CPU, 1.2, False),
        ({}, Placement.CPU, 0.1, True),
        ({}, Placement.ELSEWHERE, 1.2, True),
        ({"draft": "small.gguf"}, Placement.CPU, 1.2, True),
        ({"target": "smollm2"}, Placement.CPU, 1.2, True),  # known to suit it
    ],
)
def test_a_draft_that_nobody_named_needs_cores_of_its_own(
    options: dict[str, str], placement: Placement, num_busy: float, has_draft: bool
) -> None:
    found = unless_busy(pair(**options), placement, num_busy)
    assert (found.draft is not None) == has_draft
    if not has_draft:
        assert "1.2 cores busy" in str(found.no_draft)
        assert "small.gguf" in str(found.no_draft)


@pytest.mark.parametrize(
    ("placement", "pass_s", "options", "known"),
    [
        (Placement.ELSEWHERE, {1: 0.01, 4: 0.02}, {}, [0.01, 0.02]),
        (Placement.CPU, {}, {}, None),
        (Placement.ELSEWHERE, {1: 0.01, 4: 0.02}, {"pace": 0.1}, None),  # takes another time
    ],
)
def test_what_loading_measured_of_a_device_is_known_before_the_first_text(
    placement: Placement, pass_s: dict[int, float], options: Any, known: list[float] | None
) -> None:
    own = pair(**options)
    vars(own)["profile"] = None
    loaded: Any = SimpleNamespace(
        placement=placement, pass_s=pass_s, widths=Widths(tuple(pass_s)), num_context=100
    )
    costs = _costs(own, cast(CorePlan, None), loaded, TableTarget(TableModel(seed=7)))
    assert costs.knows_plain == (known is not None)
    if known:
        assert [costs.forward_s(0), costs.forward_s(3)] == pytest.approx(known)


def test_one_width_of_a_device_is_timed_while_loading() -> None:
    own = pair()
    vars(own)["profile"] = None
    target = PacedTarget(TableTarget(TableModel(seed=7)), CostCurve.constant(0.002))
    loaded: Any = SimpleNamespace(
        placement=Placement.ELSEWHERE, pass_s={}, widths=Widths.only(32), num_context=100
    )
    costs = _costs(own, cast(CorePlan, None), loaded, target)
    assert costs.knows_plain
    assert 0.001 < costs.forward_s(0) == costs.forward_s(31)

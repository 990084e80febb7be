"""Whether a draft model is put to work: T(n) decides, and a target that is alone has all cores."""

from __future__ import annotations

from typing import Any

import pytest
from fakes import PROMPT
from server_fakes import TABLE, engine_on_tables

from duodec.backends.table import TableTarget
from duodec.core.sampling import Sampler, SamplingParams
from duodec.decoding.methods import method
from duodec.decoding.session import Session
from duodec.drafting.inline import InlineDrafter
from duodec.events import Finished
from duodec.planning.costs import Costs


def measured(*curve: tuple[int, float]) -> Costs:
    costs = Costs()
    for num_tokens, seconds in curve * 4:
        costs.observe_forward(seconds, num_tokens)
    return costs


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ((), None),
        (((0, 0.01),), None),
        (((0, 0.01), (4, 0.011)), True),
        (((0, 0.01), (4, 0.03)), False),
        (((0, 0.01), (1, 0.01)), None),
    ],
)
def test_flat_is_what_was_measured_to_be(
    curve: tuple[tuple[int, float], ...], expected: bool | None
) -> None:
    assert measured(*curve).is_flat() is expected


STEEP, FLAT = measured((0, 0.01), (4, 0.04)), measured((0, 0.01), (4, 0.01))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"shares_cores": False}, True),
        ({"shares_cores": True}, False),
        ({"shares_cores": True, "num_padded": 8}, True),
        ({"shares_cores": True, "num_padded": 8, "costs": STEEP}, False),
        ({"shares_cores": True, "costs": STEEP}, False),
        ({"shares_cores": True, "costs": FLAT}, True),
        ({"shares_cores": True, "pace_s": 0.1, "costs": STEEP}, True),
    ],
)
def test_the_curve_and_not_the_device_decides(options: dict[str, Any], expected: bool) -> None:
    engine = engine_on_tables()
    for name, value in options.items():
        setattr(engine, name, value)
    submitted: list[int] = []
    assert engine.drafter is not None
    submit = engine.drafter.submit
    engine.drafter.submit = lambda request: (submitted.append(1), submit(request))[1]  # type: ignore[method-assign]
    *_, last = engine.generate("hello", SamplingParams(seed=1), method="auto", max_tokens=30)
    assert isinstance(last, Finished)
    assert bool(submitted) == expected
    assert engine.can_draft == expected


@pytest.mark.parametrize("name", ["stream", "auto"])
def test_a_target_has_all_cores_while_nothing_is_drafted(name: str) -> None:
    """So that what is measured of plain decoding is plain decoding."""
    log: list[str] = []

    class Logged(TableTarget):
        def score(self, queries: Any) -> Any:
            log.append("score")
            return super().score(queries)

    class LoggedDrafter(InlineDrafter):
        def submit(self, request: Any) -> None:
            log.append("draft")
            super().submit(request)

        def cancel(self, slot: int) -> None:
            log.append("rest")
            super().cancel(slot)

    session = Session(
        target=Logged(TABLE),
        prompt=PROMPT,
        capacity=len(PROMPT) + 60,
        drafter=LoggedDrafter(TABLE.load()),
        sampler=Sampler(),
        shares_cores=True,
        prepare=lambda is_beside: log.append(f"beside {is_beside}"),
    )
    for _ in method(name).rounds(session):
        pass
    assert log[0] == "beside False", "the prompt is read by all"
    is_beside, changes = False, 0
    for line in log[1:]:
        if line.startswith("beside"):
            assert line != f"beside {is_beside}", "only changes are told"
            is_beside, changes = line == "beside True", changes + 1
        if line == "draft":
            assert is_beside
        if line == "rest":
            assert not is_beside
    assert changes >= (1 if name == "stream" else 2)

"""Each attack gets what a good server answers, and other answers are failures."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="pip install '.[server,dev]'")

from benchmarks.serving.servers import Served, ours
from stress import attackers, wire_attacks
from stress.attackers import ATTACKS, Family, unexpected

import duodec

_SMALL = str(Path(duodec.__file__).parent / "data" / "smollm2-135m-draft-q4_0.gguf")
_MAY_HEAR_NOTHING = (
    "endless_header", "endless_body",  # reset while they send, and lose the answer
    "many_choices",  # a busy machine takes longer for the first of them
)  # fmt: skip
_TIMES = ("--header-timeout", "2", "--body-timeout", "2")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with ours("-m", _SMALL, "--draft", "none", "--context", "1024", *_TIMES) as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("family", ATTACKS, ids=lambda family: family.name)
def test_an_attack_gets_good_answers(
    served: Served, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attackers, "LEAVE_S", 60.0)
    monkeypatch.setattr(wire_attacks, "DEAF_S", 2.0)
    outcome = asyncio.run(asyncio.wait_for(family.attack(*served.address), 120))
    assert not family.unexpected(outcome), outcome
    statuses = {word for word in outcome.split() if word.isdecimal()}
    assert statuses or not family.good or family.name in _MAY_HEAR_NOTHING, outcome


def test_other_answers_are_failures() -> None:
    good = ("expecting 100 200 stayed", "long_stop 400", "heavy_schema 429", "knocking left")
    bad = ("expecting 500 closed", "long_stop 200")
    ended = {"num_attackers": 3, **dict.fromkeys((*good, *bad), 2)}
    assert unexpected(ended) == list(bad)

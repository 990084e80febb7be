"""Constants are changed before they are read, and those that do nothing are found together."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from benchmarks.decoding import ablation
from benchmarks.decoding.ablation import Ablation
from fakes import ROOT

CHANGED = """\
from benchmarks.decoding.ablated import change_constants
change_constants({"FADE": 0.5})
from duodec.drafting import constants
from duodec.planning.trial import Rate, Trial
print(constants.FADE, Rate().fade, Trial().rate.fade)
"""


def test_a_constant_is_changed_before_anything_reads_it() -> None:
    done = subprocess.run([sys.executable, "-c", CHANGED], capture_output=True, cwd=ROOT)
    assert done.stdout == b"0.5 0.5 0.5\n", done.stderr
    unknown = CHANGED.replace("FADE", "NONE")
    done = subprocess.run([sys.executable, "-c", unknown], capture_output=True, cwd=ROOT)
    assert b"ValueError: no constants: NONE" in done.stderr


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """What was changed in each run. B makes a cell slower, and with D nothing runs."""
    done: list[dict[str, str]] = []

    def in_process(*command: str, **variables: str) -> Any:
        values = dict(text.split("=") for text in command[command.index("--") + 1 :])
        done.append(values)
        if "D" in values:
            raise subprocess.CalledProcessError(1, command)
        return {"one": 2.0, "other": 3.0 - 1.5 * ("B" in values)}

    monkeypatch.setattr(ablation, "in_process", in_process)
    return done


def test_constants_that_do_nothing_together_are_not_tried_alone(
    runs: list[Mapping[str, str]], tmp_path: Path
) -> None:
    made = Ablation(tmp_path / "kept.json", [], [])
    found = made.each(dict.fromkeys("ABCEFGH", 1))
    assert found == {
        name: {"one": 0.0, "other": -0.5 if name == "B" else 0.0} for name in "ABCEFGH"
    }
    assert ["".join(values) for values in runs] == [
        "",
        "ABCEFGH",
        "ABC",
        "A",
        "BC",
        "B",
        "C",
        "EFGH",
    ]
    again = Ablation(tmp_path / "kept.json", [], [])
    assert again.each(dict.fromkeys("ABCEFGH", 1)) == found
    assert len(runs) == 9, "only the base is computed again"


@pytest.mark.usefixtures("runs")
def test_a_value_with_which_nothing_runs_loses_all(tmp_path: Path) -> None:
    found = Ablation(tmp_path / "kept.json", [], []).changed({"D": 1})
    assert found == {"one": -1.0, "other": -1.0}


def test_twice_and_half_of_a_value() -> None:
    assert ablation._scaled(0.25, 2.0, "SHARE") == 0.5
    assert ablation._scaled(3, 0.5, "PASSES") == 2
    assert ablation._scaled(1, 0.5, "PASSES") == 1
    assert ablation._scaled((4, 0.5), 2.0, "BOTH") == (8, 1.0)
    assert ablation._scaled(0.9, 2.0, "FADE") == pytest.approx(0.8)

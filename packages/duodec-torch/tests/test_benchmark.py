"""Sections of the benchmark for a GPU: what fails, breaks or hangs costs itself only."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

sections = pytest.importorskip("benchmarks.gpu.gpu_sections", reason="needs the repository")


CURVE = {"card": {"points": "1:5"}}


def fail(note: Any) -> None:
    raise ValueError("not today")


def die(note: Any) -> None:
    note("before", 1)
    os._exit(3)


def hang(note: Any) -> None:
    """In code that takes whatever happens for an error of its own."""
    note("before", 2)
    while True:
        with suppress(Exception):
            time.sleep(60)


def in_parts(note: Any) -> None:
    sections.attempt(note, {"broken": lambda: 1 / 0, "whole": lambda: 5})
    note(f"{sections.CURVES} of it", CURVE)


SECTIONS: dict[str, tuple[Callable[[Any], Any], dict[str, Any]]] = {
    "fails": (fail, {"error": "ValueError: not today"}),
    "dies": (die, {"parts": {"before": 1}, "error": "its process ended with status 3"}),
    "hangs": (hang, {"parts": {"before": 2}, "error": "OutOfTime: its budget was spent"}),
    "has parts": (
        in_parts,
        {
            "parts": {
                "broken": {"error": "ZeroDivisionError: division by zero"},
                "whole": 5,
                "curves of it": CURVE,
            }
        },
    ),
    "works": (lambda note: {"a": 1}, {"found": {"a": 1}}),
}


def test_no_section_costs_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "_LEAST_S", 0.1)
    report = sections.Report(tmp_path, time.monotonic() + 60)
    for name, (work, _) in SECTIONS.items():
        report.section(name, work, 1.0)
    report.only = ("has", "work")
    report.section("was not asked for", fail, 1.0)
    report.only = ()
    report.end_s = time.monotonic()
    report.section("comes too late", fail, 1.0)
    found = json.loads((tmp_path / "gpu.json").read_text())
    for name, (_, expected) in SECTIONS.items():
        shown = {key: found[name][key] for key in found[name] if key not in ("seconds", "where")}
        assert shown == expected
        assert found[name]["seconds"] < 10
    assert "was not asked for" not in found
    assert found["comes too late"]["error"] == "no time was left"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["curves.json", "gpu.json"]
    assert json.loads((tmp_path / "curves.json").read_text()) == {"card": {"points": "1:5"}}

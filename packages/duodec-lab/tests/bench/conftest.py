"""Runs that warm up for a moment: no test reads times of a warm machine."""

from __future__ import annotations

import pytest

from duodec_lab.bench import run


@pytest.fixture(autouse=True)
def _short_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "WARM_UP_TOKENS", 4)

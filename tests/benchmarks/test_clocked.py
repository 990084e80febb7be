"""The simulation held against a clock: speeds by prompt in, bias and scatter out."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.decoding import clocked

REPLAYED = {"qa/1": (10.0, 1.0), "qa/2": (20.0, 1.0), "rag/3": (30.0, 1.0)}


def test_the_bias_is_the_ratio_of_sums_and_scatter_is_that_of_prompts() -> None:
    simulated = {prompt: (tokens * 1.1, 1.0) for prompt, (tokens, _) in REPLAYED.items()}
    found = clocked.Held("10", "ar", REPLAYED, simulated).figures()
    assert found["bias"] == pytest.approx(0.1)
    assert found["bias_95"] == pytest.approx([0.1, 0.1])
    assert found["scatter"] == pytest.approx(0, abs=1e-9)
    simulated["qa/1"] = (20.0, 1.0)
    assert clocked.Held("10", "ar", REPLAYED, simulated).figures()["scatter"] > 0.1


def test_prompts_that_one_bed_lacks_are_left_out() -> None:
    (held,) = clocked._held("10", {"ar": REPLAYED}, {"ar": {**REPLAYED, "qa/9": (1.0, 1.0)}})
    assert set(held.replayed) == set(REPLAYED)
    with pytest.raises(SystemExit, match="ar completed 1 prompts"):
        clocked._held("10", {"ar": REPLAYED}, {"ar": {"qa/1": (1.0, 1.0)}})


def test_it_is_drawn(tmp_path: Path) -> None:
    held = [clocked.Held(curve, "ar", REPLAYED, REPLAYED) for curve in ("10", "25")]
    clocked.drawing(held).write(tmp_path / "figure.svg")
    assert "simulated over replayed" in (tmp_path / "figure.svg").read_text()

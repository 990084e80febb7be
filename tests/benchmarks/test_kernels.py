"""Tests of the measurement of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.kernels.kernels import WIDTHS, deviation, measure, score, text_for
from benchmarks.made_models import Recurrent, Shape, write_gguf

from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.target import LlamaTarget

TINY = Shape(1, 256, 4, 2, 256, 512)
HYBRID = Shape(4, 256, 2, 1, 256, 512, recurrent=Recurrent(2, 2, 128))


@pytest.mark.parametrize(
    ("shape", "widths"),
    [(TINY, WIDTHS), (HYBRID, (1, 2, 4, 5, 8))],
    ids=["tiny", "hybrid"],
)
def test_passes_are_timed_that_a_model_can_be_taken_back_from(
    shape: Shape, widths: tuple[int, ...], tmp_path: Path
) -> None:
    path = write_gguf(tmp_path / "made.gguf", shape, "Q4_K_M")
    found = measure(path, 1, packs=True, repeats=1, start=8)
    assert tuple(found.forward_ms) == widths
    assert found.deviation == 0


def test_a_row_that_moves_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "made.gguf", HYBRID, "Q4_K_M")
    model = LlamaModel(path, num_gpu_layers=0)
    target = LlamaTarget(model, num_context=1024, num_threads=1)

    def moved(target: LlamaTarget, text: Sequence[int], draft: Sequence[int] = ()) -> object:
        rows = score(target, text, draft)
        return [row + (len(draft) == 7) for row in rows]

    monkeypatch.setattr("benchmarks.kernels.kernels.score", moved)
    assert deviation(target, text_for(model, 128), 1) == pytest.approx(1)

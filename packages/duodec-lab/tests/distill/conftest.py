"""Tiny models; tests that train skip where torch, transformers or gguf is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.tiny_models import write_dense

from duodec_lab.distill import judging


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A random target of two layers, and a draft with the first of them."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "target": write_dense(folder / "target.gguf", scale=6.0),
        "draft": write_dense(folder / "draft.gguf", scale=6.0, num_layers=1),
    }


@pytest.fixture
def few_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are judged by one prompt and four tokens of it, where the verdict does not matter."""
    monkeypatch.setattr(judging, "COUNTS", dict.fromkeys(judging.COUNTS, (1, 4)))

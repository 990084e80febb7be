"""Drafts that were trained with mask tokens: how they are recognised, and that no text depends on
them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from fakes.tiny_models import write_dense

from duodec import LLM, Delta, Finished, SamplingParams
from duodec.backends.drafter.process import ProcessDrafter
from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.drafts.parallel import (
    MASK_TOKEN,
    MOST_PARALLEL,
    NUM_PARALLEL,
    parallel,
)
from duodec.backends.llamacpp.drafts.recipe import LlamaRecipe
from duodec.core.draft import Draft
from duodec.core.drafters import RowQuery
from duodec.core.traits import Parallel
from duodec.errors import BadOption

PROMPT = "The harbour was quiet that morning, and the boats lay"


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The target's own weights, with and without what says that there are mask tokens."""
    folder = tmp_path_factory.mktemp("drafts")
    said = {MASK_TOKEN: 16, NUM_PARALLEL: 4}
    return {
        "plain": write_dense(folder / "plain.gguf", scale=6.0),
        "masks": write_dense(folder / "masks.gguf", scale=6.0, numbers=said),
    }


def found(path: Path, num_tokens: int | None = None) -> Parallel | None:
    return parallel(library.load(), path, num_tokens)


def test_a_file_says_how_it_was_trained(drafts: dict[str, Path]) -> None:
    assert found(drafts["masks"]) == Parallel(16, 4)
    assert found(drafts["masks"], 3) == Parallel(16, 3)
    assert found(drafts["masks"], 99) == Parallel(16, MOST_PARALLEL)
    assert found(drafts["masks"], 1) is None
    assert found(drafts["plain"]) is None
    with pytest.raises(BadOption, match=r"draft_parallel is 2, and plain\.gguf was not trained"):
        found(drafts["plain"], 2)


@pytest.mark.parametrize(
    ("name", "architecture", "num_vocab", "mask_token"),
    [
        ("PARD-Qwen2.5-0.5B-Q4_0.gguf", "qwen2", 151_936, 151_665),
        ("PARD-Qwen3-0.6B.Q8_0.gguf", "qwen3", 151_936, 151_670),
        ("pard_llama-3.2-1b.gguf", "llama", 128_256, 128_020),
        ("PARD-Qwen3-0.6B.gguf", "qwen3", 151_669, None),  # another vocabulary
        ("PARD2-Qwen3-8B.gguf", "qwen3", 151_936, None),  # reads the states of its target
        ("PARD-Gemma-3.gguf", "gemma3", 262_144, None),
        ("leopard-qwen2.gguf", "qwen2", 151_936, None),
        ("Qwen2.5-0.5B.gguf", "qwen2", 151_936, None),
    ],
)
def test_published_ones_are_known_by_name(
    tmp_path: Path, name: str, architecture: str, num_vocab: int, mask_token: int | None
) -> None:
    writer = gguf.GGUFWriter(tmp_path / name, architecture)
    writer.add_token_list(["a"] * num_vocab)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    expected = None if mask_token is None else Parallel(mask_token, 8)
    assert found(tmp_path / name) == expected


def test_rows_after_mask_tokens_change_no_other_row(drafts: dict[str, Path]) -> None:
    """Mask tokens are computed like a tree's, and nothing of them stays."""
    text = np.arange(300, 340, dtype=np.int32)
    models = [LlamaRecipe(drafts["masks"], 512, 1).load() for _ in range(2)]
    with_masks = Draft((5, 16, 16, 600), (-1, 0, 1, 0))
    (_, beside) = models[0].rows(RowQuery(0, text, with_masks, (2, 4)))
    other = models[1].rows(RowQuery(0, text, Draft((5, 600), (-1, 0)), (2,)))[0]
    assert np.abs(beside - other).max() < 1e-3 * np.abs(other).max()
    after = [
        model.rows(RowQuery(0, np.append(text, np.int32(5)), Draft(), (0,)))[0].copy()
        for model in models
    ]
    assert np.abs(after[0] - after[1]).max() < 1e-3 * np.abs(after[1]).max()
    for model in models:
        model.close()


@pytest.fixture(scope="module")
def engine(drafts: dict[str, Path]) -> Iterator[LLM]:
    with LLM.load(str(drafts["plain"]), draft=str(drafts["masks"])) as engine:
        yield engine


@pytest.mark.parametrize("method", ["sps:3", "duo", "stream", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_no_text_depends_on_mask_tokens(engine: LLM, method: str, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=48)
    (plain,) = engine.generate([PROMPT], params, method="ar")
    (drafted,) = engine.generate([PROMPT], params, method=method)
    assert drafted.tokens == plain.tokens


def test_a_drafter_that_dies_in_a_chain_changes_no_text(engine: LLM) -> None:
    params = SamplingParams(temperature=0.8, seed=4, max_tokens=64)
    (plain,) = engine.generate([PROMPT], params, method="ar")
    drafter = engine.loaded.drafter
    assert isinstance(drafter, ProcessDrafter)
    last, num_deltas = None, 0
    for last in engine.stream(PROMPT, params, method="stream"):
        num_deltas += isinstance(last, Delta)
        if num_deltas == 3 and drafter.pid:
            os.kill(drafter.pid, signal.SIGKILL)
            num_deltas += 1
    assert isinstance(last, Finished)
    assert last.tokens == plain.tokens

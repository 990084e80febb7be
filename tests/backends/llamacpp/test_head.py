"""A draft's head: which rows are computed, with which bits, and that no text depends on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import duodec
from duodec import LLM, Delta, Finished, SamplingParams
from duodec.backends.drafter.process import ProcessDrafter
from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.drafts import head
from duodec.backends.llamacpp.drafts.draft import LlamaDraftModel
from duodec.backends.llamacpp.drafts.head import Frequency, Head, frequency
from duodec.backends.llamacpp.drafts.recipe import LlamaRecipe
from duodec.backends.llamacpp.model import LlamaModel
from duodec.core.draft import Draft
from duodec.core.protocols import RowQuery
from duodec.errors import BadOption

SHIPPED = Path(duodec.__file__).parent / "data" / "smollm2-135m-draft-q4_0.gguf"
NUM_VOCAB, NUM_SPECIAL = 49_152, 17
COMMON = np.arange(300, 340, dtype=np.int32)
RARE = np.arange(45_000, 45_040, dtype=np.int32)
TREE = Draft((5, 600, 7), (-1, 0, -1))


def known(most: int | None) -> Frequency:
    found = frequency(library.load(), SHIPPED, most)
    assert found is not None
    return found


def needs_ordered_heads() -> None:
    lib = library.load()
    if not library.kernels(lib) or not hasattr(lib._lib, "duodec_order_rows"):
        pytest.skip("this build of llama.cpp has no kernels of ours that order a head")


# --- which rows


@pytest.mark.parametrize("most", [1, 2000])
def test_byte_pairs_are_frequent_by_their_numbers_and_control_tokens_always(most: int) -> None:
    found = known(most)
    model = LlamaModel(SHIPPED, vocabulary_only=True, num_gpu_layers=0)
    assert set(model.controls.tokens.values()) <= set(np.flatnonzero(found.is_frequent).tolist())
    model.close()
    assert found.num == most + NUM_SPECIAL
    assert found.is_frequent[: found.num].all()


@pytest.mark.parametrize("most", [0, NUM_VOCAB, NUM_VOCAB - NUM_SPECIAL, None])
def test_a_head_that_would_be_whole_has_no_order(most: int | None) -> None:
    """By default that of a small vocabulary."""
    assert frequency(library.load(), SHIPPED, most) is None


def test_a_large_vocabulary_has_a_part_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "MANY_TOKENS", NUM_VOCAB - 1)
    assert known(None).num == 32_768 + NUM_SPECIAL


def test_a_file_that_cannot_be_read_is_left_to_the_loading(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF?")
    assert frequency(library.load(), tmp_path / "broken.gguf", 10) is None


def test_an_order_holds_each_row_once_the_frequent_ones_first() -> None:
    found = known(2000)
    assert np.array_equal(np.sort(found.order), np.arange(NUM_VOCAB))
    assert found.is_frequent[found.order[: found.num]].all()


def test_a_text_of_other_tokens_needs_all_rows() -> None:
    found = known(2000)
    assert found.num_rows(COMMON) == found.num
    assert found.num_rows(RARE) == NUM_VOCAB
    assert found.num_rows(np.concatenate([RARE, np.tile(COMMON, 10)])) == found.num  # long ago


# --- rows


def rows(model: LlamaDraftModel, text: np.ndarray) -> np.ndarray:
    return np.array(model.rows(RowQuery(0, text, TREE, (0, 1, 2, 3))))


@pytest.mark.parametrize("most", [1, 2000, 30_001])
def test_rows_of_the_head_have_the_bits_that_they_have_in_the_whole(most: int) -> None:
    needs_ordered_heads()
    whole = LlamaRecipe(SHIPPED, 512, 2, num_head=0).load()
    part = LlamaRecipe(SHIPPED, 512, 1, num_head=most).load()
    is_frequent = known(most).is_frequent
    assert isinstance(whole, LlamaDraftModel)
    assert isinstance(part, LlamaDraftModel)
    for text in (COMMON, RARE, COMMON[:-1]):  # the model goes on in the other way at once
        expected, found = rows(whole, text), rows(part, text)
        is_computed = is_frequent if is_frequent[text].all() else np.ones(NUM_VOCAB, dtype=bool)
        assert np.array_equal(found[:, is_computed], expected[:, is_computed])
        assert (found[:, ~is_computed] == -np.inf).all()
    for model in (whole, part):
        model.close()
        model.vocabulary.close()


def test_two_drafts_and_a_target_in_one_process_have_heads_of_their_own() -> None:
    needs_ordered_heads()
    few, more = (LlamaRecipe(SHIPPED, 512, 1, num_head=most).load() for most in (300, 2000))
    target = LlamaRecipe(SHIPPED, 512, 1, num_head=0).load()
    counts = []
    for model in (few, more, target, few):
        assert isinstance(model, LlamaDraftModel)
        counts.append(int(np.isfinite(rows(model, COMMON[:20] - 100)[0]).sum()))
    assert counts == [300 + NUM_SPECIAL, 2000 + NUM_SPECIAL, NUM_VOCAB, 300 + NUM_SPECIAL]
    for model in (few, more, target):
        model.close()
        model.vocabulary.close()


def test_other_kernels_compute_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "kernels", lambda lib: "")
    whole = Head(library.load(), known(300))
    assert whole.load(lambda: "a model") == "a model"
    whole.fit(COMMON)


# --- texts


@pytest.fixture(scope="module", params=[40, pytest.param(300, marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest) -> Iterator[LLM]:
    needs_ordered_heads()
    with LLM.load(str(SHIPPED), draft=str(SHIPPED), draft_head=request.param) as engine:
        yield engine


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sps:3", "duo", "stream", "sps-rejection", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_no_text_depends_on_the_head(engine: LLM, method: str, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=48)
    prompt = "The harbour was quiet that morning, and the boats lay"
    (plain,) = engine.generate([prompt], params, method="ar")
    (found,) = engine.generate([prompt], params, method=method)
    if method != "sps-rejection" or temperature == 0:
        assert found.tokens == plain.tokens
    assert len(found.tokens) == len(plain.tokens)


def test_a_drafter_that_dies_changes_no_text(engine: LLM) -> None:
    params = SamplingParams(temperature=0.8, seed=4, max_tokens=64)
    (plain,) = engine.generate(["The boats lay still"], params, method="ar")
    drafter = engine.drafter
    assert isinstance(drafter, ProcessDrafter)
    last, num_deltas = None, 0
    for last in engine.stream("The boats lay still", params, method="stream"):
        num_deltas += isinstance(last, Delta)
        if num_deltas == 3 and drafter.pid:
            os.kill(drafter.pid, signal.SIGKILL)
            num_deltas += 1
    assert isinstance(last, Finished)
    assert last.tokens == plain.tokens


def test_a_head_of_less_than_none_is_refused() -> None:
    with pytest.raises(BadOption, match="draft_head is -1"):
        LLM.load(draft_head=-1)

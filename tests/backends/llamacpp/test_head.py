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
from duodec.core.drafters import RowQuery
from duodec.errors import BadOption

SHIPPED = Path(duodec.__file__).parent / "data" / "smollm2-135m-draft-q4_0.gguf"
NUM_VOCAB, NUM_SPECIAL = 49_152, 17
ENDS = (0, 2)  # of a text and of a turn
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


@pytest.mark.parametrize("most", [0, NUM_VOCAB, NUM_VOCAB - NUM_SPECIAL])
def test_a_head_that_would_be_whole_has_no_order(most: int) -> None:
    assert frequency(library.load(), SHIPPED, most) is None


def test_a_large_vocabulary_has_a_part_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert known(None).num == NUM_VOCAB // 3 + NUM_SPECIAL
    monkeypatch.setattr(head, "MANY_TOKENS", NUM_VOCAB)
    assert frequency(library.load(), SHIPPED, None) is None


def test_a_file_that_cannot_be_read_is_left_to_the_loading(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF?")
    assert frequency(library.load(), tmp_path / "broken.gguf", 10) is None


def test_an_order_holds_each_row_once_the_frequent_ones_first() -> None:
    found = known(2000)
    assert np.array_equal(np.sort(found.order), np.arange(NUM_VOCAB))
    assert found.is_frequent[found.order[: found.num]].all()


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (COMMON, 0.0),
        (RARE, 1.0),
        (np.concatenate([COMMON, RARE]), 0.5),
        (np.concatenate([COMMON, np.repeat(RARE[:2], 20)]), 2 / 80),
        (np.concatenate([RARE, np.tile(COMMON, 10)]), 0.0),  # long ago
        (COMMON[:0], 0.0),
    ],
)
def test_a_token_is_new_to_a_text_once(text: np.ndarray, share: float) -> None:
    assert known(2000).new_share(text) == pytest.approx(share)


# --- rows


TILE = 16  # rows that are packed together
MIXED = np.concatenate([np.tile(COMMON, 3), RARE[:9], RARE[3:5], RARE[30:32]])


def computed(frequency: Frequency, text: np.ndarray) -> np.ndarray:
    """By token, whether its row is computed after the first text of a model."""
    if frequency.new_share(text) > 0.2:
        return np.ones(NUM_VOCAB, dtype=bool)
    tiles = np.argsort(frequency.order) // TILE
    rare = frequency.rare(text)
    return (tiles * TILE < frequency.num) | np.isin(tiles, tiles[rare])


def is_finite(model: object, text: np.ndarray) -> np.ndarray:
    assert isinstance(model, LlamaDraftModel)
    return np.isfinite(rows(model, text)[0])


def rows(model: LlamaDraftModel, text: np.ndarray) -> np.ndarray:
    return np.array(model.rows(RowQuery(0, text, TREE, (0, 1, 2, 3))))


@pytest.mark.parametrize("most", [1, 2000, 30_001])
@pytest.mark.parametrize("text", [COMMON, RARE, MIXED])
def test_rows_of_the_head_have_the_bits_that_they_have_in_the_whole(
    most: int, text: np.ndarray
) -> None:
    needs_ordered_heads()
    whole = LlamaRecipe(SHIPPED, 512, 2, num_head=0).load()
    part = LlamaRecipe(SHIPPED, 512, 1, num_head=most).load()
    assert isinstance(whole, LlamaDraftModel)
    assert isinstance(part, LlamaDraftModel)
    is_computed = computed(known(most), text)
    assert is_computed[text].all()
    assert is_computed[known(most).is_frequent].all()
    for width in (1, 4):
        query = RowQuery(0, text, TREE, tuple(range(width)))
        expected, found = (np.array(model.rows(query)) for model in (whole, part))
        assert np.array_equal(found[:, is_computed], expected[:, is_computed])
        assert (found[:, ~is_computed] == -np.inf).all()
    for model in (whole, part):
        model.close()
        model.vocabulary.close()


def test_a_head_follows_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not frequent is computed from when it came, all where little else comes, and what
    came long ago is left out again."""
    needs_ordered_heads()
    monkeypatch.setattr(head, "MOST_RARE", 3)
    model = LlamaRecipe(SHIPPED, 512, 1, num_head=2000).load()
    frequency = known(2000)
    text = np.tile(COMMON, 4)
    assert np.array_equal(is_finite(model, text), computed(frequency, text))
    far = np.array([10_000, 20_000, 30_000, 40_000], dtype=np.int32)
    for i in range(len(far)):  # the first one is forgotten as the fourth comes
        longer = np.concatenate([text, far[: i + 1]])
        lasting = np.concatenate([text, far[max(0, i - 2) : i + 1]])
        assert np.array_equal(is_finite(model, longer), computed(frequency, lasting))
    other = np.concatenate([COMMON[::-1], far[:1]])  # it has none of that text's tokens
    assert np.array_equal(is_finite(model, other), computed(frequency, other))
    assert is_finite(model, RARE).all()
    assert np.array_equal(is_finite(model, text[:-1]), computed(frequency, text[:-1]))
    model.close()
    model.vocabulary.close()


def test_two_drafts_and_a_target_in_one_process_have_heads_of_their_own() -> None:
    needs_ordered_heads()
    few, more = (LlamaRecipe(SHIPPED, 512, 1, num_head=most).load() for most in (300, 2000))
    target = LlamaRecipe(SHIPPED, 512, 1, num_head=0).load()
    counts = [int(is_finite(model, COMMON[:20] - 100).sum()) for model in (few, more, target, few)]
    assert counts == [320, 2032, NUM_VOCAB, 320]  # whole tiles of 317 and 2017
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
    params = SamplingParams(
        temperature=temperature, seed=3, max_tokens=48, logit_bias=dict.fromkeys(ENDS, -100)
    )
    prompt = "The harbour was quiet that morning, and the boats lay"
    (plain,) = engine.generate([prompt], params, method="ar")
    (found,) = engine.generate([prompt], params, method=method)
    if method != "sps-rejection" or temperature == 0:
        assert found.tokens == plain.tokens
    assert len(found.tokens) == len(plain.tokens)


def test_a_drafter_that_dies_changes_no_text(engine: LLM) -> None:
    params = SamplingParams(temperature=0.8, seed=4, max_tokens=64)
    (plain,) = engine.generate(["The boats lay still"], params, method="ar")
    drafter = engine.loaded.drafter
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

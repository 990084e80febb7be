"""A draft's weights are packed in fewer bits: it guesses nearly the same, nobody else changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import duodec
from duodec import LLM, SamplingParams
from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.drafts.recipe import LlamaRecipe
from duodec.backends.llamacpp.model import LlamaModel
from duodec.core.draft import Draft
from duodec.core.protocols import RowQuery
from duodec.errors import BadOption

SHIPPED = Path(duodec.__file__).parent / "data" / "smollm2-135m-draft-q4_0.gguf"
_FORMATS = {"q8_0": 7, "q5_1": 9, "f16": 1, "q4_1": 3}  # llama_ftype
TREE = Draft((5, 600, 7), (-1, 0, -1))
TEXT = np.array([1, 28, 905, 314, 260, 28, 905], dtype=np.int32)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The shipped draft in formats of more bits, which add no information."""
    lib = library.load()
    if not library.kernels(lib) or not hasattr(lib._lib, "duodec_pack_small"):
        pytest.skip("this build of llama.cpp has no kernels of ours that pack smaller weights")
    folder, made = tmp_path_factory.mktemp("formats"), {"q4_0": SHIPPED}
    for name, number in _FORMATS.items():
        made[name] = folder / f"{name}.gguf"
        params = lib.llama_model_quantize_default_params()
        params.ftype, params.allow_requantize, params.pure = number, True, True
        status = lib.llama_model_quantize(str(SHIPPED).encode(), str(made[name]).encode(), params)
        assert status == 0
    return made


def rows(path: Path, *, is_small: bool, num_head: int | None = 0) -> np.ndarray:
    model = LlamaRecipe(path, 64, 1, num_head=num_head, has_small_weights=is_small).load()
    try:
        return np.stack(model.rows(RowQuery(0, TEXT, TREE, (0, 1, 2, 3))))
    finally:
        model.close()


def likelihoods(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True))


@pytest.mark.parametrize("name", ["q8_0", "q5_1", "f16"])
def test_large_weights_are_rounded_and_say_nearly_the_same(
    name: str, files: dict[str, Path]
) -> None:
    whole, small = rows(files[name], is_small=False), rows(files[name], is_small=True)
    assert not np.array_equal(small, whole)
    overlap = np.minimum(likelihoods(small), likelihoods(whole)).sum(-1)
    assert overlap.mean() > 0.5, "though the draft was trained for the values of another format"
    assert overlap.min() > 0.3


@pytest.mark.parametrize("name", ["q4_0", "q4_1"])
def test_weights_of_four_bits_stay_as_they_are(name: str, files: dict[str, Path]) -> None:
    path = files[name]
    assert np.array_equal(rows(path, is_small=True), rows(path, is_small=False))


def test_part_of_a_head_is_rounded_alike(files: dict[str, Path]) -> None:
    whole = rows(files["q8_0"], is_small=True)
    part = rows(files["q8_0"], is_small=True, num_head=2000)
    is_computed = np.isfinite(part)
    assert 2000 <= is_computed.sum(-1).min() < 4000
    assert np.array_equal(part[is_computed], whole[is_computed])


def test_what_is_loaded_later_has_its_own_weights(files: dict[str, Path]) -> None:
    before = rows(files["q8_0"], is_small=False)
    rows(files["q8_0"], is_small=True)
    with pytest.raises(OSError, match="none"):
        LlamaModel(files["q8_0"].with_name("none.gguf"), num_gpu_layers=0, has_small_weights=True)
    assert np.array_equal(rows(files["q8_0"], is_small=False), before)


def test_llama_cpps_own_kernels_have_the_files_weights(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = rows(files["q8_0"], is_small=False)
    monkeypatch.setattr(library, "kernels", lambda lib: "")
    model = LlamaModel(files["q8_0"], num_gpu_layers=0, has_small_weights=True)
    model.close()
    monkeypatch.undo()
    assert np.array_equal(rows(files["q8_0"], is_small=False), expected)


@pytest.fixture(scope="module", params=["auto", "file"])
def engine(request: pytest.FixtureRequest, files: dict[str, Path]) -> Iterator[LLM]:
    with LLM.load(
        str(SHIPPED), draft=str(files["q8_0"]), draft_weights=request.param, pace=0.02
    ) as engine:
        yield engine


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_plain_decodings(engine: LLM, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=24)
    (plain,), (drafted,) = (
        engine.generate("The water cycle begins", params, method=name) for name in ("ar", "stream")
    )
    assert drafted.text == plain.text
    assert drafted.stats.drafter_restarts == 0
    assert drafted.stats.num_from_model > 0, "the same model, rounded"


def test_only_two_kinds_are_known() -> None:
    with pytest.raises(BadOption, match="unknown draft weights 'big'"):
        LLM.load(draft_weights="big")

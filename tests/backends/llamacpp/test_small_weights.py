"""A draft's weights are packed in fewer bits: it guesses nearly the same, nobody else changes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fakes.instruction_sets import SETS, InstructionSet
from fakes.kernel_probes import KERNELS

import duodec
from duodec import LLM, SamplingParams
from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.drafts import small_weights
from duodec.backends.llamacpp.drafts.recipe import LlamaRecipe
from duodec.backends.llamacpp.model import LlamaModel
from duodec.core.draft import Draft
from duodec.core.drafters import RowQuery
from duodec.errors import BadOption
from duodec.loading import drafter

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


# --- a block of weights, under the sanitizer


@dataclass(frozen=True)
class Format:
    """What the codes of a format stand for, and how much of the error of equal steps remains."""

    values: np.ndarray
    error: float


_IQ4_NL = Format(
    np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]), 0.9
)
_FORMAT_OF = {20: _IQ4_NL, 2: Format(np.arange(-8, 8), 0.98)}  # by ggml's number; Q4_0
_PROBE = Path(__file__).with_name("round_probe.cpp")
_NATIVE = InstructionSet("what this processor has", ("-march=native",))
_TRIED = (SETS["plain"], SETS["avx2"], _NATIVE)


class Rounding:
    """Blocks of weights, (n, 32), as they are rounded by one instruction set."""

    def __init__(self, program: Path) -> None:
        self._program = program
        self.format = _FORMAT_OF[int(np.frombuffer(self._run(b""), np.int32)[0])]

    def __call__(self, blocks: np.ndarray) -> np.ndarray:
        out = self._run(blocks.astype(np.float32).tobytes())[4:]
        found = np.frombuffer(out, np.dtype([("scale", "<f4"), ("codes", "u1", 16)]))
        codes = np.concatenate([found["codes"] & 15, found["codes"] >> 4], axis=1)
        return np.asarray(found["scale"][:, None] * self.format.values[codes])

    def _run(self, sent: bytes) -> bytes:
        done = subprocess.run([self._program], input=sent, capture_output=True, check=True)
        assert not done.stderr, done.stderr.decode()
        return done.stdout


@pytest.fixture(scope="module", params=_TRIED, ids=lambda tried: tried.prints)
def rounded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rounding:
    """What blocks of weights stand for once they are rounded by one instruction set."""
    if missing := request.param.missing():
        pytest.skip(missing)
    program = tmp_path_factory.mktemp("probe") / "round"
    sanitizer = ("-fsanitize=undefined,float-cast-overflow", "-fno-sanitize-recover=all")
    flags = ("-std=c++17", *request.param.options, "-O1", *sanitizer, f"-I{KERNELS}")
    subprocess.run([*request.param.compiler(), *flags, "-o", program, _PROBE], check=True)
    return Rounding(program)


def error(blocks: np.ndarray, others: np.ndarray) -> float:
    return float(np.sqrt(((others - blocks) ** 2).sum() / (blocks**2).sum()))


@pytest.mark.parametrize("size", [1e-6, 0.02, 300.0])
def test_a_block_is_rounded_better_than_to_equal_steps(size: float, rounded: Rounding) -> None:
    blocks = np.random.default_rng(0).normal(0, size, (500, 32)).astype(np.float32)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)
    step = largest / -8  # Q4_0
    equal_steps = step * np.clip(np.round(blocks / step), -8, 7)
    assert error(blocks, rounded(blocks)) < rounded.format.error * error(blocks, equal_steps)


def test_values_of_the_format_stay(rounded: Rounding) -> None:
    dice, values = np.random.default_rng(1), np.tile(rounded.format.values, 2)
    blocks = np.array([dice.permutation(values) for _ in range(50)]) * 0.003
    assert rounded(blocks) == pytest.approx(blocks, rel=1e-5)


def test_what_is_no_number_stays_in_its_block(rounded: Rounding) -> None:
    blocks = np.random.default_rng(2).normal(0, 1, (6, 32)).astype(np.float32)
    expected = rounded(blocks)
    blocks[1, 3], blocks[2, 5], blocks[3, 31], blocks[4] = np.nan, np.inf, -np.inf, 0
    found = rounded(blocks)
    assert np.array_equal(found[[0, 5]], expected[[0, 5]])
    assert not found[4].any()


# --- whole drafts


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


@pytest.mark.parametrize("kernels", ["", "ours, of an earlier build"])
def test_other_kernels_are_not_asked(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "kernels", lambda lib: kernels)
    lib = library.load() if not kernels else SimpleNamespace(_lib=SimpleNamespace())
    monkeypatch.setattr(small_weights, "ggml", lambda *_: pytest.fail("they are"))
    with small_weights.small_weights(lib):
        pass


@pytest.mark.parametrize(("kind", "is_small"), [("auto", True), ("file", False)])
def test_the_drafter_is_told(kind: str, is_small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Told(Exception):
        pass

    recipes: list[LlamaRecipe] = []

    def start(recipe: LlamaRecipe, **_: object) -> None:
        recipes.append(recipe)
        raise Told

    monkeypatch.setattr(drafter, "ProcessDrafter", start)
    with pytest.raises(Told):
        LLM.load(str(SHIPPED), draft=str(SHIPPED), draft_weights=kind)
    assert [recipe.has_small_weights for recipe in recipes] == [is_small]


@pytest.fixture(scope="module", params=["auto", "file"])
def engine(request: pytest.FixtureRequest, files: dict[str, Path]) -> Iterator[LLM]:
    with LLM.load(
        str(SHIPPED), draft=str(files["q8_0"]), draft_weights=request.param, pace=0.06
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

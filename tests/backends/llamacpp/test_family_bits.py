"""Every family in several formats: no logit moves with the width of a forward pass, and what our
kernels leave to llama.cpp's is what the documentation says.

Weights are packed, or stay mapped, in which case llama.cpp's kernels compute them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import gguf
import numpy as np
import pytest
from fakes.families import FAMILIES, VOCAB, write_family
from fakes.tiny_models import requantised

from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.checks.operations import Operation, left_to_llama_cpp
from duodec.backends.llamacpp.model import LlamaModel, open_context
from duodec.backends.llamacpp.target.context import Batch, logits
from duodec.backends.llamacpp.target.recurrent import NUM_SNAPSHOTS
from duodec.backends.tree_cache import Entry

NUM_ROWS, START = 64, 45
TOKENS = np.random.default_rng(3).integers(10, VOCAB, START + NUM_ROWS)
# one whose matrices all are packed, one with matrices in three dimensions, and two with states
QUICK = [(name, "F16") for name in ("Llama", "DeepSeek 3", "Mamba 2", "Qwen 3.5")]
CASES = [
    pytest.param((name, kind), id=f"{name}-{kind}", marks=() if is_quick else pytest.mark.slow)
    for name in FAMILIES
    for kind in ("F16", "BF16", "Q8_0", "Q4_K")
    for is_quick in [(name, kind) in QUICK]
]


class Passes:
    """Forward passes over one text, each of whose tokens gives a row."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self._batch = Batch(model.lib, START + NUM_ROWS, 1)
        self.handle = open_context(
            model,
            num_context=256,
            num_sequences=1,
            num_threads=1,
            num_batch=START + NUM_ROWS,
            max_rows=START + NUM_ROWS,
            is_width_exact=True,
            num_snapshots=NUM_SNAPSHOTS if model.is_recurrent else 0,
        )

    def forget(self) -> None:
        lib = self._model.lib
        lib.llama_memory_clear(lib.llama_get_memory(self.handle), True)

    def rows(self, begin: int, end: int) -> np.ndarray:
        self._batch.fill([Entry(int(TOKENS[i]), i, (0,), i - begin) for i in range(begin, end)])
        assert self._model.lib.llama_decode(self.handle, self._batch.struct) == 0
        return logits(self._model, self.handle, end - begin).copy()


@pytest.fixture(scope="module", params=CASES)
def file(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str, Path]:
    """The family, the format, and a model of both."""
    name, kind = request.param
    source = write_family(tmp_path_factory.mktemp("models") / "model.gguf", name, kind="F32")
    return name, kind, requantised(source, kind)


@pytest.fixture(params=[True, False], ids=["packed", "mapped"])
def model(request: pytest.FixtureRequest, file: tuple[str, str, Path]) -> Iterator[LlamaModel]:
    model = LlamaModel(file[2], num_gpu_layers=0, packs=request.param)
    if not library.kernels(model.lib):
        pytest.skip("llama.cpp's own kernels are used here")
    yield model
    model.close()


def test_no_logit_moves_with_the_width(model: LlamaModel) -> None:
    passes = Passes(model)
    expected = np.vstack([passes.rows(i, i + 1) for i in range(len(TOKENS))])[START:]
    assert len(np.unique(expected, axis=0)) == NUM_ROWS
    moved = {}
    for width in range(1, NUM_ROWS + 1):
        passes.forget()
        passes.rows(0, START)
        found = passes.rows(START, START + width)
        if not np.array_equal(found, expected[:width]):
            moved[width] = float(np.abs(found - expected[:width]).max())
    model.lib.llama_free(passes.handle)
    assert not moved, "by so much, by width"


def test_what_is_left_to_llama_cpp_is_known(file: tuple[str, str, Path]) -> None:
    name, kind, path = file
    packed, mapped = (_left(path, packs=packs) for packs in (True, False))
    assert sorted({operation.name for operation in packed}) == list(FAMILIES[name].left)
    # of mapped weights all are left, in this format most of them
    types = Counter(_types(path)[operation.source] for operation in mapped - packed)
    assert types[kind] > len(types)


def _left(path: Path, *, packs: bool) -> frozenset[Operation]:
    with closing(LlamaModel(path, num_gpu_layers=0, packs=packs)) as model:
        if not library.kernels(model.lib):
            pytest.skip("llama.cpp's own kernels are used here")
        return left_to_llama_cpp(model)


def _types(path: Path) -> dict[str, str]:
    """Of all tensors, as the file names them."""
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}

"""Whole models in each format that our kernels pack: no logit moves, however it is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from fakes.quantised import FORMATS
from fakes.tiny_models import is_written, requantised, write_dense, write_mixture

from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.gguf.header import Header
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.backends.llamacpp.target.trees import LlamaScores
from duodec.core.draft import Draft
from duodec.core.targets import Query

NUM_ROWS, START = 64, 45
TOKENS = np.random.default_rng(3).integers(10, 1000, START + NUM_ROWS).astype(np.int32)
PIECES = (1, 7, 33)  # tokens that a prompt is read by


def dense(path: Path) -> Path:
    return write_dense(path, kind="F32", width=256)


def mixture(path: Path) -> Path:
    return write_mixture(path, num_vocab=1024, width=256, inner=256)


@pytest.fixture(params=[dense, mixture], scope="module")
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    write: Callable[[Path], Path] = request.param
    return write(tmp_path_factory.mktemp("models") / "model.gguf")


WRITTEN = [kind for kind in FORMATS if is_written(kind.name)]


@pytest.fixture(params=WRITTEN, ids=lambda kind: kind.name)
def model(request: pytest.FixtureRequest, source: Path) -> Iterator[LlamaModel]:
    path = requantised(source, request.param.name)
    assert _types(path) == {request.param.type}
    model = LlamaModel(path, num_gpu_layers=0)
    if not library.kernels(model.lib):
        pytest.skip("llama.cpp's own kernels are used here")
    yield model
    model.close()
    path.unlink()


def _types(path: Path) -> set[int]:
    """Of the matrices that are packed; norms and a mixture's router stay in float32."""
    header = Header.read(library.load(), path)
    assert header is not None
    kept = ("norm.weight", "gate_inp.weight")
    return {number for name, number in header.types.items() if not name.endswith(kept)}


def score(target: LlamaTarget, end: int, num_drafted: int = 0) -> list[np.ndarray]:
    draft = Draft.chain(TOKENS[end : end + num_drafted].tolist())
    (scores,) = target.score([Query(0, TOKENS[:end], draft)])
    assert isinstance(scores, LlamaScores)
    return [row.copy() for row in scores.rows]


@pytest.mark.slow
def test_no_logit_moves_with_width_threads_or_parts_of_a_prompt(model: LlamaModel) -> None:
    expected: list[np.ndarray] = []  # plain decoding, a token at a time
    for num_threads, step in ((2, 7), (1, 1)):
        with closing(LlamaTarget(model, num_context=512, num_threads=num_threads)) as target:
            if not expected:
                expected += [score(target, end)[0] for end in range(START, len(TOKENS))]
                assert len({row.tobytes() for row in expected}) == NUM_ROWS
            for width in range(1, NUM_ROWS + 1, step):
                found = score(target, START, width - 1)
                assert np.array_equal(found, expected[:width]), (width, num_threads)
            for piece in PIECES:
                score(target, 1)  # forgets the rest
                for end in range(1 + piece, START, piece):
                    score(target, end)
                found = score(target, START, NUM_ROWS - 1)
                assert np.array_equal(found, expected), (f"pieces of {piece}", num_threads)

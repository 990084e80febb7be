"""Models that are made for the comparison of embeddings, and what is compared."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

from benchmarks.made_embedders import SHAPES, Shape, write_embedder
from benchmarks.serving import embeddings

from duodec.backends.llamacpp.embedding.embedder import LlamaEmbedder
from duodec.errors import BadOption
from duodec.loading.config import EngineConfig
from duodec.loading.embedding import load_embedder
from duodec.loading.resolve import resolve_target


@pytest.mark.parametrize("name", ["tiny-encoder", "tiny-reranker", "tiny-decoder"])
@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_models_are_made(tmp_path: Path, name: str, kind: str) -> None:
    path = write_embedder(tmp_path / "model.gguf", name, kind)
    found, _ = load_embedder(resolve_target(EngineConfig(target=str(path))))
    assert isinstance(found, LlamaEmbedder)
    with closing(found):
        assert found.ranks is (name == "tiny-reranker")
        assert found.num_dims == (1 if found.ranks else SHAPES[name].width)
        texts = embeddings.texts(6, 1)
        tokens = [found.tokens_of(text) for text in texts]
        rows = found.rows(tokens)
        assert np.isfinite(rows).all()
        assert len({row.tobytes() for row in rows}) == len(texts)
        words = [len(text.split()) for text in texts]
        assert words == list(embeddings._LENGTHS)
        if not SHAPES[name].is_decoder:  # a token a word
            assert [len(one) - 2 for one in tokens] == words


def test_an_unknown_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="choose from: tiny-encoder"):
        write_embedder(tmp_path / "model.gguf", "bge", "F16")
    assert not Shape(1, 64, 2, 64, 2).is_decoder


def test_distances_are_those_of_rows_of_length_1() -> None:
    a = np.array([[3.0, 4.0], [0.0, 2.0]])
    assert embeddings.distance(a, 7 * a) == {"absolute": 0.0, "relative": 0.0}
    found = embeddings.distance(a, np.array([[3.0, 4.0], [2.0, 0.0]]))
    assert found == {"absolute": 1.0, "relative": pytest.approx(2**0.5, abs=0.01)}

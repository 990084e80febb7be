"""Rows of texts in llama.cpp: those of NumPy and of llama-cpp-python, in any company."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes.pooled_models import (
    CLS,
    LAST,
    MEAN,
    PIECES,
    RANK,
    RERANK,
    bert_row,
    write_bert,
    write_decoder,
)
from fakes.tiny_models import write_dense

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")

from duodec import LLM
from duodec.backends.llamacpp.embedding.embedder import LlamaEmbedder
from duodec.backends.loaded import Embedder, normalised
from duodec.errors import ContextExceeded, DuodecError, ModelUnreadable
from duodec.loading.config import EngineConfig
from duodec.loading.embedding import load_embedder, use_of
from duodec.loading.resolve import resolve_target

TEXTS = ["why is the sky blue", "hello", "a " * 50, "日本 the é sky?", "x", "[SEP] is text"]
Write = Callable[..., Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Writes each model once, so that it is tried once."""
    folder = tmp_path_factory.mktemp("models")

    @cache
    def make(write: Write, *arguments: Any, **options: Any) -> Path:
        return write(folder / f"{len(list(folder.iterdir()))}.gguf", *arguments, **options)

    return make


@contextmanager
def opened(path: Path, **options: Any) -> Iterator[LlamaEmbedder]:
    config = EngineConfig(target=str(path), **options)
    found, _ = load_embedder(resolve_target(config))
    assert isinstance(found, LlamaEmbedder)
    with closing(found):
        yield found


def tokens_of(embedder: Embedder) -> list[list[int]]:
    if embedder.ranks:
        return [embedder.pair_tokens("the sky", text) for text in TEXTS]
    return [embedder.tokens_of(text) for text in TEXTS]


QUICK = ((MEAN, "F32"), (MEAN, "F16"), (CLS, "Q8_0"), (RANK, "F32"))


@pytest.mark.parametrize(
    ("pooling", "kind"),
    [
        pytest.param(*one, marks=() if one in QUICK else pytest.mark.slow)
        for one in product((MEAN, CLS, RANK), ("F32", "F16", "Q8_0"))
    ],
)
def test_an_encoder_computes_what_numpy_does(made: Write, pooling: int, kind: str) -> None:
    path = made(write_bert, pooling, kind=kind)
    with opened(path) as embedder:
        texts = tokens_of(embedder)
        rows = embedder.rows(texts)
    expected = np.array([bert_row(path, text, pooling) for text in texts])
    # llama.cpp's activation function is a table of 16-bit numbers, and so are its keys
    np.testing.assert_allclose(rows, expected, atol=0.05 if kind == "Q8_0" else 0.005)
    assert not np.allclose(rows[0], rows[1], atol=0.01)


@pytest.mark.parametrize(
    ("write", "pooling", "kind"),
    [(write_bert, MEAN, "F32"), (write_bert, CLS, "F32"), (write_bert, RANK, "F32"),
     (write_decoder, LAST, "F16"), (write_decoder, MEAN, "F16"), (write_decoder, RANK, "F16")],
)  # fmt: skip
def test_company_changes_no_row(made: Write, write: Write, pooling: int, kind: str) -> None:
    with opened(made(write, pooling, kind=kind)) as embedder:
        texts = tokens_of(embedder)
        together = embedder.rows(texts)
        alone = np.concatenate([embedder.rows([text]) for text in texts])
        other = embedder.rows(texts[::-1])[::-1]
    # a mean is a product over all tokens of a pass
    most = 1e-6 if pooling == MEAN else 0.0
    for found in (alone, other):
        np.testing.assert_allclose(found, together, rtol=0, atol=most)


@pytest.mark.parametrize(
    ("write", "pooling", "kind"),
    [(write_bert, MEAN, "F32"), (write_bert, CLS, "Q8_0"), (write_decoder, LAST, "Q8_0"),
     (write_decoder, MEAN, "F16")],
)  # fmt: skip
def test_embeddings_are_those_of_llama_cpp_python(
    made: Write, write: Write, pooling: int, kind: str
) -> None:
    import llama_cpp

    path = made(write, pooling, kind=kind)
    texts = TEXTS[:-1]  # it reads control tokens in texts
    with opened(path) as embedder:
        ours = normalised(embedder.rows([embedder.tokens_of(text) for text in texts]))
    own: Any = llama_cpp.Llama(
        str(path), embedding=True, n_ctx=512, n_ubatch=512, n_gpu_layers=0, n_threads=2,
        flash_attn=True, verbose=False,
    )  # fmt: skip
    with closing(own):
        theirs = np.array([own.embed(text, normalize=True) for text in texts])
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def test_pairs_are_joined_as_llama_cpps_server_does(made: Write) -> None:
    with opened(made(write_bert, RANK, kind="F32")) as embedder:
        tokens = embedder.pair_tokens("the sky", "[SEP] x")
        sep, cls = PIECES.index("[SEP]"), PIECES.index("[CLS]")
        assert tokens[0] == cls
        assert tokens.count(sep) == 1, "a text's words are no control tokens"
        assert tokens[: tokens.index(sep)] == embedder.tokens_of("the sky")[:-1]
    with opened(made(write_decoder, RANK, kind="F16")) as embedder:
        tokens = embedder.pair_tokens("the {document}", "<|im_end|>")
        text = RERANK.replace("{document}", "<|im_end|>").replace("{query}", "the {document}")
        assert b"".join(map(embedder.model.piece, tokens)).decode() == text
        assert embedder.num_dims == 2


def test_a_decoder_reads_a_long_text_in_parts(made: Write) -> None:
    with opened(made(write_decoder, LAST, kind="F16"), context=1024) as embedder:
        text = embedder.tokens_of("the sky is blue " * 250)[:1000]
        assert len(text) > embedder.num_pass == 512
        begin = embedder.num_forwards
        parts = embedder.rows([text])
        assert embedder.num_forwards - begin == 2
        embedder._num_batch = 256  # in other parts
        np.testing.assert_allclose(embedder.rows([text]), parts, rtol=0, atol=0.05)
        assert not np.allclose(embedder.rows([text[500:]]), parts, atol=0.05)


def test_a_text_is_cut_before_what_ends_it(made: Write) -> None:
    with opened(made(write_bert, MEAN, kind="F32")) as embedder:
        tokens = embedder.tokens_of("the sky " * 500)
        kept = embedder.cut(tokens)
        assert len(kept) == embedder.num_context == 128
        assert kept == [*tokens[:127], PIECES.index("[SEP]")]
        assert embedder.cut(tokens[:100]) == tokens[:100]


@pytest.mark.parametrize(
    ("name", "is_known"),
    [("Qwen3 Embedding 0.6B", True), ("nomic-embed-text-v1.5", True), ("EmbeddingGemma 300M", True),
     ("bge-small-en-v1.5", False), ("nomic-embed-text-v1", False)],
)  # fmt: skip
def test_models_that_are_trained_for_fewer_numbers_are_known(
    tmp_path: Path, name: str, is_known: bool
) -> None:
    with opened(write_bert(tmp_path / "model.gguf", name=name)) as embedder:
        assert embedder.is_matryoshka is is_known


def test_contexts_are_checked(made: Write) -> None:
    path = made(write_bert, MEAN, kind="F32")
    for context, words in ((129, "128 or less"), (2, "use more")):
        with pytest.raises(DuodecError, match=words), opened(path, context=context):
            pass
    with opened(path, context=20) as embedder:
        assert len(embedder.cut([5] * 50)) == 20


@pytest.mark.parametrize(
    ("write", "pooling", "kind"), [(write_bert, MEAN, "F32"), (write_decoder, LAST, "F16")]
)
def test_what_embeds_does_not_generate(made: Write, write: Write, pooling: int, kind: str) -> None:
    path = made(write, pooling, kind=kind)
    with pytest.raises(ModelUnreadable, match="use `duodec embed` or `duodec serve`"):
        LLM.load(path, draft=None)
    assert use_of(resolve_target(EngineConfig(target=str(path)))) == "embedding"


def test_what_generates_makes_no_embeddings(tmp_path: Path, made: Write) -> None:
    target = resolve_target(EngineConfig(target=str(write_dense(tmp_path / "model.gguf"))))
    with pytest.raises(ModelUnreadable, match="names no pooling"):
        load_embedder(target)
    pooled = resolve_target(EngineConfig(target=str(made(write_bert, MEAN, kind="F32"))))
    named = replace(pooled, config=replace(pooled.config, draft="smollm2-draft"))
    with pytest.raises(DuodecError, match="generates no text to draft"):
        load_embedder(named)
    with pytest.raises(ModelUnreadable, match="names no pooling of its own"):
        load_embedder(resolve_target(EngineConfig(target=str(write_bert(tmp_path / "n.gguf", 0)))))


def test_a_damaged_model_is_found_in_its_trial(tmp_path: Path) -> None:
    path = write_bert(tmp_path / "bert.gguf")
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelUnreadable):
        load_embedder(resolve_target(EngineConfig(target=str(path))))
    path = write_bert(tmp_path / "nan.gguf")
    data = path.read_bytes()
    path.write_bytes(data[:-4096] + b"\xff" * 4096)
    with pytest.raises(DuodecError, match="NaN"):
        load_embedder(resolve_target(EngineConfig(target=str(path))))


def test_memory_that_is_short_makes_texts_shorter_and_says_so(
    made: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    from duodec.backends.llamacpp.embedding import load as loading

    path = made(write_decoder, MEAN, kind="F16")
    told: list[str] = []
    monkeypatch.setattr(loading, "available_bytes", lambda: 17 << 20)
    with closing(
        load_embedder(resolve_target(EngineConfig(target=str(path))), told.append)[0]
    ) as e:
        assert e.num_context < 1024
    assert "memory is short" in told[0]
    monkeypatch.setattr(loading, "available_bytes", lambda: 1 << 20)
    with pytest.raises(ContextExceeded, match="use fewer"):
        load_embedder(resolve_target(EngineConfig(target=str(path), context=1024)), told.append)

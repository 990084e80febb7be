"""Tiny random models that pool a text into one row: for embeddings, and to rank texts."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from fakes.tiny_models import finish, write_dense
from numpy.typing import NDArray

MEAN, CLS, LAST, RANK = 1, 2, 3, 4
WIDTH, HEADS, CONTEXT = 64, 2, 128

_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_WORDS = ["▁the", "▁sky", "▁is", "▁blue", "▁why", "ing", "▁hell", "▁ü"]
_LETTERS = string.ascii_lowercase + string.digits + "é日本.,?!"
PIECES = [*_SPECIAL, *(f"▁{one}" for one in _LETTERS), *_LETTERS, *_WORDS]
"""Of a vocabulary as BERT's, by WordPiece."""

RERANK = "<query>{query}</query><document>{document}</document>"
"""The template of a decoder that ranks."""


def write_bert(
    path: Path,
    pooling: int = MEAN,
    *,
    name: str = "tiny",
    num_layers: int = 2,
    width: int = WIDTH,
    num_heads: int = HEADS,
    num_context: int = CONTEXT,
    kind: str = "F32",
    words: Sequence[str] = (),
) -> Path:
    """An encoder, with a head that ranks where it pools for that; ``words`` are tokens, too."""
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_name(name)
    writer.add_context_length(num_context)
    writer.add_embedding_length(width)
    writer.add_block_count(num_layers)
    writer.add_feed_forward_length(4 * width)
    writer.add_head_count(num_heads)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType(pooling))
    pieces = [*PIECES, *(f"▁{word}" for word in words if f"▁{word}" not in PIECES)]
    _add_pieces(writer, gguf, pieces)
    dice, quantised = np.random.default_rng(3), gguf.GGMLQuantizationType[kind]

    def add(name: str, *shape: int) -> None:
        drawn = dice.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
        if len(shape) == 1:
            is_norm = "norm.weight" in name
            writer.add_tensor(name, np.ones_like(drawn) if is_norm else drawn)
        elif not name.startswith("blk."):
            writer.add_tensor(name, drawn)  # what is added to others cannot be quantised
        else:
            data = gguf.quants.quantize(drawn, quantised)
            writer.add_tensor(name, data, raw_dtype=quantised)

    def add_both(name: str, *shape: int) -> None:
        add(f"{name}.weight", *shape)
        add(f"{name}.bias", shape[0])

    add("token_embd.weight", len(pieces), width)
    add("token_types.weight", 2, width)
    add("position_embd.weight", num_context, width)
    add_both("token_embd_norm", width)
    for i in range(num_layers):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add_both(f"blk.{i}.{part}", width, width)
        add_both(f"blk.{i}.attn_output_norm", width)
        add_both(f"blk.{i}.ffn_up", 4 * width, width)
        add_both(f"blk.{i}.ffn_down", width, 4 * width)
        add_both(f"blk.{i}.layer_output_norm", width)
    if pooling == RANK:
        add_both("cls", width, width)
        add_both("cls.output", 1, width)
    return finish(writer, path)


def _add_pieces(writer: Any, gguf: Any, pieces: Sequence[str]) -> None:
    control = gguf.TokenType.CONTROL
    kinds = [control if piece in _SPECIAL else gguf.TokenType.NORMAL for piece in pieces]
    writer.add_token_type_count(2)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(pieces)
    writer.add_token_types(kinds)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
    writer.add_mask_token_id(4)


def write_decoder(path: Path, pooling: int = LAST, *, kind: str = "F16") -> Path:
    """A decoder as Qwen3-Embedding, or as Qwen3-Reranker with its template and its labels."""

    def add(writer: Any) -> None:
        if pooling == RANK:
            writer.add_classifier_output_labels(["yes", "no"])
            writer.add_string("tokenizer.chat_template.rerank", RERANK)
            drawn = np.random.default_rng(5).normal(0, 1, (2, WIDTH)).astype(np.float32)
            writer.add_tensor("cls.output.weight", drawn)

    numbers = {"qwen3.pooling_type": pooling}
    return write_dense(path, kind=kind, architecture="qwen3", numbers=numbers, more=add)


def bert_row(path: Path, tokens: Sequence[int], pooling: int) -> NDArray[np.float64]:
    """The row of a text by an encoder of `write_bert`, computed in NumPy, before it is normalised;
    for a head that ranks, its score."""
    reader = gguf.GGUFReader(path)
    weights = {
        one.name: gguf.quants.dequantize(one.data, one.tensor_type).astype(np.float64)
        for one in reader.tensors
    }

    def linear(name: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"])

    def norm(name: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + 1e-12)
        return np.asarray(scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"])

    x = weights["token_embd.weight"][list(tokens)] + weights["token_types.weight"][0]
    x = norm("token_embd_norm", x + weights["position_embd.weight"][: len(tokens)])
    for i in range(sum(name.endswith("ffn_up.weight") for name in weights)):
        parts = [linear(f"blk.{i}.attn_{part}", x) for part in "qkv"]
        q, k, v = (part.reshape(len(tokens), HEADS, -1).swapaxes(0, 1) for part in parts)
        scores = q @ k.swapaxes(1, 2) * q.shape[-1] ** -0.5
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        seen = (shares / shares.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(x.shape)
        x = norm(f"blk.{i}.attn_output_norm", x + linear(f"blk.{i}.attn_output", seen))
        inner = linear(f"blk.{i}.ffn_up", x)
        inner *= 0.5 * (1 + np.tanh((2 / np.pi) ** 0.5 * (inner + 0.044715 * inner**3)))
        x = norm(f"blk.{i}.layer_output_norm", x + linear(f"blk.{i}.ffn_down", inner))
    if pooling == MEAN:
        return np.asarray(x.mean(0))
    return x[0] if pooling == CLS else linear("cls.output", np.tanh(linear("cls", x[0])))

"""Write models for embeddings and rerankers of real shapes with random weights: right for times,
and for how far one program's numbers are from another's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from tests.fakes.tiny_models import finish, vocabulary

from duodec.errors import BadOption

CLS, LAST, RANK = 2, 3, 4  # llama.cpp's kinds of pooling
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_SIGNS = "abcdefghijklmnopqrstuvwxyz0123456789.,?!'-"
_SYLLABLES = [a + b for a, b in product("bdfghklmnprstvz", "aeiou")]


@dataclass(frozen=True)
class Shape:
    """The sizes that a model's cost depends on. A decoder has grouped heads, of which it names the
    size; an encoder has as many of keys as of queries."""

    num_layers: int
    width: int
    num_heads: int
    inner: int
    pooling: int
    num_context: int = 512
    num_kv_heads: int = 0
    head: int = 0

    @property
    def is_decoder(self) -> bool:
        return self.num_kv_heads > 0


SHAPES: Mapping[str, Shape] = {
    "tiny-encoder": Shape(2, 64, 2, 128, CLS),  # for tests
    "tiny-reranker": Shape(2, 64, 2, 128, RANK),
    "tiny-decoder": Shape(2, 64, 2, 128, LAST, num_kv_heads=1, head=64),
    "bge-small": Shape(12, 384, 12, 1536, CLS),
    "minilm-reranker": Shape(12, 384, 12, 1536, RANK),
    # Qwen3-Embedding 0.6B has 28 such layers, and three times as many tokens
    "qwen3-embedding-6-layers": Shape(6, 1024, 16, 3072, LAST, 2048, num_kv_heads=8, head=128),
}


def words() -> Iterator[str]:
    """What the vocabulary of an encoder has, a token each."""
    for num in (2, 3):
        yield from map("".join, product(_SYLLABLES, repeat=num))


def write_embedder(path: Path, name: str, kind: str) -> Path:
    """A file of this shape with its matrices in a format that gguf can write. Raises BadOption."""
    import gguf

    if name not in SHAPES:
        raise BadOption(f"unknown shape '{name}'; choose from: {', '.join(SHAPES)}")
    shape = SHAPES[name]
    writer = gguf.GGUFWriter(path, "qwen3" if shape.is_decoder else "bert")
    writer.add_name(name)
    writer.add_context_length(shape.num_context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.num_layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.num_heads)
    writer.add_pooling_type(gguf.PoolingType(shape.pooling))
    dice, quantised = np.random.default_rng(3), gguf.GGMLQuantizationType[kind]

    def add(tensor: str, *size: int) -> None:
        drawn = dice.standard_normal(size, dtype=np.float32) * np.float32(size[-1] ** -0.5)
        if len(size) == 1:
            is_norm = "norm.weight" in tensor
            writer.add_tensor(tensor, np.ones_like(drawn) if is_norm else drawn)
        elif tensor.startswith(("position", "token_types")):
            writer.add_tensor(tensor, drawn)  # what is added to others cannot be quantised
        else:
            data = gguf.quants.quantize(drawn, quantised)
            writer.add_tensor(tensor, data, raw_dtype=quantised)

    (_decoder if shape.is_decoder else _encoder)(writer, gguf, shape, add)
    return finish(writer, path)


Add = Callable[..., None]


def _encoder(writer: Any, gguf: Any, shape: Shape, add: Add) -> None:
    """BERT's, with a vocabulary by WordPiece."""

    def add_both(tensor: str, *size: int) -> None:
        add(f"{tensor}.weight", *size)
        add(f"{tensor}.bias", size[0])

    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    pieces = [*_SPECIAL, *(f"▁{sign}" for sign in _SIGNS), *_SIGNS]
    pieces += [f"▁{word}" for word in islice(words(), 30_522 - len(pieces))]
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_type_count(2)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(pieces)
    writer.add_token_types([control if piece in _SPECIAL else normal for piece in pieces])
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
    writer.add_mask_token_id(4)
    width = shape.width
    add("token_embd.weight", len(pieces), width)
    add("token_types.weight", 2, width)
    add("position_embd.weight", shape.num_context, width)
    add_both("token_embd_norm", width)
    for i in range(shape.num_layers):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add_both(f"blk.{i}.{part}", width, width)
        add_both(f"blk.{i}.attn_output_norm", width)
        add_both(f"blk.{i}.ffn_up", shape.inner, width)
        add_both(f"blk.{i}.ffn_down", width, shape.inner)
        add_both(f"blk.{i}.layer_output_norm", width)
    if shape.pooling == RANK:
        add_both("cls", width, width)
        add_both("cls.output", 1, width)


def _decoder(writer: Any, gguf: Any, shape: Shape, add: Add) -> None:
    """Qwen3's, with the vocabulary of the shipped draft."""
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(shape.head)
    writer.add_rope_freq_base(1e6)
    writer.add_key_length(shape.head)
    writer.add_value_length(shape.head)
    for key, (value, kind) in vocabulary().items():
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(key, value)
        else:
            writer.add_key_value(key, value, kind)
    width, keys = shape.width, shape.num_kv_heads * shape.head
    queries = shape.num_heads * shape.head
    add("token_embd.weight", len(vocabulary()["tokenizer.ggml.tokens"][0]), width)
    add("output_norm.weight", width)
    for i in range(shape.num_layers):
        add(f"blk.{i}.attn_norm.weight", width)
        add(f"blk.{i}.attn_q.weight", queries, width)
        add(f"blk.{i}.attn_k.weight", keys, width)
        add(f"blk.{i}.attn_v.weight", keys, width)
        add(f"blk.{i}.attn_q_norm.weight", shape.head)
        add(f"blk.{i}.attn_k_norm.weight", shape.head)
        add(f"blk.{i}.attn_output.weight", width, queries)
        add(f"blk.{i}.ffn_norm.weight", width)
        add(f"blk.{i}.ffn_gate.weight", shape.inner, width)
        add(f"blk.{i}.ffn_up.weight", shape.inner, width)
        add(f"blk.{i}.ffn_down.weight", width, shape.inner)

"""Tiny random block drafters for the families of `fakes.families`, as GGUF files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from fakes.families import HEAD, HEADS, INNER, KV_HEADS, VOCAB, WIDTH, add_field, attention, dense
from fakes.tiny_models import copy_vocabulary, finish
from numpy.typing import NDArray

BLOCK, MASK, TOP_K = 8, VOCAB - 1, 12
_RANK, _KERNEL, _GROUP = WIDTH, 3, 32
_CONVOLVED = {"conv_base": (2, _KERNEL, WIDTH), "conv_proj": (2 * _KERNEL * WIDTH // _GROUP, WIDTH)}
# what a kind has in addition: fields, tensors of the whole, tensors of a layer
KINDS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]] = {
    "dflash": ({}, {}, {}),
    "dspark": ({}, {"markov_w1": (VOCAB, _RANK), "markov_w2": (VOCAB, _RANK)}, {}),
    "dflash2": (
        {
            "conv_kernel_size": _KERNEL, "conv_group_size": _GROUP, "selector_rank": _RANK,
            "selector_top_k": TOP_K,
        },
        {
            "selector_predecessor": (VOCAB, _RANK), "selector_successor": (VOCAB, _RANK),
            "selector_hidden": (_RANK, WIDTH),
        },
        {
            f"{part}_{name}": shape
            for part in ("attn", "ffn") for name, shape in _CONVOLVED.items()
        },
    ),
}  # fmt: skip


def write_block(
    path: Path,
    kind: str,
    *,
    layers: Sequence[int] = (1, 2, 3),
    fields: Mapping[str, Any] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    weights: Mapping[str, NDArray[np.float32]] | None = None,
    left_out: Sequence[str] = (),
) -> Path:
    """A drafter of two layers that reads the inputs of these of the target's, and shares its
    embeddings and output. ``fields`` and ``shapes`` are added to the kind's own or replace them;
    ``weights`` replace random ones, by the name that ends a tensor's; fields are ``left_out``."""
    writer = gguf.GGUFWriter(path, "dflash")
    own_fields, own, of_layer = KINDS[kind]
    values: dict[str, Any] = {
        "context_length": 1024, "embedding_length": WIDTH, "block_count": 2,
        "feed_forward_length": INNER, "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS, "attention.key_length": HEAD,
        "attention.value_length": HEAD, "rope.dimension_count": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-5, "vocab_size": VOCAB,
        "target_layers": list(layers), "block_size": BLOCK, **own_fields, **(fields or {}),
    }  # fmt: skip
    for key, value in values.items():
        if key not in left_out:
            add_field(writer, f"dflash.{key}", value)
    copy_vocabulary(writer, VOCAB)
    if "mask" not in left_out:
        writer.add_mask_token_id(MASK)
    layer = attention("norms") | dense() | dict(of_layer)
    every = {f"blk.{i}.{name}": shape for i in range(2) for name, shape in layer.items()}
    every |= {"fc": (WIDTH, len(layers) * WIDTH), "enc.output_norm": (WIDTH,), **own}
    every |= {"output_norm": (WIDTH,), **(shapes or {})}
    dice = np.random.default_rng(3)
    for name, shape in every.items():
        drawn = dice.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
        drawn = np.ones_like(drawn) if "norm" in name else drawn
        for end, given in (weights or {}).items():
            if name == end or name.endswith(f".{end}"):
                drawn = given
        suffix = "" if name.endswith("conv_base") or name == "d2t" else ".weight"
        writer.add_tensor(f"{name}{suffix}", drawn)
    return finish(writer, path)

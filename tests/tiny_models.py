"""Tiny random models as GGUF files, with the vocabulary of the shipped draft."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from duodec.models import resolve

WIDTH, NUM_LAYERS, NUM_HEADS, INNER, NUM_EXPERTS = 64, 3, 2, 96, 4


def write_mixture(path: Path) -> Path:
    """A mixture of experts of three layers, in Llama's architecture."""
    gguf = pytest.importorskip("gguf")
    source = gguf.GGUFReader(resolve("smollm2-draft").path)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(NUM_LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // NUM_HEADS)
    writer.add_expert_count(NUM_EXPERTS)
    writer.add_expert_used_count(2)
    for key, field in source.fields.items():
        if key.startswith("tokenizer."):
            if field.types[0] == gguf.GGUFValueType.ARRAY:
                writer.add_array(key, field.contents())
            else:
                writer.add_key_value(key, field.contents(), field.types[0])
    num_vocab = len(source.fields["tokenizer.ggml.tokens"].data)
    dice = np.random.default_rng(1)

    def add(name: str, *shape: int) -> None:
        drawn = dice.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
        writer.add_tensor(f"{name}.weight", np.ones_like(drawn) if len(shape) == 1 else drawn)

    add("token_embd", num_vocab, WIDTH)
    add("output_norm", WIDTH)
    for i in range(NUM_LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            add(f"blk.{i}.{norm}", WIDTH)
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{i}.{part}", WIDTH, WIDTH)
        add(f"blk.{i}.ffn_gate_inp", NUM_EXPERTS, WIDTH)
        add(f"blk.{i}.ffn_gate_exps", NUM_EXPERTS, INNER, WIDTH)
        add(f"blk.{i}.ffn_up_exps", NUM_EXPERTS, INNER, WIDTH)
        add(f"blk.{i}.ffn_down_exps", NUM_EXPERTS, WIDTH, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

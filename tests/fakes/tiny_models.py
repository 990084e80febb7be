"""Tiny random models as GGUF files, with the vocabulary of the shipped draft."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import byref, c_float
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from duodec.backends.llamacpp import library
from duodec.models import resolve

WIDTH, NUM_LAYERS, NUM_HEADS, INNER, NUM_EXPERTS = 64, 3, 2, 96, 4


def write_mixture(
    path: Path, *, num_vocab: int | None = None, width: int = WIDTH, inner: int = INNER
) -> Path:
    """A mixture of experts of three layers, in Llama's architecture."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(width)
    writer.add_block_count(NUM_LAYERS)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // NUM_HEADS)
    writer.add_expert_count(NUM_EXPERTS)
    writer.add_expert_used_count(2)
    num_vocab = copy_vocabulary(writer, num_vocab)
    dice = np.random.default_rng(1)

    def add(name: str, *shape: int) -> None:
        drawn = dice.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
        writer.add_tensor(f"{name}.weight", np.ones_like(drawn) if len(shape) == 1 else drawn)

    add("token_embd", num_vocab, width)
    add("output_norm", width)
    for i in range(NUM_LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            add(f"blk.{i}.{norm}", width)
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{i}.{part}", width, width)
        add(f"blk.{i}.ffn_gate_inp", NUM_EXPERTS, width)
        add(f"blk.{i}.ffn_gate_exps", NUM_EXPERTS, inner, width)
        add(f"blk.{i}.ffn_up_exps", NUM_EXPERTS, inner, width)
        add(f"blk.{i}.ffn_down_exps", NUM_EXPERTS, width, inner)
    return finish(writer, path)


def write_dense(
    path: Path,
    *,
    kind: str = "F16",
    num_vocab: int = 1024,
    width: int = WIDTH,
    num_layers: int = 2,
    scale: float = 1.0,
    architecture: str = "llama",
    numbers: Mapping[str, int] = {},
    more: Callable[[Any], None] = lambda writer: None,
) -> Path:
    """Llama's architecture, or Qwen's, with matrices in the format ``kind``, one that gguf can
    write, and the first tokens of the vocabulary. ``scale`` is that of its logits: the larger, the
    surer it is; ``numbers`` are further metadata, and ``more`` adds what else there is."""
    writer = gguf.GGUFWriter(path, architecture)
    more(writer)
    for key, number in numbers.items():
        writer.add_uint32(key, number)
    writer.add_context_length(1024)
    writer.add_embedding_length(width)
    writer.add_block_count(num_layers)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    head = 128 if architecture == "qwen3" else width // NUM_HEADS  # transformers knows no other
    writer.add_rope_dimension_count(head)
    writer.add_key_length(head)
    writer.add_value_length(head)
    copy_vocabulary(writer, num_vocab)
    dice, quantised = np.random.default_rng(1), gguf.GGMLQuantizationType[kind]

    def add(name: str, *shape: int, scale: float = 1.0) -> None:
        drawn = dice.normal(0, scale * shape[-1] ** -0.5, shape).astype(np.float32)
        if name.endswith(".bias"):
            writer.add_tensor(name, drawn)
        elif len(shape) == 1:
            writer.add_tensor(f"{name}.weight", np.ones_like(drawn))
        else:
            data = gguf.quants.quantize(drawn, quantised)
            writer.add_tensor(f"{name}.weight", data, raw_dtype=quantised)

    add("token_embd", num_vocab, width)
    add("output_norm", width)
    add("output", num_vocab, width, scale=scale)
    for i in range(num_layers):
        for norm in ("attn_norm", "ffn_norm"):
            add(f"blk.{i}.{norm}", width)
        for part, num_out in (("q", NUM_HEADS * head), ("k", head), ("v", head)):
            add(f"blk.{i}.attn_{part}", num_out, width)
            if architecture == "qwen2":
                add(f"blk.{i}.attn_{part}.bias", num_out)
        if architecture == "qwen3":
            for part in ("q", "k"):
                add(f"blk.{i}.attn_{part}_norm", head)
        add(f"blk.{i}.attn_output", width, NUM_HEADS * head)
        for part in ("gate", "up"):
            add(f"blk.{i}.ffn_{part}", 2 * width, width)
        add(f"blk.{i}.ffn_down", width, 2 * width)
    return finish(writer, path)


def write_hybrid(path: Path, *, num_vocab: int | None = None) -> Path:
    """A hybrid in Qwen3.5's architecture: three layers with a state, one with attention. Its
    matrices are in Q8_0, whose products have the same bits at every width."""
    writer = gguf.GGUFWriter(path, "qwen35")
    heads, kv_heads, head, kernel, state, groups, steps = 2, 1, 64, 4, 64, 2, 4
    writer.add_context_length(1024)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(4)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(32)
    writer.add_rope_dimension_sections([11, 11, 10, 0])
    writer.add_rope_freq_base(1e6)
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(steps * state)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(steps)
    writer.add_ssm_group_count(groups)
    writer.add_uint32("qwen35.full_attention_interval", 4)
    num_vocab = copy_vocabulary(writer, num_vocab)
    dice = np.random.default_rng(1)
    q8 = gguf.GGMLQuantizationType.Q8_0

    def add(name: str, *shape: int, scale: float = 0.0) -> None:
        drawn = dice.normal(0, scale or shape[-1] ** -0.5, shape).astype(np.float32)
        if name.endswith("norm.weight"):
            writer.add_tensor(name, np.ones_like(drawn))
        elif len(shape) == 2 and shape[-1] % 32 == 0:
            writer.add_tensor(name, gguf.quants.quantize(drawn, q8), raw_dtype=q8)
        else:
            writer.add_tensor(name, drawn)

    add("token_embd.weight", num_vocab, WIDTH, scale=1.0)
    add("output_norm.weight", WIDTH)
    add("output.weight", num_vocab, WIDTH, scale=0.3)
    keys, values = state * groups, state * steps
    for i in range(4):
        block = f"blk.{i}."
        add(f"{block}attn_norm.weight", WIDTH)
        add(f"{block}post_attention_norm.weight", WIDTH)
        if i == 3:
            add(f"{block}attn_q.weight", 2 * head * heads, WIDTH)
            add(f"{block}attn_k.weight", head * kv_heads, WIDTH)
            add(f"{block}attn_v.weight", head * kv_heads, WIDTH)
            add(f"{block}attn_output.weight", WIDTH, head * heads)
            add(f"{block}attn_q_norm.weight", head)
            add(f"{block}attn_k_norm.weight", head)
        else:
            add(f"{block}attn_qkv.weight", 2 * keys + values, WIDTH)
            add(f"{block}attn_gate.weight", values, WIDTH)
            add(f"{block}ssm_conv1d.weight", 2 * keys + values, kernel, scale=0.5)
            add(f"{block}ssm_dt.bias", steps, scale=0.5)
            decay = -np.exp(dice.normal(0, 0.3, steps)).astype(np.float32)
            writer.add_tensor(f"{block}ssm_a", decay)
            add(f"{block}ssm_beta.weight", steps, WIDTH)
            add(f"{block}ssm_alpha.weight", steps, WIDTH)
            add(f"{block}ssm_norm.weight", state)
            add(f"{block}ssm_out.weight", WIDTH, values)
        add(f"{block}ffn_gate.weight", INNER, WIDTH)
        add(f"{block}ffn_up.weight", INNER, WIDTH)
        add(f"{block}ffn_down.weight", WIDTH, INNER)
    return finish(writer, path)


# llama.cpp's numbers of files whose matrices are in these formats
_FILES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10,
    "Q3_K": 11, "Q4_K": 15, "Q5_K": 17, "Q6_K": 18, "IQ2_XXS": 19, "IQ2_XS": 20, "IQ3_XXS": 23,
    "IQ1_S": 24, "IQ4_NL": 25, "IQ3_S": 26, "IQ2_S": 29, "IQ4_XS": 30, "IQ1_M": 31, "BF16": 32,
    "TQ1_0": 36, "TQ2_0": 37, "MXFP4": 38, "Q1_0": 40, "Q2_0": 41,
}  # fmt: skip


def _alike(lib: Any, path: Path) -> Any:
    """All columns of all matrices of a file count alike; some formats are not written unless this
    is said."""
    shapes = {t.name: t.shape.tolist() for t in gguf.GGUFReader(path).tensors if len(t.shape) > 1}
    found = (lib.llama_model_imatrix_data * (len(shapes) + 1))()  # the last one without a name
    for i, (name, shape) in enumerate(shapes.items()):
        size = shape[0] * int(np.prod(shape[2:]))
        found[i].name, found[i].data, found[i].size = (
            name.encode(),
            (c_float * size)(*[1] * size),
            size,
        )
    return found


def is_written(kind: str) -> bool:
    """Whether llama.cpp writes files in a format."""
    return kind in _FILES


def requantised(path: Path, kind: str) -> Path:
    """A model with all of its matrices in another format, which llama.cpp writes."""
    lib: Any = library.load()
    params = lib.llama_model_quantize_default_params()
    params.ftype, params.pure, params.nthread = _FILES[kind], True, 1
    if kind.startswith(("IQ1", "IQ2", "IQ3")):
        params.imatrix = _alike(lib, path)
    made = path.with_suffix(f".{kind.lower()}.gguf")
    assert not lib.llama_model_quantize(str(path).encode(), str(made).encode(), byref(params))
    return made


@cache
def vocabulary() -> Mapping[str, tuple[Any, Any]]:
    """The fields of the draft's tokenizer, with their types."""
    source = gguf.GGUFReader(resolve("smollm2-draft").path)  # takes seconds
    return {
        key: (field.contents(), field.types[0])
        for key, field in source.fields.items()
        if key.startswith("tokenizer.")
    }


def copy_vocabulary(writer: Any, num_vocab: int | None = None) -> int:
    """Copy a vocabulary, or its first tokens with what merges into them; how many there are."""
    tokens = vocabulary()["tokenizer.ggml.tokens"][0][:num_vocab]
    kept = set(tokens)
    for key, (value, kind) in vocabulary().items():
        if kind != gguf.GGUFValueType.ARRAY:
            writer.add_key_value(key, value, kind)
        elif key.endswith(".merges"):
            writer.add_array(key, [pair for pair in value if pair.replace(" ", "") in kept])
        else:
            writer.add_array(key, value[:num_vocab])
    return len(tokens)


def finish(writer: Any, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path

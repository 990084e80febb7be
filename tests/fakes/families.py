"""Tiny random models of the families that people run, as GGUF files.

A family is the fields that it has in addition to the common ones, and the tensors of a layer.
Matrices are in Q8_0, whose products have the same bits at every width.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from fakes.tiny_models import copy_vocabulary, finish

VOCAB, WIDTH, INNER, HEADS, KV_HEADS, HEAD, LAYERS = 512, 256, 256, 8, 1, 32, 4
EXPERTS, USED = 4, 2
WINDOW = 32
LOUD = 40  # the first tokens are said most, so that a draft of any kind is right at times

SCAN = ("convolution", "state scan")
DELTA_RULE = ("convolution", "delta rule")

Tensors = Mapping[str, tuple[int, ...]]
"""Shapes by name, of a layer's or the whole model's; a name without a suffix is a weight's."""


NORM: Tensors = {"output_norm": (WIDTH,)}
OUTPUT: Tensors = {"output": (VOCAB, WIDTH)}  # or it is the embedding's matrix


@dataclass(frozen=True)
class Family:
    """``fields`` are the architecture's own, without its name; ``layer`` gives a layer's
    tensors."""

    architecture: str
    layer: Callable[[int], Tensors]
    fields: Mapping[str, Any] = field(default_factory=dict)
    ends: Tensors = field(default_factory=lambda: {**NORM, **OUTPUT})
    drafts: str = "trees"  # or chains
    left: tuple[str, ...] = ()  # what our kernels leave to llama.cpp's, but for single rows
    head: int = HEAD
    num_layers: int = LAYERS


def attention(*more: str, head: int = HEAD, joined: bool = False) -> dict[str, tuple[int, ...]]:
    queries, keys = HEADS * head, KV_HEADS * head
    found: dict[str, tuple[int, ...]] = {"attn_norm": (WIDTH,), "attn_output": (WIDTH, queries)}
    if joined:
        found["attn_qkv"] = (queries + 2 * keys, WIDTH)
    else:
        found |= {"attn_q": (queries, WIDTH), "attn_k": (keys, WIDTH), "attn_v": (keys, WIDTH)}
    if "bias" in more:
        found |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
    if "norms" in more:
        found |= {"attn_q_norm": (head,), "attn_k_norm": (head,)}
    return found


def dense(norm: str = "ffn_norm", *, joined: bool = False) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"ffn_down": (WIDTH, INNER)}
    found |= {norm: (WIDTH,)} if norm else {}
    if joined:
        return found | {"ffn_up": (2 * INNER, WIDTH)}
    return found | {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH)}


def experts(norm: str = "ffn_norm") -> dict[str, tuple[int, ...]]:
    return {
        norm: (WIDTH,),
        "ffn_gate_inp": (EXPERTS, WIDTH),
        "ffn_gate_exps": (EXPERTS, INNER, WIDTH),
        "ffn_up_exps": (EXPERTS, INNER, WIDTH),
        "ffn_down_exps": (EXPERTS, WIDTH, INNER),
    }


POST_NORMS = {"post_attention_norm": (WIDTH,), "post_ffw_norm": (WIDTH,)}
MIXTURE = {"expert_count": EXPERTS, "expert_used_count": USED}
WINDOWS = {"attention.sliding_window": WINDOW}

# --- states

INNER_STATE, STATE, GROUPS, STEPS, KERNEL = 2 * WIDTH, 32, 1, 4, 4
MAMBA = {
    "ssm.conv_kernel": KERNEL, "ssm.inner_size": INNER_STATE, "ssm.state_size": STATE,
    "ssm.group_count": GROUPS, "ssm.time_step_rank": STEPS,
}  # fmt: skip


def mamba2() -> dict[str, tuple[int, ...]]:
    conv = INNER_STATE + 2 * GROUPS * STATE
    return {
        "attn_norm": (WIDTH,),
        "ssm_in": (INNER_STATE + conv + STEPS, WIDTH),
        "ssm_conv1d": (conv, KERNEL),
        "ssm_conv1d.bias": (conv,),
        "ssm_dt.bias": (STEPS,),
        "ssm_a.": (STEPS, 1),
        "ssm_d.": (STEPS, 1),
        "ssm_norm": (GROUPS, INNER_STATE // GROUPS),
        "ssm_out": (WIDTH, INNER_STATE),
    }


def lfm2(i: int) -> Tensors:
    if i % 2:
        return attention("norms") | dense()
    return {
        "attn_norm": (WIDTH,), "shortconv.conv": (WIDTH, 3),
        "shortconv.in_proj": (3 * WIDTH, WIDTH), "shortconv.out_proj": (WIDTH, WIDTH), **dense(),
    }  # fmt: skip


def qwen35(i: int, kind: str = "") -> Tensors:
    """Three layers with a gated delta rule, then one of attention, whose queries carry a gate."""
    feed = experts("post_attention_norm") | SHARED if kind else dense("post_attention_norm")
    if i % 4 == 3:
        return {**attention("norms", head=64), "attn_q": (2 * HEADS * 64, WIDTH), **feed}
    keys, values = DELTA_STATE * GATED_GROUPS, DELTA_STATE * STEPS
    found: dict[str, tuple[int, ...]] = {
        "attn_norm": (WIDTH,), "attn_qkv": (2 * keys + values, WIDTH),
        "attn_gate": (values, WIDTH), "ssm_conv1d": (2 * keys + values, KERNEL),
        "ssm_dt.bias": (STEPS,), "ssm_a.": (STEPS,), "ssm_norm": (DELTA_STATE,),
        "ssm_out": (WIDTH, values), **feed,
    }  # fmt: skip
    if kind == "next":
        return found | {"ssm_ba": (2 * STEPS, WIDTH)}
    return found | {"ssm_beta": (STEPS, WIDTH), "ssm_alpha": (STEPS, WIDTH)}


DELTA_STATE, GATED_GROUPS = 64, 2
DELTA = {
    "ssm.conv_kernel": KERNEL, "ssm.inner_size": STEPS * DELTA_STATE,
    "ssm.state_size": DELTA_STATE, "ssm.time_step_rank": STEPS,
    "ssm.group_count": GATED_GROUPS, "full_attention_interval": 4, "rope.dimension_count": 32,
}  # fmt: skip
SHARED: Tensors = {
    "ffn_gate_shexp": (INNER, WIDTH), "ffn_up_shexp": (INNER, WIDTH),
    "ffn_down_shexp": (WIDTH, INNER), "ffn_gate_inp_shexp": (WIDTH,),
}  # fmt: skip
SHARED_FIELDS = {
    **MIXTURE, "expert_feed_forward_length": INNER, "expert_shared_feed_forward_length": INNER,
}  # fmt: skip
SECTIONS = {"rope.dimension_sections": [11, 11, 10, 0]}

FAMILIES: dict[str, Family] = {
    "Llama": Family("llama", lambda i: attention() | dense()),
    "Mixtral": Family("llama", lambda i: attention() | experts(), MIXTURE),
    "Qwen 2": Family("qwen2", lambda i: attention("bias") | dense()),
    "Qwen 3": Family("qwen3", lambda i: attention("norms") | dense()),
    "Qwen 3 MoE": Family(
        "qwen3moe", lambda i: attention("norms") | experts(),
        {**MIXTURE, "expert_feed_forward_length": INNER},
    ),
    "Gemma 2": Family(
        "gemma2", lambda i: attention() | dense() | POST_NORMS,
        {**WINDOWS, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        NORM,
    ),
    "Gemma 3": Family(
        "gemma3", lambda i: attention("norms") | dense() | POST_NORMS, WINDOWS, NORM,
        num_layers=7,
    ),
    "gpt-oss": Family(
        "gpt-oss",
        lambda i: {
            **attention("bias"), **experts("post_attention_norm"), "attn_sinks": (HEADS,),
            "attn_output.bias": (WIDTH,), "ffn_gate_inp.bias": (EXPERTS,),
            "ffn_gate_exps.bias": (EXPERTS, INNER), "ffn_up_exps.bias": (EXPERTS, INNER),
            "ffn_down_exps.bias": (EXPERTS, WIDTH),
        },
        {**WINDOWS, **MIXTURE, "expert_feed_forward_length": INNER},
    ),
    "Phi 3": Family(
        "phi3", lambda i: attention(joined=True) | dense(joined=True),
        {"attention.sliding_window": 0},
    ),
    "OLMo 2": Family(
        "olmo2",
        lambda i: {
            **{k: v for k, v in attention().items() if k != "attn_norm"}, **dense(""), **POST_NORMS,
            "attn_q_norm": (HEADS * HEAD,), "attn_k_norm": (KV_HEADS * HEAD,),
        },
    ),
    "Granite": Family(
        "granite", lambda i: attention() | dense(),
        {"attention.scale": 0.2, "residual_scale": 0.5, "embedding_scale": 2.0, "logit_scale": 2.0},
    ),
    "GLM 4": Family("glm4", lambda i: attention() | dense(joined=True) | POST_NORMS),
    "SmolLM 3": Family("smollm3", lambda i: attention() | dense()),
    "Command R7B": Family(
        "cohere2",
        lambda i: {**attention(), **dense("")},
        {**WINDOWS, "logit_scale": 1.0, "attention.layer_norm_epsilon": 1e-5}, NORM,
    ),
    "DeepSeek 2": Family(
        "deepseek2",
        lambda i: {
            "attn_norm": (WIDTH,), "attn_q_a": (32, WIDTH), "attn_q_a_norm": (32,),
            "attn_q_b": (HEADS * 48, 32), "attn_kv_a_mqa": (32 + 16, WIDTH),
            "attn_kv_a_norm": (32,), "attn_kv_b": (HEADS * 64, 32),
            "attn_output": (WIDTH, HEADS * HEAD),
            **(dense() if i == 0 else {
                **experts(), "ffn_gate_shexp": (INNER, WIDTH), "ffn_up_shexp": (INNER, WIDTH),
                "ffn_down_shexp": (WIDTH, INNER),
            }),
        },
        {
            **MIXTURE, "leading_dense_block_count": 1, "expert_feed_forward_length": INNER,
            "expert_shared_count": 1, "attention.kv_lora_rank": 32,
            "attention.q_lora_rank": 32, "attention.key_length": 48,
            "attention.value_length": 32, "rope.dimension_count": 16, "expert_weights_scale": 1.0,
            "attention.head_count_kv": HEADS,
        },
    ),
    "DeepSeek 3": Family(
        "deepseek2",
        lambda i: {
            "attn_norm": (WIDTH,), "attn_q_a": (32, WIDTH), "attn_q_a_norm": (32,),
            "attn_q_b": (HEADS * 48, 32), "attn_kv_a_mqa": (32 + 16, WIDTH),
            "attn_kv_a_norm": (32,), "attn_k_b": (HEADS, 32, 32), "attn_v_b": (HEADS, HEAD, 32),
            "attn_output": (WIDTH, HEADS * HEAD),
            **(dense() if i == 0 else {
                **experts(), "ffn_gate_shexp": (INNER, WIDTH), "ffn_up_shexp": (INNER, WIDTH),
                "ffn_down_shexp": (WIDTH, INNER),
            }),
        },
        {
            **MIXTURE, "leading_dense_block_count": 1, "expert_feed_forward_length": INNER,
            "expert_shared_count": 1, "attention.kv_lora_rank": 32,
            "attention.q_lora_rank": 32, "attention.key_length": 48,
            "attention.value_length": 32, "attention.key_length_mla": 48,
            "attention.value_length_mla": HEAD, "rope.dimension_count": 16,
            "expert_weights_scale": 1.0,
        },
    ),
    "GLM 4 MoE": Family(
        "glm4moe",
        lambda i: {
            **attention("norms"),
            **(dense("post_attention_norm") if i == 0 else {
                **experts("post_attention_norm"), "exp_probs_b.bias": (EXPERTS,),
                "ffn_gate_shexp": (INNER, WIDTH), "ffn_up_shexp": (INNER, WIDTH),
                "ffn_down_shexp": (WIDTH, INNER),
            }),
        },
        {
            **MIXTURE, "leading_dense_block_count": 1, "expert_feed_forward_length": INNER,
            "expert_shared_count": 1,
        },
    ),
    "LFM 2": Family(
        "lfm2", lfm2,
        {"shortconv.l_cache": 3, "attention.head_count_kv": [i % 2 for i in range(LAYERS)]},
        {"token_embd_norm": (WIDTH,), **OUTPUT}, drafts="chains", left=("convolution",),
    ),
    "Mamba 2": Family("mamba2", lambda i: mamba2(), MAMBA, drafts="chains", left=SCAN),
    "Qwen 3.5": Family(
        "qwen35", qwen35, {**DELTA, **SECTIONS}, drafts="chains", left=DELTA_RULE, head=64
    ),
    "Qwen 3.5 MoE": Family(
        "qwen35moe", lambda i: qwen35(i, "moe"), {**DELTA, **SECTIONS, **SHARED_FIELDS},
        drafts="chains", left=DELTA_RULE, head=64,
    ),
    "Qwen 3 Next": Family(
        "qwen3next", lambda i: qwen35(i, "next"), {**DELTA, **SHARED_FIELDS},
        drafts="chains", left=DELTA_RULE, head=64,
    ),
    "Granite 4": Family(
        "granitehybrid", lambda i: (attention() if i % 2 else mamba2()) | dense(),
        {**MAMBA, "attention.head_count_kv": [i % 2 for i in range(LAYERS)], "attention.scale": 0.2,
         "residual_scale": 0.5, "embedding_scale": 2.0, "logit_scale": 2.0},
        drafts="chains", left=SCAN,
    ),
    "Falcon H1": Family(
        "falcon-h1", lambda i: {**attention(), **mamba2(), **dense("ffn_norm.")}, MAMBA,
        drafts="chains", left=SCAN,
    ),
    "Nemotron H": Family(
        "nemotron_h",
        lambda i: (
            mamba2() if i % 3 == 0 else attention() if i % 3 == 1
            else {"attn_norm": (WIDTH,), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
        ),
        {**MAMBA, "attention.head_count_kv": [int(i % 3 == 1) for i in range(6)],
         "attention.layer_norm_epsilon": 1e-5,
         "feed_forward_length": [INNER * (i % 3 == 2) for i in range(6)]},
        num_layers=6, drafts="chains", left=SCAN,
    ),
}  # fmt: skip


def write_family(
    path: Path,
    name: str | Family,
    *,
    noise: float = 0.0,
    kind: str = "Q8_0",
    loudness: float = 1.0,
    num_heads: int = 0,
) -> Path:
    """A model of this family; with ``noise``, one whose matrices differ by so much of their own
    size: a draft that is often right. Layers add so much (``loudness``) to their input. Behind them
    are ``num_heads`` layers of multi-token prediction, which go on from a token alone and so are
    often right where layers add little; the others have the same weights with them as without."""
    family = FAMILIES[name] if isinstance(name, str) else name
    writer = gguf.GGUFWriter(path, family.architecture)
    fields: dict[str, Any] = {
        "context_length": 1024, "embedding_length": WIDTH, "block_count": family.num_layers,
        "feed_forward_length": INNER, "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS, "attention.key_length": family.head,
        "attention.value_length": family.head, "rope.dimension_count": family.head,
        "attention.layer_norm_rms_epsilon": 1e-5, "vocab_size": VOCAB, **family.fields,
    }  # fmt: skip
    if num_heads:
        fields["block_count"] += num_heads
        fields["nextn_predict_layers"] = num_heads
    for key, value in fields.items():
        add_field(writer, f"{family.architecture}.{key}", value)
    copy_vocabulary(writer, VOCAB)
    dice, other = np.random.default_rng(1), np.random.default_rng(2)
    quantised = gguf.GGMLQuantizationType[kind]
    for tensor, shape in _tensors(family, num_heads):
        scale = shape[-1] ** -0.5 * (3.0 if tensor == "output.weight" else 1.0)
        drawn = dice.normal(0, scale, shape) + noise * other.normal(0, scale, shape)
        if tensor == "output.weight":
            drawn[LOUD:] *= 0.3
        elif _ADDS.search(tensor):
            drawn *= loudness
        elif tensor.endswith("eh_proj.weight"):
            drawn = np.hstack([np.eye(WIDTH), loudness * drawn[:, WIDTH:]])
        data = drawn.astype(np.float32)
        if "norm" in tensor:
            writer.add_tensor(tensor, np.ones_like(data))
        elif tensor.endswith("ssm_a"):
            writer.add_tensor(tensor, -np.exp(data))
        elif len(shape) > 1 and shape[-1] % 32 == 0 and tensor.endswith(".weight"):
            writer.add_tensor(tensor, gguf.quants.quantize(data, quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(tensor, data)
    return finish(writer, path)


_ADDS = re.compile(r"(attn_output|ffn_down|ffn_down_exps|ffn_down_shexp|ssm_out)\.weight$")
HEAD_LAYER: Tensors = {
    "nextn.eh_proj": (WIDTH, 2 * WIDTH), "nextn.enorm": (WIDTH,), "nextn.hnorm": (WIDTH,),
}  # fmt: skip


def _tensors(family: Family, num_heads: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, shape in {"token_embd": (VOCAB, WIDTH), **family.ends}.items():
        yield f"{name}.weight", shape
    last = family.num_layers - 1
    for i in range(family.num_layers + num_heads):
        layer = family.layer(i) if i <= last else {**family.layer(last), **HEAD_LAYER}
        for name, shape in layer.items():
            has_suffix = name.endswith((".", ".bias"))
            yield f"blk.{i}.{name.rstrip('.') if has_suffix else f'{name}.weight'}", shape


def add_field(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def write_eagle3(
    path: Path, *, layers: tuple[int, int, int] = (1, 2, 3), own: tuple[str, ...] = ()
) -> Path:
    """An EAGLE-3 head for these families, which reads the inputs of three layers and shares the
    target's embeddings and output, but for its ``own``: token_embd, output."""
    writer = gguf.GGUFWriter(path, "eagle3")
    fields: dict[str, Any] = {
        "context_length": 1024, "embedding_length": WIDTH, "block_count": 1,
        "feed_forward_length": INNER, "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS, "attention.key_length": HEAD,
        "attention.value_length": HEAD, "rope.dimension_count": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-5, "vocab_size": VOCAB,
        "target_layers": list(layers), "target_hidden_size": WIDTH,
    }  # fmt: skip
    for key, value in fields.items():
        add_field(writer, f"eagle3.{key}", value)
    copy_vocabulary(writer, VOCAB)
    dice = np.random.default_rng(3)
    layer = attention() | dense() | {"attn_norm_2": (WIDTH,)}
    layer |= {f"attn_{part}": (rows, 2 * WIDTH) for part, rows in _EAGLE_INPUTS.items()}
    shapes = {f"blk.0.{name}": shape for name, shape in layer.items()}
    shapes |= dict.fromkeys(own, (VOCAB, WIDTH))
    for name, shape in {"fc": (WIDTH, 3 * WIDTH), **NORM, **shapes}.items():
        drawn = dice.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)
        writer.add_tensor(f"{name}.weight", np.ones_like(drawn) if "norm" in name else drawn)
    return finish(writer, path)


_EAGLE_INPUTS = {"q": HEADS * HEAD, "k": KV_HEADS * HEAD, "v": KV_HEADS * HEAD}

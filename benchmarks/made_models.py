"""Write models of any shape with random weights, made on the spot: right for times and for nothing
else.

GGUF files as llama.cpp's own quantisation mixes their formats. A file repeats some megabytes of
random blocks, so that 16 GB are written in seconds. With the vocabulary of another file it decodes
texts:

    python -m benchmarks.made_models fine-experts Q4_K_M ../made.gguf --vocabulary smollm2.gguf
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import numpy as np
import typer

from duodec.errors import BadOption


@dataclass(frozen=True)
class Recurrent:
    """The layers of a Qwen3.5-like model that keep a state and no cache: all but each fourth."""

    num_key_heads: int
    num_value_heads: int
    head: int
    convolution: int = 4  # tokens

    @property
    def keys(self) -> int:
        return self.num_key_heads * self.head

    @property
    def values(self) -> int:
        return self.num_value_heads * self.head


@dataclass(frozen=True)
class Shape:
    """The sizes that a Llama-like model's cost depends on."""

    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    inner: int  # width of the feed-forward part
    num_vocab: int
    num_experts: int = 0  # feed-forward parts of ``inner`` each
    num_used: int = 0  # of them, by a token
    recurrent: Recurrent | None = None

    @property
    def head(self) -> int:
        return self.width // self.num_heads


SHAPES: Mapping[str, Shape] = {
    "tiny": Shape(2, 256, 4, 2, 512, 49152),  # for tests on a CPU
    "llama-3-8b": Shape(32, 4096, 32, 8, 14336, 128256),
    "qwen2.5-7b": Shape(28, 3584, 28, 4, 18944, 152064),
    "llama-2-7b": Shape(32, 4096, 32, 32, 11008, 32000),
}
FOR_CPU: Mapping[str, Shape] = {  # whose kernels are measured with them
    "dense": Shape(8, 2048, 32, 8, 8192, 32000),
    "experts": Shape(8, 1024, 16, 4, 1024, 32000, num_experts=16, num_used=2),
    # many of which few are used, as in models of 30 thousand million weights
    "hybrid": Shape(8, 1024, 8, 2, 3584, 32000, recurrent=Recurrent(16, 16, 128)),
    "fine-experts": Shape(4, 2048, 32, 4, 768, 32000, num_experts=128, num_used=8),
    # these as models of 35 and of 80, and gpt-oss of 20
    "finer-experts": Shape(3, 2048, 16, 2, 512, 32000, num_experts=256, num_used=8),
    "finest-experts": Shape(2, 2048, 16, 2, 512, 32000, num_experts=512, num_used=10),
    "few-experts": Shape(3, 2880, 45, 9, 2880, 32000, num_experts=32, num_used=4),
}


def shape_named(name: str) -> Shape:
    """Raises BadOption, which lists the names."""
    if name not in SHAPES:
        raise BadOption(f"unknown shape '{name}'; choose from: {', '.join(SHAPES)}")
    return SHAPES[name]


@dataclass(frozen=True)
class Format:
    """A format of weights in GGUF: bytes of a block, and where its scales of 16 bits lie."""

    type: int  # ggml's number
    columns: int  # of a block
    num_bytes: int
    scales: Mapping[int, float]  # by the place in the block, so that weights are about 0.02
    exponent: int | None = None  # the first byte of a block, in place of a scale


FORMATS: Mapping[str, Format] = {
    "F32": Format(0, 1, 4, {}),
    "Q8_0": Format(8, 32, 34, {0: 2.5e-4}),
    "Q2_K": Format(10, 256, 84, {80: 2e-3, 82: 3e-3}),
    "Q3_K": Format(11, 256, 110, {108: 4.5e-4}),
    "Q4_K": Format(12, 256, 144, {0: 6.2e-5, 2: 7.5 * 6.2e-5}),
    "Q6_K": Format(14, 256, 210, {208: 1.4e-5}),
    "IQ1_S": Format(19, 256, 50, {0: 3e-3}),
    "IQ2_XXS": Format(16, 256, 66, {0: 4e-4}),
    "IQ2_XS": Format(17, 256, 74, {0: 4e-4}),
    "IQ2_S": Format(22, 256, 82, {0: 4e-4}),
    "IQ3_XXS": Format(18, 256, 98, {0: 1.5e-4}),
    "IQ3_S": Format(21, 256, 110, {0: 1.5e-4}),
    "TQ1_0": Format(34, 256, 54, {52: 0.025}),
    "TQ2_0": Format(35, 256, 66, {64: 0.02}),
    "BF16": Format(30, 1, 2, {}),
    "MXFP4": Format(39, 32, 17, {}, exponent=120),
}
# llama.cpp's numbers of files; of one format but for the first, and MXFP4, which experts have
MIXES = {
    "Q4_K_M": 15, "Q8_0": 7, "BF16": 32, "Q2_K": 10, "Q3_K": 11, "IQ1_S": 24, "IQ2_XXS": 19,
    "IQ2_XS": 20, "IQ2_S": 29, "IQ3_XXS": 23, "IQ3_S": 26, "TQ1_0": 36, "TQ2_0": 37,
    "MXFP4": 38,
}  # fmt: skip
_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SIZES = (1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8)  # bytes of a value, by GGUF's number of its kind
_GATED_HEAD = 256  # of Qwen3.5's layers of attention
_BLOCKS = 1 << 17  # that repeat


def write_gguf(path: Path, shape: Shape, mix: str, vocabulary: Path | None = None) -> Path:
    """A file in Llama's architecture, Granite's for experts, or Qwen3.5's where layers are
    recurrent, with the ``vocabulary`` of another file or none. Raises BadOption for an unknown mix,
    and OSError."""
    if mix not in MIXES:
        raise BadOption(f"models are not made in {mix}; choose from: {', '.join(MIXES)}")
    told = _vocabulary(vocabulary) if vocabulary else {"tokenizer.ggml.model": _value("no_vocab")}
    if vocabulary:
        shape = replace(shape, num_vocab=_num_tokens(told))
    partial = path.with_suffix(".partial")
    tensors = [(name, dims, _format_of(name, shape, mix)) for name, dims in _tensors(shape)]
    with partial.open("wb") as file:
        facts = {key: _value(fact) for key, fact in _facts(shape, mix, path.stem).items()} | told
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(facts)))
        for key, value in facts.items():
            file.write(_text(key) + value)
        offset = 0
        for name, dims, kind in tensors:
            file.write(_text(name) + struct.pack("<I", len(dims)))
            file.write(struct.pack(f"<{len(dims)}QIQ", *reversed(dims), kind.type, offset))
            offset = _aligned(offset + _size(dims, kind))
        _pad(file)
        made: dict[tuple[int, float | None], memoryview] = {}
        for name, dims, kind in tensors:
            always = None if len(dims) > 1 else -1.0 if name.endswith("ssm_a") else 1.0
            if (kind.type, always) not in made:
                made[kind.type, always] = memoryview(_blocks(kind, always).tobytes())
            _repeat(file, made[kind.type, always], _size(dims, kind))
            _pad(file)
    return partial.replace(path)


def _tensors(shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names of GGUF, and rows by columns."""
    yield "token_embd.weight", (shape.num_vocab, shape.width)
    for i in range(shape.num_layers):
        for name, *dims in (
            ("attn_norm.weight", shape.width),
            *_mixing(shape, i),
            ("post_attention_norm.weight" if shape.recurrent else "ffn_norm.weight", shape.width),
            *_feed_forward(shape),
        ):
            yield f"blk.{i}.{name}", tuple(dims)
    yield "output_norm.weight", (shape.width,)
    yield "output.weight", (shape.num_vocab, shape.width)


def _mixing(shape: Shape, layer: int) -> Iterator[tuple[Any, ...]]:
    """What mixes tokens: attention, or a state."""
    kind, width = shape.recurrent, shape.width
    if kind and (layer + 1) % 4:
        yield "attn_qkv.weight", 2 * kind.keys + kind.values, width
        yield "attn_gate.weight", kind.values, width
        yield "ssm_conv1d.weight", 2 * kind.keys + kind.values, kind.convolution
        yield "ssm_dt.bias", kind.num_value_heads
        yield "ssm_a", kind.num_value_heads
        yield "ssm_beta.weight", kind.num_value_heads, width
        yield "ssm_alpha.weight", kind.num_value_heads, width
        yield "ssm_norm.weight", kind.head
        yield "ssm_out.weight", width, kind.values
        return
    head = _GATED_HEAD if kind else shape.head
    queries, keys = head * shape.num_heads, head * shape.num_kv_heads
    yield "attn_q.weight", queries * 2 if kind else queries, width  # and a gate of each
    yield "attn_k.weight", keys, width
    yield "attn_v.weight", keys, width
    yield "attn_output.weight", width, queries
    if kind:
        yield "attn_q_norm.weight", head
        yield "attn_k_norm.weight", head


def _feed_forward(shape: Shape) -> Iterator[tuple[Any, ...]]:
    """Names, and rows by columns, of experts each."""
    experts: tuple[int, ...] = ()
    ending = ".weight"
    if shape.num_experts:
        experts, ending = (shape.num_experts,), "_exps.weight"
        yield "ffn_gate_inp.weight", shape.num_experts, shape.width
    yield f"ffn_gate{ending}", *experts, shape.inner, shape.width
    yield f"ffn_up{ending}", *experts, shape.inner, shape.width
    yield f"ffn_down{ending}", *experts, shape.width, shape.inner


def _format_of(name: str, shape: Shape, mix: str) -> Format:
    """As `llama-quantize` chooses it."""
    if any(part in name for part in ("norm", "ffn_gate_inp", "ssm_a", "ssm_dt", "ssm_conv1d")):
        return FORMATS["F32"]
    if mix == "MXFP4" and "_exps" not in name:
        return FORMATS["Q8_0"]
    if mix != "Q4_K_M":
        return FORMATS[mix]
    if name == "output.weight":
        return FORMATS["Q6_K"]
    if "attn_v" in name or "ffn_down" in name:
        i, eighth = int(name.split(".")[1]), shape.num_layers // 8
        if i < eighth or i >= 7 * shape.num_layers // 8 or (i - eighth) % 3 == 2:
            return FORMATS["Q6_K"]
    return FORMATS["Q4_K"]


def _facts(shape: Shape, mix: str, name: str) -> dict[str, Any]:
    architecture, more = "llama", dict[str, Any]()
    if shape.num_experts:
        # where embeddings can be made large: of small ones, all tokens choose the same experts
        architecture = "granitemoe"
        more = {
            "expert_count": shape.num_experts, "expert_used_count": shape.num_used,
            "embedding_scale": 50.0, "residual_scale": 1.0, "logit_scale": 1.0,
            "attention.scale": shape.head**-0.5,
        }  # fmt: skip
    if kind := shape.recurrent:
        architecture = "qwen35"
        more = {
            "attention.key_length": _GATED_HEAD, "attention.value_length": _GATED_HEAD,
            "full_attention_interval": 4, "rope.dimension_count": 64, "rope.freq_base": 1e6,
            "rope.dimension_sections": (11, 11, 10, 0), "ssm.conv_kernel": kind.convolution,
            "ssm.inner_size": kind.values, "ssm.state_size": kind.head,
            "ssm.time_step_rank": kind.num_value_heads, "ssm.group_count": kind.num_key_heads,
        }  # fmt: skip
    sizes = {
        "context_length": 8192,
        "embedding_length": shape.width,
        "block_count": shape.num_layers,
        "feed_forward_length": shape.inner,
        "attention.head_count": shape.num_heads,
        "attention.head_count_kv": shape.num_kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": shape.head,
        "vocab_size": shape.num_vocab,
        **more,
    }
    return {
        "general.architecture": architecture,
        "general.name": name,
        "general.file_type": MIXES[mix],
        "general.quantization_version": 2,
        **{f"{architecture}.{key}": value for key, value in sizes.items()},
    }


def _vocabulary(path: Path) -> dict[str, bytes]:
    """The values of a GGUF file's tokenizer by their keys, as they lie there."""
    with path.open("rb") as file:
        _, _, _, num_facts = struct.unpack("<4sIQQ", file.read(24))
        facts = {_read_text(file): _read_value(file) for _ in range(num_facts)}
    return {key: value for key, value in facts.items() if key.startswith("tokenizer.")}


def _num_tokens(told: Mapping[str, bytes]) -> int:
    _, _, number = struct.unpack("<IIQ", told["tokenizer.ggml.tokens"][:16])
    return int(number)


def _read_text(file: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", file.read(8))
    return file.read(length).decode()


def _read_value(file: BinaryIO) -> bytes:
    start = file.tell()
    (kind,) = struct.unpack("<I", file.read(4))
    _pass_over(file, kind)
    end = file.tell()
    file.seek(start)
    return file.read(end - start)


def _pass_over(file: BinaryIO, kind: int) -> None:
    if kind == _ARRAY:
        inner, number = struct.unpack("<IQ", file.read(12))
        for _ in range(number):
            _pass_over(file, inner)
    elif kind == _STRING:
        _read_text(file)
    else:
        file.seek(_SIZES[kind], 1)


def _blocks(kind: Format, always: float | None) -> np.ndarray[Any, Any]:
    """Random blocks of a format, or one number of norms (1) and of decays (-1)."""
    rng = np.random.default_rng(0)
    if always is not None:
        return np.full(_BLOCKS, always, np.float32)
    if kind is FORMATS["F32"]:
        return rng.standard_normal(_BLOCKS, dtype=np.float32) * np.float32(0.02)
    if kind is FORMATS["BF16"]:
        numbers = rng.standard_normal(64 * _BLOCKS, dtype=np.float32) * np.float32(0.02)
        return (numbers.view(np.uint32) >> 16).astype(np.uint16)
    raw = rng.integers(0, 256, (_BLOCKS, kind.num_bytes), dtype=np.uint8)
    if kind.exponent is not None:
        raw[:, 0] = kind.exponent
    for place, scale in kind.scales.items():
        raw[:, place : place + 2] = np.array([scale], np.float16).view(np.uint8)
    return raw


def _size(dims: tuple[int, ...], kind: Format) -> int:
    return int(np.prod(dims)) // kind.columns * kind.num_bytes


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _pad(file: BinaryIO) -> None:
    file.write(bytes(_aligned(file.tell()) - file.tell()))


def _repeat(file: BinaryIO, blocks: memoryview, num_bytes: int) -> None:
    while num_bytes > 0:
        num_bytes -= file.write(blocks[:num_bytes])


def _text(words: str) -> bytes:
    return struct.pack("<Q", len(words.encode())) + words.encode()


def _value(value: str | int | float | tuple[int, ...]) -> bytes:
    if isinstance(value, tuple):
        return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<II", 4, value)


def main(
    shape: str,
    mix: str,
    path: Path,
    vocabulary: Annotated[
        Path | None, typer.Option(help="A GGUF file whose tokens it has.")
    ] = None,
) -> None:
    """Write one model."""
    print(write_gguf(path, {**SHAPES, **FOR_CPU}[shape], mix, vocabulary))


if __name__ == "__main__":
    typer.run(main)

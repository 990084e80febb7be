"""Write a trained EAGLE-3 head as the GGUF file that llama.cpp opens, with what it was made for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duodec.backends.llamacpp.heads.files import (
    EAGLE3,
    TARGET_BYTES,
    TARGET_NAME,
    TARGET_SHA256,
)
from duodec.machine.files import replacing
from duodec_lab.distill.eagle.layer import EagleLayer
from duodec_lab.distill.library import gguf
from duodec_lab.distill.training.student import as_array
from duodec_lab.distill.writing import FILE_TYPES, stored_as

_IN_LAYER = ("attn_norm", "attn_norm_2", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm",
             "ffn_gate", "ffn_up", "ffn_down")  # fmt: skip
_NO_WORDS = "none"  # tokenizer.ggml.model of a file without its own: the target's are numbered


@dataclass(frozen=True)
class HeadTarget:
    """The model that a head was trained for."""

    path: Path
    num_vocab: int
    num_context: int
    layers: Sequence[int]  # whose inputs the head reads


def write_head(
    layer: EagleLayer,
    matrix: NDArray[np.float32],
    tokens: NDArray[np.int64],
    target: HeadTarget,
    path: Path,
    kind: str,
) -> None:
    """Write a head whose rows of ``matrix`` guess ``tokens``, in the format ``kind``. The file
    takes its place when it is whole; raises OSError if the disk is full."""
    with replacing(path) as part, closing(gguf.GGUFWriter(part, EAGLE3)) as writer:
        _add_metadata(writer, layer, target)
        writer.add_file_type(FILE_TYPES[kind])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        writer.add_tensor("d2t", tokens, raw_dtype=gguf.GGMLQuantizationType.I64)
        for name, data in _tensors(layer, matrix):
            stored, own = stored_as(data, kind)
            writer.add_tensor(name, stored, raw_dtype=own)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


def _add_metadata(writer: Any, layer: EagleLayer, target: HeadTarget) -> None:
    shape = layer.shape
    sizes = {
        "context_length": target.num_context, "embedding_length": shape.width, "block_count": 1,
        "feed_forward_length": shape.inner, "attention.head_count": shape.num_heads,
        "attention.head_count_kv": shape.num_heads, "attention.key_length": shape.head,
        "attention.value_length": shape.head, "rope.dimension_count": shape.head,
        "vocab_size": target.num_vocab, "target_hidden_size": shape.width,
    }  # fmt: skip
    for key, number in sizes.items():
        writer.add_uint32(f"{EAGLE3}.{key}", number)
    writer.add_array(f"{EAGLE3}.target_layers", list(target.layers))
    writer.add_float32(f"{EAGLE3}.attention.layer_norm_rms_epsilon", shape.epsilon)
    writer.add_float32(f"{EAGLE3}.rope.freq_base", shape.frequency)
    writer.add_bool(f"{EAGLE3}.norm_before_fc", True)
    writer.add_tokenizer_model(_NO_WORDS)
    writer.add_name(f"{target.path.stem} head")
    writer.add_string(TARGET_NAME, target.path.name)
    writer.add_uint64(TARGET_BYTES, target.path.stat().st_size)
    with target.path.open("rb") as file:
        writer.add_string(TARGET_SHA256, file_digest(file, "sha256").hexdigest())


def _tensors(
    layer: EagleLayer, matrix: NDArray[np.float32]
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    for name, weight in layer.named_parameters():
        named = {"enc_output_norm": "enc.output_norm"}.get(name, name)
        yield f"blk.0.{name}.weight" if name in _IN_LAYER else f"{named}.weight", as_array(weight)
    yield "output.weight", matrix

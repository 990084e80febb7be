"""Write a trained student as a GGUF file, with the metadata of what it was made of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duodec.backends.llamacpp.drafts.head import FREQUENT
from duodec.backends.llamacpp.drafts.parallel import MASK_TOKEN, NUM_PARALLEL
from duodec.core.traits import Parallel
from duodec.machine.files import replacing
from duodec_lab.distill.library import gguf, torch
from duodec_lab.distill.source import PERMUTED, SourceFile
from duodec_lab.distill.training.rounding import BLOCK, as_stored
from duodec_lab.distill.training.student import as_array

FILE_TYPES = {"q4_0": 2, "q8_0": 7, "f16": 1}  # general.file_type
_DERIVED = ("GGUF.", "general.architecture", "general.file_type", "general.name", "split.",
            "general.quantization_version", FREQUENT, MASK_TOKEN, NUM_PARALLEL)  # fmt: skip
_ENDS = (".weight", ".bias")


def write_gguf(
    student: Any,
    source: SourceFile,
    path: Path,
    *,
    layers: tuple[int, ...],
    vocabulary: SourceFile | None = None,
    name: str,
    kind: str,
    frequent: Sequence[int] = (),
    parallel: Parallel | None = None,
) -> None:
    """Write the student, whose ``layers`` are those of ``source``, in the format ``kind``, which
    tokens are ``frequent`` in the target's texts, the most frequent first, and how it drafts
    several at once.

    Metadata is the source's, the tokenizer's that of ``vocabulary`` if it is another file. The file
    takes its place when it is whole; raises OSError if the disk is full.
    """
    with (
        replacing(path) as part,
        closing(gguf.GGUFWriter(part, source.architecture)) as writer,
    ):
        _add_metadata(writer, source, vocabulary or source, layers)
        writer.add_name(name)
        writer.add_file_type(FILE_TYPES[kind])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        if len(frequent):
            writer.add_array(FREQUENT, [int(token) for token in frequent])
        if parallel is not None:
            writer.add_uint32(MASK_TOKEN, parallel.mask_token)
            writer.add_uint32(NUM_PARALLEL, parallel.num_tokens)
        for tensor, data in _tensors(student, source, len(layers)):
            stored, quantised = stored_as(data, kind)
            writer.add_tensor(tensor, stored, raw_dtype=quantised)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


def _add_metadata(
    writer: Any, source: SourceFile, vocabulary: SourceFile, layers: tuple[int, ...]
) -> None:
    kind = source.architecture
    num_vocab = len(vocabulary.field("tokenizer.ggml.tokens") or ())
    for key, field in source.reader.fields.items():
        if key.startswith((*_DERIVED, "tokenizer.")):
            continue
        value = field.contents()
        if key == f"{kind}.block_count":
            value = len(layers)
        elif key == f"{kind}.vocab_size":
            value = num_vocab
        elif isinstance(value, list) and len(value) == source.num_layers > 1:
            value = [value[i] for i in layers]  # one for each layer
        _add(writer, key, field, value)
    for key, field in vocabulary.reader.fields.items():
        if key.startswith("tokenizer."):
            _add(writer, key, field, field.contents())


def _add(writer: Any, key: str, field: Any, value: Any) -> None:
    if field.types[0] == gguf.GGUFValueType.ARRAY:
        if len(value):
            writer.add_key_value(key, value, field.types[0], sub_type=field.types[-1])
    else:
        writer.add_key_value(key, value, field.types[0])


def _tensors(
    student: Any, source: SourceFile, num_layers: int
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Every weight by the name that llama.cpp gives it, and tensors that are no weights."""
    architecture = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[source.architecture]
    names = gguf.get_tensor_name_map(architecture, num_layers)
    has_head = "output.weight" in source.shapes
    config = student.config
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    for own, weight in student.state_dict().items():
        if own == "lm_head.weight" and not has_head:
            continue
        name = names.get_name(own, try_suffixes=_ENDS)
        assert name, f"{own} has no name in GGUF"
        data = as_array(weight)
        if PERMUTED[source.architecture] and (found := re.search(r"attn_(q|k)\.", name)):
            data = _permuted(data, heads if found[1] == "q" else kv_heads)
        yield name, data
    for tensor in source.reader.tensors:
        if tensor.name == "rope_freqs.weight":
            yield tensor.name, np.array(tensor.data, dtype=np.float32)


def _permuted(data: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Rows in the order of llama.cpp's rotation, in which a pair of dimensions is adjacent."""
    halves = data.reshape(num_heads, 2, data.shape[0] // num_heads // 2, *data.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(data.shape))


def stored_as(data: NDArray[np.float32], kind: str) -> tuple[NDArray[Any], Any]:
    """A matrix in the format, or the nearest that its width allows; vectors stay as they are."""
    types = gguf.GGMLQuantizationType
    if data.ndim == 1:
        return data, types.F32
    chosen = types[kind.upper()] if data.shape[-1] % BLOCK == 0 else types.F16
    rounded = as_stored(torch.from_numpy(data), kind).numpy()  # as it was trained, in every tie
    return gguf.quants.quantize(rounded, chosen), chosen

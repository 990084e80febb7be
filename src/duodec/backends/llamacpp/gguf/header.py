"""Read a model's description from a GGUF file, without its weights.

ggml's own reader parses it, so whatever llama.cpp loads can be read here.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from duodec.core.traits import ENCODERS

_PARTS = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
_ARRAY, _TEXT = 9, 8  # gguf_type
_NUMBERS: dict[int, tuple[str, Any]] = {
    0: ("u8", ctypes.c_uint8),
    1: ("i8", ctypes.c_int8),
    2: ("u16", ctypes.c_uint16),
    3: ("i16", ctypes.c_int16),
    4: ("u32", ctypes.c_uint32),
    5: ("i32", ctypes.c_int32),
    10: ("u64", ctypes.c_uint64),
    11: ("i64", ctypes.c_int64),
}


class _Params(ctypes.Structure):
    """Mirror gguf_init_params."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


@dataclass(frozen=True)
class Header:
    """Hold a model's sizes, and its tensors by name with their bytes; a file in parts counts as
    one."""

    architecture: str
    num_vocab: int
    num_context_train: int
    head_sizes: tuple[int, int]  # sizes of keys, of values
    kv_heads: tuple[int, ...]  # by layer; 0: a recurrent one, which keeps a state instead
    tensors: Mapping[str, int]
    state_numbers: int = 0  # numbers in a recurrent layer's state
    types: Mapping[str, int] = field(default_factory=dict)  # ggml's types, by tensor
    num_heads: int = 0  # layers of multi-token prediction, after the others
    pooling: int = 0  # llama_pooling_type: how a text becomes one row; 0: it does not

    @property
    def is_pooled(self) -> bool:
        """Return whether the model computes a row of each text, and does not generate."""
        return self.pooling > 0 or self.architecture in ENCODERS

    @property
    def state_bytes(self) -> int:
        """Return the bytes of one text's state, in all recurrent layers, in fp32."""
        return 4 * self.state_numbers * sum(heads == 0 for heads in self.kv_heads)

    @property
    def num_bytes(self) -> int:
        """Return the bytes of all weights."""
        return sum(self.tensors.values())

    @classmethod
    def read(cls, lib: Any, path: Path) -> Header | None:
        """Read a file; None if ggml cannot parse it: loading it reports why."""
        tensors: dict[str, int] = {}
        types: dict[str, int] = {}
        found: Header | None = None
        for part in _parts(path):
            with GgufFile(lib, part) as file:
                if not file.handle:
                    return None
                tensors |= file.tensors()
                types |= file.types()
                found = found or cls._of(file, tensors)
        return found and replace(found, types=types)

    @classmethod
    def _of(cls, file: GgufFile, tensors: Mapping[str, int]) -> Header:
        name = file.text("general.architecture")

        def numbers(key: str) -> list[int]:
            return file.numbers(f"{name}.{key}")

        def number(key: str, default: int = 0) -> int:
            return max(numbers(key), default=default)

        heads = number("attention.head_count", 1)
        own = number("embedding_length") // max(1, heads)
        num_layers = number("block_count")
        kv_heads = numbers("attention.head_count_kv") or [heads]
        if len(kv_heads) == 1:
            kv_heads *= num_layers
        if interval := number("full_attention_interval"):
            kv_heads = [n if (i + 1) % interval == 0 else 0 for i, n in enumerate(kv_heads)]
        inner, state = number("ssm.inner_size"), number("ssm.state_size")
        window = max(0, number("ssm.conv_kernel") - 1)
        num_heads = min(number("nextn_predict_layers"), len(kv_heads))
        return cls(
            architecture=name,
            num_vocab=file.length("tokenizer.ggml.tokens") or number("vocab_size"),
            num_context_train=number("context_length"),
            head_sizes=(
                number("attention.key_length", own),
                number("attention.value_length", own),
            ),
            kv_heads=tuple(kv_heads[: len(kv_heads) - num_heads]),
            num_heads=num_heads,
            pooling=number("pooling_type"),
            tensors=tensors,
            state_numbers=state * inner + window * (inner + 2 * number("ssm.group_count") * state),
        )


def _parts(path: Path) -> list[Path]:
    """Return all files of a model; the named one comes first."""
    match = _PARTS.search(path.name)
    if not match:
        return [path]
    stem = path.name[: match.start()]
    return [path, *(p for p in sorted(path.parent.glob(f"{stem}-*.gguf")) if p != path)]


class GgufFile:
    """Open a GGUF file; its handle is None if ggml cannot parse it."""

    def __init__(self, lib: Any, path: Path) -> None:
        self._lib = lib
        opened = self._call("gguf_init_from_file", ctypes.c_void_p, ctypes.c_char_p, _Params)
        self.handle = opened(os.fsencode(path), _Params(True, None))

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self.handle:
            self._call("gguf_free", None, ctypes.c_void_p)(self.handle)

    def tensors(self) -> dict[str, int]:
        count = self._of("gguf_get_n_tensors", ctypes.c_int64)()
        name = self._of("gguf_get_tensor_name", ctypes.c_char_p, ctypes.c_int64)
        size = self._of("gguf_get_tensor_size", ctypes.c_size_t, ctypes.c_int64)
        return {name(i).decode("utf-8", "replace"): size(i) for i in range(count)}

    def types(self) -> dict[str, int]:
        count = self._of("gguf_get_n_tensors", ctypes.c_int64)()
        name = self._of("gguf_get_tensor_name", ctypes.c_char_p, ctypes.c_int64)
        type_ = self._of("gguf_get_tensor_type", ctypes.c_int, ctypes.c_int64)
        return {name(i).decode("utf-8", "replace"): type_(i) for i in range(count)}

    def text(self, key: str) -> str:
        """Return a text of the metadata; empty if there is none."""
        at = self._find(key)
        if at < 0 or self._kind(at) != _TEXT:
            return ""
        value = self._of("gguf_get_val_str", ctypes.c_char_p, ctypes.c_int64)(at)
        return str(value.decode("utf-8", "replace"))

    def numbers(self, key: str) -> list[int]:
        """Return whole numbers of the metadata: one, those of an array, or none."""
        at = self._find(key)
        kind = self._kind(at) if at >= 0 else None
        if kind in _NUMBERS:
            name, number = _NUMBERS[kind]
            return [self._of(f"gguf_get_val_{name}", number, ctypes.c_int64)(at)]
        if kind != _ARRAY:
            return []
        of = self._of("gguf_get_arr_type", ctypes.c_int, ctypes.c_int64)(at)
        if of not in _NUMBERS:
            return []
        data = self._of("gguf_get_arr_data", ctypes.c_void_p, ctypes.c_int64)(at)
        return list((_NUMBERS[of][1] * self.length(key)).from_address(data))

    def length(self, key: str) -> int:
        """Return the length of an array of the metadata; 0 if there is none."""
        at = self._find(key)
        if at < 0 or self._kind(at) != _ARRAY:
            return 0
        return int(self._of("gguf_get_arr_n", ctypes.c_size_t, ctypes.c_int64)(at))

    def _find(self, key: str) -> int:
        return int(self._of("gguf_find_key", ctypes.c_int64, ctypes.c_char_p)(key.encode()))

    def _kind(self, at: int) -> int:
        return int(self._of("gguf_get_kv_type", ctypes.c_int, ctypes.c_int64)(at))

    def _of(self, name: str, result: Any, *arguments: Any) -> Any:
        """Call a function of ggml on this file."""
        function = self._call(name, result, ctypes.c_void_p, *arguments)
        return lambda *values: function(self.handle, *values)

    def _call(self, name: str, result: Any, *arguments: Any) -> Any:
        return ggml(self._lib, name, result, *arguments)


def ggml(lib: Any, name: str, result: Any, *arguments: Any) -> Any:
    """Return a function of ggml that the bindings of llama.cpp leave out."""
    function = getattr(lib._lib, name)
    function.restype, function.argtypes = result, arguments
    return function

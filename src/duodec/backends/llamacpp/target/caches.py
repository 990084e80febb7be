"""Choose the number formats of a cache of keys and values."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from duodec.backends.llamacpp.gguf.header import Header, ggml
from duodec.errors import BadOption

AUTO = "auto"
_TYPES = {  # ggml's numbers by llama.cpp's names
    "f32": 0, "f16": 1, "bf16": 30, "q8_0": 8, "q5_1": 7, "q5_0": 6, "q4_1": 3, "q4_0": 2,
    "iq4_nl": 20,
}  # fmt: skip
CACHE_TYPES = (AUTO, *_TYPES)
_QUANTISED = frozenset(name for name in _TYPES if "q" in name)
_WITHOUT_FLASH = frozenset({"grok"})  # architectures that llama.cpp computes without it


@dataclass(frozen=True)
class CacheTypes:
    """Name the formats of keys and of values. auto: formats that are exact if the context is to be
    exact."""

    keys: str = AUTO
    values: str = AUTO

    @property
    def needs_flash_attention(self) -> bool:
        """Return whether values are quantised, which only flash attention reads."""
        return self.values in _QUANTISED

    def resolved(self, *, is_width_exact: bool) -> CacheTypes:
        """Return the formats without auto: llama.cpp's f16, or keys in bf16 if a row's bits must
        not depend on the width of a forward pass."""
        keys = ("bf16" if is_width_exact else "f16") if self.keys == AUTO else self.keys
        return CacheTypes(keys, "f16" if self.values == AUTO else self.values)

    def numbers(self) -> tuple[int, int]:
        """Return ggml's numbers of the types, which are not auto."""
        return _TYPES[self.keys], _TYPES[self.values]

    def check(self, lib: Any, header: Header) -> None:
        """Raise BadOption for what llama.cpp cannot do with this model."""
        if self.needs_flash_attention and header.architecture in _WITHOUT_FLASH:
            raise BadOption(
                f"cache_type_v is {self.values}, which needs flash attention, and llama.cpp has "
                f"none for {header.architecture}; use f16"
            )
        for part, name, size in zip("kv", (self.keys, self.values), header.head_sizes, strict=True):
            if name == AUTO:
                continue
            block = ggml(lib, "ggml_blck_size", ctypes.c_int64, ctypes.c_int)(_TYPES[name])
            if size % block:
                raise BadOption(
                    f"cache_type_{part} is {name}, whose blocks of {block} numbers do not fill "
                    f"this model's heads of {size}; use f16 or bf16"
                )

    def bytes_per_token(self, lib: Any, header: Header) -> int:
        """Return the bytes of keys and values of every layer."""
        row = ggml(lib, "ggml_row_size", ctypes.c_size_t, ctypes.c_int, ctypes.c_int64)
        numbers = self.resolved(is_width_exact=False).numbers()
        sizes = zip(numbers, header.head_sizes, strict=True)
        return int(sum(row(kind, size) for kind, size in sizes) * sum(header.kv_heads))

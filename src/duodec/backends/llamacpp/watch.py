"""Copy the inputs of a model's layers, if its graph does not name them for llama.cpp's staging.

llama.cpp calls back for each operation of a forward pass; the outputs of layers have names.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duodec.backends.llamacpp.gguf.header import ggml

State = NDArray[np.float32]  # one row per token


class Watch:
    """Copy the inputs of some layers of a model in each forward pass of a context."""

    def __init__(self, lib: Any, layers: Sequence[int], width: int) -> None:
        self._width = width
        self._by_name = {f"l_out-{layer - 1}".encode(): layer for layer in layers}
        self._parts = dict[int, list[State]]()
        self._name = ggml(lib, "ggml_get_name", ctypes.c_char_p, ctypes.c_void_p)
        self._size = ggml(lib, "ggml_nbytes", ctypes.c_size_t, ctypes.c_void_p)
        self._read = ggml(
            lib, "ggml_backend_tensor_get", None,
            ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t,
        )  # fmt: skip
        self.callback = lib.ggml_backend_sched_eval_callback(self._look)

    def taken(self) -> dict[int, State]:
        """Return the states of the last pass, by layer, and forget them."""
        parts, self._parts = self._parts, {}
        return {layer: np.concatenate(found) for layer, found in parts.items()}

    def _look(self, tensor: int, is_before: bool, _: object) -> bool:
        """Ask for a tensor before it is computed, and copy it afterwards."""
        layer = self._by_name.get(self._name(tensor))
        if layer is None:
            return False
        if not is_before:
            found = np.empty((self._size(tensor) // (4 * self._width), self._width), np.float32)
            self._read(tensor, found.ctypes.data, 0, found.nbytes)
            self._parts.setdefault(layer, []).append(found)
        return True

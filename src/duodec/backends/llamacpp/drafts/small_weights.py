"""Pack a draft's weights in 4.5 bits if its file has more: a step mostly reads weights.

A draft only guesses, so its weights may be rounded. Many small models are published in 8 bits, or
in 5 and 8 if their rows fit no K-quant. Our kernels read each row of the file and round it to
IQ4_NL (32 weights a scale, a fixed table of 16 values). They use Q4_0 (16 equal steps) if the
processor multiplies codes of eight bits at half the speed of four. Then they pack the row.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.gguf.header import ggml


@contextmanager
def small_weights(lib: Any) -> Iterator[None]:
    """While entered, let models that this thread loads have small weights. Other kernels compute
    the file's weights."""
    if not library.kernels(lib) or not hasattr(lib._lib, "duodec_pack_small"):
        yield
        return
    pack_small = ggml(lib, "duodec_pack_small", None, ctypes.c_bool)
    pack_small(True)
    try:
        yield
    finally:
        pack_small(False)

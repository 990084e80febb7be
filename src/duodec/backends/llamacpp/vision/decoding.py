"""Let a context of llama.cpp read a picture: embeddings in place of tokens."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from duodec.backends.interrupts import stoppable
from duodec.backends.llamacpp.vision.layout import Run
from duodec.errors import ContextExceeded


def check_size(run: Run, num_batch: int) -> None:
    """Raises ContextExceeded for a picture whose tokens see each other and exceed a forward
    pass."""
    num = run.end - run.begin
    if not run.image.is_causal and num > num_batch:
        raise ContextExceeded(
            f"a picture has {num} tokens, which this model must read at once, and a forward pass "
            f"takes {num_batch}; send a smaller picture"
        )


def decode(lib: Any, handle: object, run: Run, seqs: Sequence[int], num_batch: int) -> int:
    """Compute the cells of a picture in these sequences. Returns the status of llama_decode, whose
    rows of the pass before are lost. Raises ComputeFailed where the picture cannot be encoded."""
    rows, positions = run.image.rows(), run.image.positions(run.position)
    if not run.image.is_causal:  # its tokens see those behind them, too
        lib.llama_set_causal_attn(handle, False)
    try:
        for begin in range(0, len(rows), num_batch):
            end = min(begin + num_batch, len(rows))
            part = _Batch(lib, rows[begin:end], positions[:, begin:end], seqs)
            with stoppable():
                status = int(lib.llama_decode(handle, part.struct))
            if status:
                return status
        return 0
    finally:
        if not run.image.is_causal:
            lib.llama_set_causal_attn(handle, True)


class _Batch:
    """A llama_batch of embeddings, none of which gives a row."""

    def __init__(self, lib: Any, rows: Any, positions: Any, seqs: Sequence[int]) -> None:
        num = len(rows)
        self._rows = np.ascontiguousarray(rows, dtype=np.float32)
        self._positions = np.ascontiguousarray(positions, dtype=np.int32)  # axis by axis
        self._num_seqs = np.full(num, len(seqs), dtype=np.int32)
        self._seqs = np.array(seqs, dtype=np.int32)
        self._places = np.full(num, self._seqs.ctypes.data, dtype=np.uintp)
        self._wanted = np.zeros(num, dtype=np.int8)
        fields = dict(lib.llama_batch._fields_)
        self.struct = lib.llama_batch()
        self.struct.n_tokens = num
        for name, array in (
            ("embd", self._rows),
            ("pos", self._positions),
            ("n_seq_id", self._num_seqs),
            ("seq_id", self._places),
            ("logits", self._wanted),
        ):
            setattr(self.struct, name, ctypes.cast(array.ctypes.data, fields[name]))

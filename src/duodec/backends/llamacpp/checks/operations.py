"""List what a model's forward passes leave to llama.cpp's kernels on the CPU."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from duodec.backends.llamacpp.gguf.header import ggml
from duodec.backends.llamacpp.model import LlamaModel, open_context
from duodec.backends.llamacpp.target.context import Batch
from duodec.backends.llamacpp.target.recurrent import NUM_SNAPSHOTS
from duodec.backends.tree_cache import Entry
from duodec.errors import ComputeFailed

_SEVERAL = 8  # tokens; some layers compute one token by other operations than several
_CONTEXT = 256
_BATCH = 2 * NUM_SNAPSHOTS  # tokens of a pass; more than the snapshots that are kept
# Each row of their results depends on one row, or on one element of several rows each.
_BY_ROW = frozenset(
    {"ADD", "ADD_ID", "ARGSORT", "CLAMP", "CONCAT", "CONT", "CPY", "DIV", "GET_ROWS", "GLU", "MUL",
     "NORM", "REPEAT", "RMS_NORM", "ROPE", "SCALE", "SET_ROWS", "SOFT_MAX", "SQR", "SUM_ROWS",
     "UNARY"}
)  # fmt: skip
_NAMES = {
    "FLASH_ATTN_EXT": "attention",
    "GATED_DELTA_NET": "delta rule",
    "MUL_MAT": "products",
    "MUL_MAT_ID": "products of experts",
    "SSM_CONV": "convolution",
    "SSM_SCAN": "state scan",
}


@dataclass(frozen=True)
class Operation:
    """Describe an operation of a forward pass."""

    name: str  # the documentation's name; ggml's own if the documentation has none
    source: str  # the first tensor that it reads; the weights for products


def left_to_llama_cpp(model: LlamaModel) -> frozenset[Operation]:
    """Return which operations of forward passes of one token and of several our kernels do not
    compute, without operations on one row at a time. Raises ModelUnreadable and ComputeFailed."""
    describe = ggml(model.lib, "duodec_left", ctypes.c_char_p, ctypes.c_void_p)
    found: set[Operation] = set()

    def look(operation: int, is_before: bool, _: object) -> bool:
        if is_before and (told := describe(operation)):
            kind, _, source = told.decode("utf-8", "replace").partition(" ")
            if kind not in _BY_ROW:
                found.add(Operation(_NAMES.get(kind, kind), source))
        return False  # no caller waits for its result

    _compute(model, model.lib.ggml_backend_sched_eval_callback(look))
    return frozenset(found)


def _compute(model: LlamaModel, on_operation: object) -> None:
    lib = model.lib
    handle = open_context(
        model,
        num_context=_CONTEXT,
        num_sequences=1,
        num_threads=1,
        num_batch=_BATCH,
        max_rows=_SEVERAL,
        is_width_exact=True,
        num_snapshots=NUM_SNAPSHOTS if model.is_recurrent else 0,
        on_operation=on_operation,
    )
    try:
        batch = Batch(lib, _BATCH, 1)
        for begin, end in ((0, 1), (1, 1 + _SEVERAL)):
            batch.fill([Entry(0, i, (0,), i - begin) for i in range(begin, end)])
            if status := lib.llama_decode(handle, batch.struct):
                raise ComputeFailed(
                    f"llama.cpp could not compute {model.path.name} (status {status})"
                )
    finally:
        lib.llama_free(handle)

"""Bind the functions of llama.cpp's multimodal library (mtmd) that are used here.

It lies beside llama.cpp's own libraries. Only what turns a picture into embeddings is bound: no
decoder of picture files, and nothing of sound or video. Structures are those of the version that
`duodec.backends.llamacpp.build` names.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from duodec.backends.llamacpp import library
from duodec.errors import BackendUnavailable

TEXT, IMAGE = 0, 1  # mtmd_input_chunk_type
MARKER = b"<__media__>"

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
_NAMES = {"win32": "mtmd.dll", "darwin": "libmtmd.dylib"}


class ContextParams(ctypes.Structure):
    """mtmd_context_params."""

    _fields_ = (
        ("use_gpu", ctypes.c_bool),
        ("device", _POINTER),
        ("print_timings", ctypes.c_bool),
        ("n_threads", ctypes.c_int),
        ("image_marker", ctypes.c_char_p),
        ("media_marker", ctypes.c_char_p),
        ("flash_attn_type", ctypes.c_int),
        ("warmup", ctypes.c_bool),
        ("image_min_tokens", ctypes.c_int),
        ("image_max_tokens", ctypes.c_int),
        ("cb_eval", _POINTER),
        ("cb_eval_user_data", _POINTER),
        ("batch_max_tokens", ctypes.c_int32),
        ("progress_callback", _POINTER),
        ("progress_callback_user_data", _POINTER),
    )


class InputText(ctypes.Structure):
    """mtmd_input_text."""

    _fields_ = (
        ("text", ctypes.c_char_p),
        ("text_len", _SIZE),
        ("add_special", ctypes.c_bool),
        ("parse_special", ctypes.c_bool),
    )


class DecoderPosition(ctypes.Structure):
    """mtmd_decoder_pos: positions in time, by column and by row."""

    _fields_ = tuple((name, ctypes.c_uint32) for name in ("t", "x", "y", "z"))


_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "mtmd_context_params_default": (ContextParams, ()),
    "mtmd_init_from_file": (_POINTER, (ctypes.c_char_p, _POINTER, ContextParams)),
    "mtmd_free": (None, (_POINTER,)),
    "mtmd_support_vision": (ctypes.c_bool, (_POINTER,)),
    "mtmd_decode_use_non_causal": (ctypes.c_bool, (_POINTER, _POINTER)),
    "mtmd_decode_use_mrope": (ctypes.c_bool, (_POINTER,)),
    "mtmd_bitmap_init": (_POINTER, (ctypes.c_uint32, ctypes.c_uint32, ctypes.c_char_p)),
    "mtmd_bitmap_free": (None, (_POINTER,)),
    "mtmd_input_chunks_init": (_POINTER, ()),
    "mtmd_input_chunks_free": (None, (_POINTER,)),
    "mtmd_input_chunks_size": (_SIZE, (_POINTER,)),
    "mtmd_input_chunks_get": (_POINTER, (_POINTER, _SIZE)),
    "mtmd_input_chunk_get_type": (ctypes.c_int, (_POINTER,)),
    "mtmd_input_chunk_get_tokens_text": (
        ctypes.POINTER(ctypes.c_int32), (_POINTER, ctypes.POINTER(_SIZE))
    ),
    "mtmd_input_chunk_get_tokens_image": (_POINTER, (_POINTER,)),
    "mtmd_input_chunk_get_n_tokens": (_SIZE, (_POINTER,)),
    "mtmd_input_chunk_get_n_pos": (ctypes.c_int32, (_POINTER,)),
    "mtmd_input_chunk_copy": (_POINTER, (_POINTER,)),
    "mtmd_input_chunk_free": (None, (_POINTER,)),
    "mtmd_image_tokens_get_decoder_pos": (DecoderPosition, (_POINTER, ctypes.c_int32, _SIZE)),
    "mtmd_tokenize": (
        ctypes.c_int32,
        (_POINTER, _POINTER, ctypes.POINTER(InputText), ctypes.POINTER(_POINTER), _SIZE),
    ),
    "mtmd_encode_chunk": (ctypes.c_int32, (_POINTER, _POINTER)),
    "mtmd_get_output_embd": (ctypes.POINTER(ctypes.c_float), (_POINTER,)),
    "mtmd_log_set": (None, (_POINTER, _POINTER)),
}  # fmt: skip


@cache
def load() -> Any:
    """The library, loaded once a process. Raises BackendUnavailable."""
    llama = library.load()
    path = library.folder(llama) / _NAMES.get(sys.platform, "libmtmd.so")
    try:
        found = ctypes.CDLL(os.fspath(path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = found[name]
            function.restype, function.argtypes = result, arguments
            setattr(found, name, function)
    except (OSError, AttributeError) as error:
        raise BackendUnavailable(_missing(path)) from error
    if not os.environ.get("DUODEC_LLAMA_LOG"):
        nowhere = ctypes.cast(llama._lib.llama_max_devices, _POINTER)
        found.mtmd_log_set(nowhere, None)
    return found


def _missing(path: Path) -> str:
    return (
        f"this llama.cpp has no library for pictures ({path.name}); build it with `duodec setup`, "
        "or leave `mmproj` out"
    )

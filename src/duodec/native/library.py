"""Load the compiled inner loops and call them.

Calls keep Python's lock, so no other thread sees a half-finished change. They take microseconds;
reading a long prompt and forgetting half of a store take milliseconds.
"""

from __future__ import annotations

import weakref
from array import array
from ctypes import POINTER, PyDLL, c_char_p, c_double, c_float, c_int64, c_uint64, c_void_p
from functools import cache
from typing import Any, Union

from duodec.errors import BackendUnavailable
from duodec.native.build import library_path

MAX_ORDER = 3  # tokens in the context of a recycled row
NUM_CANDIDATES = 8  # candidates kept per row for drafts

Numbers = Union["array[int]", "array[float]"]

_RESULTS_AND_ARGUMENTS = {
    "duodec_max_order": (c_int64, []),
    "duodec_num_candidates": (c_int64, []),
    "duodec_end_after": (None, [c_void_p, c_int64, c_int64]),
    "duodec_draw": (
        c_int64,
        [c_void_p, c_void_p, c_int64, c_float, c_uint64, c_void_p, c_void_p],
    ),
    "duodec_grow": (c_int64, [c_char_p, c_void_p, c_void_p, c_void_p]),
    "duodec_learn": (
        None,
        [c_char_p, c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_void_p],
    ),
    "duodec_without": (c_int64, [c_char_p, c_int64, c_void_p, c_int64, c_void_p]),
    "duodec_propose": (c_int64, [c_char_p, c_char_p, c_void_p, c_void_p, c_void_p, c_void_p]),
    "duodec_fastest_width": (
        c_int64,
        [c_void_p, c_int64, c_void_p, c_void_p, *[c_double] * 6],
    ),
    "duodec_top": (c_int64, [c_void_p, c_int64, c_int64, c_void_p]),
    "duodec_best_two": (c_int64, [c_void_p, c_int64, c_void_p, c_void_p]),
    "duodec_likeliest": (c_int64, [c_void_p, c_int64, c_int64, c_void_p, c_void_p]),
    "duodec_candidates": (c_int64, [c_void_p, c_int64, c_int64, c_void_p, c_void_p]),
    "duodec_noisy": (
        c_int64,
        [c_void_p, c_int64, c_int64, c_int64, c_float, c_uint64, c_void_p, c_void_p],
    ),
    "duodec_rows_new": (c_void_p, [c_int64]),
    "duodec_rows_free": (None, [c_void_p]),
    "duodec_rows_size": (c_int64, [c_void_p]),
    "duodec_rows_add": (None, [c_void_p, c_void_p, c_int64, c_void_p, c_void_p, c_int64]),
    "duodec_rows_longest": (
        c_int64,
        [c_void_p, c_void_p, c_int64, c_void_p, c_void_p, POINTER(c_int64)],
    ),
    "duodec_suffixes_new": (c_void_p, [c_int64, c_int64]),
    "duodec_suffixes_free": (None, [c_void_p]),
    "duodec_suffixes_size": (c_int64, [c_void_p]),
    "duodec_suffixes_cells": (c_int64, [c_void_p]),
    "duodec_suffixes_extend": (None, [c_void_p, c_void_p, c_int64]),
    "duodec_suffixes_end": (None, [c_void_p]),
    "duodec_suffixes_speculate": (
        c_int64,
        [
            c_void_p,
            c_void_p,
            c_int64,
            c_double,
            c_double,
            c_int64,
            c_int64,
            c_void_p,
            c_void_p,
            c_void_p,
        ],
    ),
}


@cache
def library() -> PyDLL:
    """Return the library, loaded once. Raises BackendUnavailable if it was not built: in a checkout
    that was not set up, or whose C++ files have changed since."""
    path = library_path()
    try:
        found = PyDLL(str(path))
    except OSError as error:
        raise BackendUnavailable(
            f"the compiled part of duodec cannot be loaded ({error}); run python -m "
            "duodec.native.build in its checkout, or install duodec anew"
        ) from error
    for name, (result, arguments) in _RESULTS_AND_ARGUMENTS.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    sizes = found.duodec_max_order(), found.duodec_num_candidates()
    assert sizes == (MAX_ORDER, NUM_CANDIDATES), "the sizes in rows.h are those of Python"
    return found


class Handle:
    """Own an object in the library, which is freed with this one and cannot be copied."""

    def __init__(self, kind: str, *sizes: int) -> None:
        """``kind`` is the middle part of its functions' names."""
        self.library = library()
        self.address: int = getattr(self.library, f"duodec_{kind}_new")(*sizes)
        free = getattr(self.library, f"duodec_{kind}_free")
        # Not at exit, because a thread may still be in it.
        weakref.finalize(self, free, self.address).atexit = False

    def __reduce__(self) -> Any:
        raise TypeError("an object of the compiled library cannot be copied")


def address(numbers: Numbers) -> int:
    """Return the address of an array's numbers, valid until it grows."""
    return numbers.buffer_info()[0]

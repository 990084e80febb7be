"""Load the compiled library and call it.

Calls keep Python's lock, so that nothing in them is seen half done. They take microseconds; to read
a long prompt and to forget half of a store takes milliseconds.
"""

from __future__ import annotations

from array import array
from ctypes import POINTER, PyDLL, c_char_p, c_double, c_int64, c_void_p
from pathlib import Path
from typing import Union

from duodec.core.protocols import NUM_CANDIDATES

SOURCES = Path(__file__).parent  # a folder
MAX_ORDER = 3  # tokens of a context of a recycled row
SIZES = {"MAX_ORDER": MAX_ORDER, "NUM_CANDIDATES": NUM_CANDIDATES}

Numbers = Union["array[int]", "array[float]"]

_RESULTS_AND_ARGUMENTS = {
    "duodec_grow": (c_int64, [c_char_p, c_void_p, c_void_p, c_void_p]),
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

_library: PyDLL | None = None


def use(path: Path | None) -> None:
    """Use the library at ``path`` from now on; None: Python. Raises OSError where it cannot be
    loaded."""
    global _library
    _library = None
    library = None if path is None else PyDLL(str(path))
    if library is not None:
        for name, (result, arguments) in _RESULTS_AND_ARGUMENTS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    _library = library


def library() -> PyDLL | None:
    """What `use` has loaded."""
    return _library


def address(numbers: Numbers) -> int:
    """Where an array's numbers are, until it grows."""
    return numbers.buffer_info()[0]

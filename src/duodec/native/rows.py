"""Keep recycled rows in the compiled library."""

from __future__ import annotations

import weakref
from array import array
from ctypes import PyDLL, c_int64

from duodec.core.protocols import NUM_CANDIDATES, Candidates
from duodec.native.library import address


class NativeRows:
    """What `RecycledRows` keeps."""

    def __init__(self, library: PyDLL, max_contexts: int) -> None:
        self._library = library
        self.handle: int = library.duodec_rows_new(max_contexts)
        freed = weakref.finalize(self, library.duodec_rows_free, self.handle)
        freed.atexit = False  # a thread may be selecting still

    def __len__(self) -> int:
        return int(self._library.duodec_rows_size(self.handle))

    def add(self, context: tuple[int, ...], candidates: Candidates) -> None:
        before, tokens = array("i", context), array("i", candidates.tokens)
        confidences = array("d", candidates.confidences)
        self._library.duodec_rows_add(
            self.handle, address(before), len(before), address(tokens),
            address(confidences) if confidences else None, len(tokens),
        )  # fmt: skip

    def longest(self, context: tuple[int, ...]) -> tuple[int, Candidates] | None:
        before, num = array("i", context), c_int64()
        tokens, confidences = (
            array("i", bytes(4 * NUM_CANDIDATES)),
            array("d", bytes(8 * NUM_CANDIDATES)),
        )
        order: int = self._library.duodec_rows_longest(
            self.handle, address(before), len(before), address(tokens), address(confidences), num
        )
        if not order:
            return None
        count = abs(num.value)
        sure = tuple(confidences[: max(0, num.value)])
        return order, Candidates(tuple(tokens[:count]), sure)

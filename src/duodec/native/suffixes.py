"""Keep texts and search them in the compiled library."""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Iterable
from ctypes import PyDLL

from duodec.native.library import address


class NativeSuffixes:
    """What `Suffixes` keeps."""

    def __init__(self, library: PyDLL, max_depth: int, max_tokens: int) -> None:
        self._library = library
        self._handle: int = library.duodec_suffixes_new(max_depth, max_tokens)
        freed = weakref.finalize(self, library.duodec_suffixes_free, self._handle)
        freed.atexit = False  # a thread may be searching still

    def __len__(self) -> int:
        return int(self._library.duodec_suffixes_size(self._handle))

    def extend(self, tokens: Iterable[int]) -> None:
        added = array("i", tokens)
        self._library.duodec_suffixes_extend(self._handle, address(added), len(added))

    def end(self) -> None:
        self._library.duodec_suffixes_end(self._handle)

    def speculate(
        self, tail: list[int], factor: float, min_share: float, most: int, max_places: int
    ) -> tuple[array[int], array[int], array[float], float, int]:
        text = array("i", tail)
        tokens, parents = array("i", bytes(4 * most)), array("i", bytes(4 * most))
        shares = array("d", bytes(8 * (most + 2)))
        num: int = self._library.duodec_suffixes_speculate(
            self._handle, address(text), len(text), factor, min_share, most, max_places,
            address(tokens), address(parents), address(shares),
        )  # fmt: skip
        score, length = shares[num], int(shares[num + 1])
        return tokens[:num], parents[:num], shares[:num], score, length

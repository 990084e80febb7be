"""Compute the rows of a draft's head that belong to the tokens that texts are made of.

A large part of what a draft's step reads is its head, most of whose rows belong to tokens that
hardly ever occur (FR-Spec, arXiv 2502.14856; VocabTrim, 2506.22694). Our kernels pack the rows by
frequency. They compute the first ones and those of tokens in the text, which recur more often than
any others (MicroSpec, 2605.26444). Other tokens are not drafted. If a text still continues with
others, in another script for instance, all rows are computed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.gguf.header import GgufFile, ggml
from duodec.core.prefix import common_prefix
from duodec.core.sampling.sampler import Tokens

FREQUENT = "duodec.frequent_tokens"  # metadata of a draft's file: tokens, the most frequent first
_NORMAL = 1  # llama_token_type: a token of text
BYTE_PAIRS = "gpt2"  # tokenizer.ggml.model of tokens that are numbered by their frequency
_NONE: Tokens = np.zeros(0, dtype=np.int32)
_RECENT = 256  # tokens of a text that show which tokens it uses
_LEAST_SHARE = 0.8  # share of them that were frequent or had occurred before
MOST_RARE = 512  # the latest tokens that are not frequent, each in another tile
MANY_TOKENS = 40_000  # vocabulary size from which a part is computed by default
_MOST, _PART = 32_768, 3  # this many rows, and a third of a smaller vocabulary's


@dataclass(frozen=True)
class Frequency:
    """Say which rows of a head are computed first."""

    is_frequent: NDArray[np.bool_]  # shape (vocab,)

    @classmethod
    def of(
        cls, kinds: NDArray[Any], counted: Sequence[int], is_numbered: bool, most: int
    ) -> Frequency:
        """Return the first ``most`` of the tokens that were ``counted``, the most frequent first.
        If numbers tell the frequency (``is_numbered``), others follow by number. All tokens that
        are not text, such as the ends of turns, are added. ``kinds`` are GGUF's, for each token."""
        texts = np.flatnonzero(kinds == _NORMAL).tolist() if is_numbered else []
        is_frequent = kinds != _NORMAL
        is_frequent[list(dict.fromkeys([*counted, *texts]))[:most]] = True
        return cls(is_frequent)

    @property
    def num(self) -> int:
        return int(np.count_nonzero(self.is_frequent))

    @property
    def order(self) -> NDArray[np.int32]:
        """Return all tokens: the frequent ones first, each part ascending."""
        return np.argsort(~self.is_frequent, kind="stable").astype(np.int32)

    def new_share(self, text: Tokens) -> float:
        """Return the share of a text's last tokens that occurred for the first time, and are not
        frequent."""
        recent = text[-_RECENT:]
        return len(np.unique(self.rare(recent))) / max(1, len(recent))

    def rare(self, tokens: Tokens) -> Tokens:
        """Return the tokens that are not frequent."""
        return tokens[~self.is_frequent[tokens]]


def frequency(lib: Any, path: Path, most: int | None) -> Frequency | None:
    """Return the ``most`` most frequent tokens of a draft's file, and all that are not text, such
    as the ends of turns. None if these are all tokens, or if the frequency is unknown: a file's
    metadata tells it, and so do the numbers of byte pairs, which were merged in the order of their
    frequency. If ``most`` is None it is chosen here."""
    with GgufFile(lib, path) as file:
        if not file.handle:
            return None  # loading reports what is wrong with the file
        kinds = np.array(file.numbers("tokenizer.ggml.token_type"))
        counted = [token for token in file.numbers(FREQUENT) if token < len(kinds)]
        is_numbered = file.text("tokenizer.ggml.model") == BYTE_PAIRS
    if most is None:
        most = min(_MOST, len(kinds) // _PART) if len(kinds) > MANY_TOKENS else 0
    if not 0 < most < (len(kinds) if is_numbered else len(set(counted))):
        return None
    found = Frequency.of(kinds, counted, is_numbered, most)
    return None if found.is_frequent.all() else found


class Head:
    """Hold the head of a draft, whose rows our kernels pack by frequency as they load it. Other
    kernels compute all rows, whatever the text."""

    def __init__(self, lib: Any, frequency: Frequency) -> None:
        self._lib, self._frequency = lib, frequency
        self._address: int | None = None
        self._text = _NONE
        # Rare tokens whose rows are computed, the latest first; None: all.
        self._rare: Tokens | None = None
        self._is_computed = frequency.is_frequent.copy()  # used if _rare is not None

    def load(self, load: Callable[[], Any]) -> Any:
        """Load the model, in this very thread."""
        if not library.kernels(self._lib) or not hasattr(self._lib._lib, "duodec_order_rows"):
            return load()
        order = self._frequency.order
        arrange = ggml(self._lib, "duodec_order_rows", None, ctypes.c_void_p, ctypes.c_int64)
        arrange(order.ctypes.data, len(order))
        try:
            return load()
        finally:
            arrange(None, 0)
            self._address = ggml(self._lib, "duodec_ordered_head", ctypes.c_void_p)()

    def fit(self, text: Tokens) -> None:
        """Compute the rows that a text needs, from the next forward pass on. A text with another
        beginning does not get the last text's tokens."""
        if self._address is None:
            return
        num_known = common_prefix(self._text, text)
        new, self._text = text[num_known:], text
        if not len(new):
            return
        if self._frequency.new_share(text) > 1 - _LEAST_SHARE:
            if self._rare is not None:
                self._rare = None
                self._compute(len(self._frequency.is_frequent))
            return
        if self._rare is None or not num_known:
            self._rare = _latest(self._frequency.rare(text))[:MOST_RARE]
        else:
            lacking = new[~self._is_computed[new]]
            if not len(lacking):
                return
            self._rare = _latest(np.concatenate([self._rare[::-1], lacking]))[:MOST_RARE]
        self._compute(self._frequency.num, self._rare)
        self._is_computed[:] = self._frequency.is_frequent
        self._is_computed[self._rare] = True

    def _compute(self, num_first: int, others: Tokens = _NONE) -> None:
        """Compute the first ``num_first`` rows in the order in which they are packed, and those of
        other tokens."""
        compute = ggml(
            self._lib, "duodec_compute_rows", None,
            ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64,
        )  # fmt: skip
        others = np.ascontiguousarray(others, dtype=np.int32)
        compute(self._address, num_first, others.ctypes.data, len(others))


def _latest(tokens: Tokens) -> Tokens:
    """Return each token once, the last one first."""
    _, first = np.unique(tokens[::-1], return_index=True)
    return tokens[::-1][np.sort(first)]

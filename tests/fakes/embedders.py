"""Embedders without a library: a text's row is made of its letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import sleep

import numpy as np

from duodec.backends.loaded import Rows

BEGIN, END = 1, 2


@dataclass
class LetterEmbedder:
    """A token is a character; a row counts them, by their remainder, and is not normalised. As one
    that ``ranks``, a row says how many letters of the query a document has."""

    num_context: int = 64
    num_dims: int = 16
    ranks: bool = False
    is_matryoshka: bool = False
    seconds: float = 0.0  # that a forward pass takes
    num_pass: int = 128
    most_texts: int = 8
    num_vocab: int = 0x110000
    pooling: str = "mean"
    shares_cores: bool = True
    num_mapped_bytes: int = 0
    num_forwards: int = 0
    is_closed: bool = False
    passes: list[list[int]] = field(default_factory=list)  # lengths of the texts of each
    on_pass: Callable[[], None] = lambda: None

    def tokens_of(self, text: str) -> list[int]:
        return [BEGIN, *map(ord, text), END]

    def pair_tokens(self, query: str, document: str) -> list[int]:
        return [BEGIN, *map(ord, query), END, *map(ord, document), END]

    def cut(self, tokens: Sequence[int]) -> list[int]:
        kept = list(tokens)
        return kept if len(kept) <= self.num_context else [*kept[: self.num_context - 1], END]

    def rows(self, texts: Sequence[Sequence[int]]) -> Rows:
        assert not self.is_closed
        assert len(texts) <= self.most_texts
        assert len(texts) == 1 or sum(map(len, texts)) <= self.num_pass
        self.passes.append([len(text) for text in texts])
        self.num_forwards += 1
        self.on_pass()
        sleep(self.seconds)
        return np.stack([self._row([int(token) for token in text]) for text in texts])

    def close(self) -> None:
        self.is_closed = True

    def _row(self, text: list[int]) -> Rows:
        if self.ranks:
            at = text.index(END)
            query, document = set(text[1:at]), text[at + 1 : -1]
            return np.array([sum(one in query for one in document)], np.float32)
        found = np.zeros(self.num_dims, np.float32)
        np.add.at(found, [token % self.num_dims for token in text], 1)
        return found

"""Vocabularies made of merges, and models that say one text, whatever the vocabulary."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from duodec.core.drafters import DraftModel
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Context
from duodec.testing import TableDraftModel

_WORDS = re.compile(rb" ?\S+|\s+")
_SAID, _UNSAID = 9.0, 0.0  # logits


@dataclass(frozen=True)
class Merged:
    """Byte pair encoding: single bytes, merges of two earlier tokens, control tokens, in an order
    of its own. Words are tokenised apart, as real tokenizers do."""

    merges: tuple[tuple[bytes, bytes], ...] = ()
    controls: tuple[bytes, ...] = (b"<begin>", b"<end>")
    first: int = 0  # the number of the first token: numbers are rotated
    letters: bytes = bytes(range(256))
    begins: bool = False  # a text begins with <begin>
    chat_template: str | None = None

    @cached_property
    def texts(self) -> list[bytes]:
        """Every token once, by number."""
        singles = [bytes([letter]) for letter in self.letters]
        merged = [left + right for left, right in self.merges]
        every = list(dict.fromkeys([*singles, *merged, *self.controls]))
        return every[-self.first % len(every) :] + every[: -self.first % len(every)]

    @cached_property
    def numbers(self) -> dict[bytes, int]:
        return {text: token for token, text in enumerate(self.texts)}

    @property
    def num_vocab(self) -> int:
        return len(self.texts)

    @property
    def bos(self) -> int:
        return self.numbers[self.controls[0]] if self.controls else -1

    @property
    def eos(self) -> int:
        return self.numbers[self.controls[-1]] if self.controls else -1

    def token_text(self, token: int) -> bytes:
        return self.texts[token]

    def piece(self, token: int) -> bytes:
        text = self.texts[token]
        return b"" if text in self.controls else text

    def is_end(self, token: int) -> bool:
        return token == self.eos

    def tokenize(self, text: str, *, is_templated: bool) -> list[int]:
        found = [self.bos] if self.begins else []
        found += (t for word in _WORDS.findall(text.encode()) for t in self.spelled(word))
        return found

    def spelled(self, word: bytes) -> list[int]:
        parts = [bytes([letter]) for letter in word]
        for left, right in self.merges:
            i = 0
            while i < len(parts) - 1:
                if (parts[i], parts[i + 1]) == (left, right):
                    parts[i : i + 2] = [left + right]
                i += 1
        return [self.numbers[part] for part in parts if part in self.numbers]


def learned(text: bytes, num_merges: int) -> tuple[tuple[bytes, bytes], ...]:
    """The merges that byte pair encoding learns of a text."""
    words = [[bytes([letter]) for letter in word] for word in _WORDS.findall(text)]
    merges: list[tuple[bytes, bytes]] = []
    for _ in range(num_merges):
        counts: dict[tuple[bytes, bytes], int] = {}
        for word in words:
            for pair in pairwise(word):
                counts[pair] = counts.get(pair, 0) + 1
        if not counts:
            break
        best = max(counts, key=lambda pair: (counts[pair], pair))
        merges.append(best)
        for word in words:
            i = 0
            while i < len(word) - 1:
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = [best[0] + best[1]]
                i += 1
    return tuple(merges)


@dataclass(frozen=True)
class SaysOneText:
    """A model that goes on with a text that repeats itself, in the tokens of its vocabulary, where
    what precedes is that text; elsewhere it is unsure. ``noise`` is added to its logits."""

    vocabulary: Merged
    text: bytes
    noise: float = 0.0
    seconds: float = 0.0
    num_asked: list[int] = field(default_factory=list, compare=False)

    @property
    def num_vocab(self) -> int:
        return self.vocabulary.num_vocab

    def logits(self, context: Context) -> Row:
        tokens = context.tokens().tolist()
        said = b"".join(self.vocabulary.piece(token) for token in tokens)
        rng = np.random.default_rng([len(tokens), *tokens[-3:]])
        row = rng.normal(0, self.noise, self.num_vocab) if self.noise else np.zeros(self.num_vocab)
        row += _UNSAID
        at = len(said) % len(self.text)
        if (self.text * (1 + len(said) // len(self.text))).startswith(said):
            rest = (self.text * 2)[at : at + 40]
            word = _WORDS.match(rest)
            assert word
            row[self.vocabulary.spelled(word[0])[0]] += _SAID
        return row.astype(np.float32)

    def load(self) -> DraftModel:
        model = TableDraftModel(self)  # type: ignore[arg-type]  it has logits, and that is all
        object.__setattr__(model, "vocabulary", self.vocabulary)
        return model

"""Spell tokens as bytes and bytes as tokens, in one vocabulary."""

from __future__ import annotations

import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duodec.core.tokenizers import Speller

_REMEMBERED = 1 << 14  # short texts
_SHORT = 64  # bytes
_LONGEST_TOKEN = 64  # bytes that a search for the longest token examines
_AFTER_ALL = b"\xff" * 8

# No tokenizer that splits texts at spaces joins what it has split between two words.
_CUT = re.compile(rb"(?<=\S)(?= )|(?<=[0-9A-Za-z])(?=\n)")


@dataclass(frozen=True)
class SpelledVocabulary:
    """Hold a vocabulary by value, with a tokenizer of the library ``tokenizers``."""

    texts: tuple[bytes, ...]  # by token, as in `token_text`
    pieces: tuple[bytes, ...]
    bos: int
    eos: int
    ends: frozenset[int]
    tokenizer: Any  # reads no control tokens

    @property
    def num_vocab(self) -> int:
        return len(self.texts)

    def load(self) -> Speller:
        self.tokenizer.encode_special_tokens = True  # this setting is not pickled
        return self

    def token_text(self, token: int) -> bytes:
        return self.texts[token]

    def piece(self, token: int) -> bytes:
        return self.pieces[token]

    def is_end(self, token: int) -> bool:
        return token in self.ends

    def tokenize(self, text: str, *, is_templated: bool) -> list[int]:
        """Return the tokens of a text in which nothing is a control token."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)


class Spelling:
    """Hold the bytes of every token, and find the tokens of bytes with the vocabulary's own
    tokenizer.

    ``token_of`` names one token for its bytes. If several have the same bytes it is the last, since
    single bytes come before the letters that they spell. ``specials`` are the tokens that add
    nothing to a text, by the vocabulary's own entry.
    """

    def __init__(self, vocabulary: Speller) -> None:
        self.vocabulary = vocabulary
        every = range(vocabulary.num_vocab)
        self.pieces = [vocabulary.piece(token) for token in every]
        self.token_of = {piece: t for t, piece in enumerate(self.pieces) if piece}
        self.specials = {
            vocabulary.token_text(t): t for t, piece in enumerate(self.pieces) if not piece
        }
        self._longest = min(_LONGEST_TOKEN, max(map(len, self.token_of), default=0))
        self._known: dict[bytes, tuple[int, ...]] = {}
        self._sorted = sorted(self.token_of)
        self._in_order = np.array([self.token_of[p] for p in self._sorted], dtype=np.int32)

    def tokens_of(self, data: bytes) -> tuple[int, ...]:
        """Return the tokens of bytes that stand within a text. Whole characters get the tokenizer's
        tokens. Parts of a character, and bytes that the tokenizer changes, get the longest tokens
        that fit."""
        found = self._known.get(data)
        if found is None:
            found = tuple(self._tokens_of(data))
            if len(data) <= _SHORT:
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()
                self._known[data] = found
        return found

    def words_of(self, data: bytes) -> tuple[int, ...]:
        """Return the tokens of a short text, word by word."""
        return tuple(token for word in _CUT.split(data) for token in self.tokens_of(word))

    def begun_with(self, prefix: bytes) -> NDArray[np.int32]:
        """Return the tokens that begin with ``prefix`` and are longer."""
        pieces = self._sorted
        begin = bisect_left(pieces, prefix)
        end = bisect_left(pieces, prefix + _AFTER_ALL, begin)
        begin += begin < end and pieces[begin] == prefix
        return self._in_order[begin:end]

    def _tokens_of(self, data: bytes) -> list[int]:
        tokens: list[int] = []
        while data:
            try:
                text = data.decode()
                broken = b""
            except UnicodeDecodeError as error:
                text = data[: error.start].decode()
                broken = data[error.start : error.end]
            whole = len(text.encode())
            tokens += self._characters(text, data[:whole])
            tokens += self._longest_of(broken)
            data = data[whole + len(broken) :]
        return tokens

    def _characters(self, text: str, data: bytes) -> list[int]:
        """Return the tokens of whole characters."""
        if not text:
            return []
        # Some tokenizers put a space before every text, which may be the one that begins it.
        for tried in (text, text[1:]) if text[0] == " " else (text,):
            tokens = self.vocabulary.tokenize(tried, is_templated=False) if tried else []
            tokens = [token for token in tokens if self.pieces[token]]
            for begin in (0, 1):
                if b"".join(self.pieces[token] for token in tokens[begin:]) == data:
                    return tokens[begin:]
        return self._longest_of(data)

    def _longest_of(self, data: bytes) -> list[int]:
        """Return the longest token that fits, then the longest after it; bytes of no token are left
        out."""
        tokens: list[int] = []
        begin = 0
        while begin < len(data):
            for length in range(min(self._longest, len(data) - begin), 0, -1):
                token = self.token_of.get(data[begin : begin + length])
                if token is not None:
                    tokens.append(token)
                    begin += length
                    break
            else:
                begin += 1
        return tokens


def last_cut(data: bytes, longest: int) -> int:
    """Return where the last word begins that may still grow; it is at most ``longest`` bytes
    long."""
    begin = max(0, len(data) - longest)
    cut = begin
    for found in _CUT.finditer(data, begin):
        cut = found.start()
    if cut == begin:
        cut = max(0, len(data) - longest // 2) if begin else 0
        while cut and data[cut] & 0xC0 == 0x80:  # within a character
            cut -= 1
    return cut


def last_word(data: bytes) -> bytes:
    """Return what follows the last cut."""
    return _CUT.split(data)[-1]

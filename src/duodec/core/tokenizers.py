"""Define vocabularies and tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from duodec.core.special_tokens import SpecialTokens, Spelled


class Vocabulary(Protocol):
    """Number the tokens of a model; two vocabularies are compared by this."""

    @property
    def num_vocab(self) -> int: ...
    @property
    def bos(self) -> int: ...
    @property
    def eos(self) -> int: ...
    def token_text(self, token: int) -> bytes: ...
    def is_end(self, token: int) -> bool: ...


class Speller(Vocabulary, Protocol):
    """Turn text into tokens and back."""

    def tokenize(self, text: str, *, is_templated: bool) -> list[int]: ...
    def piece(self, token: int) -> bytes: ...


class Tokenizer(Speller, Protocol):
    """Add a chat template to a model's vocabulary."""

    @property
    def chat_template(self) -> str | None: ...
    @property
    def controls(self) -> SpecialTokens:
        """Return the tokens that direct the model; no user's text may spell them."""

    def tokenize_around(self, text: str, controls: Sequence[Spelled]) -> list[int]:
        """Return the tokens of a templated text in which these are the only control tokens."""

"""A vocabulary with control tokens, and servers whose models write what a test says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from duodec.chat.prompting import chat_tokens
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Context
from duodec.core.special_tokens import SpecialTokens, Spelled
from duodec.llm import LLM
from duodec.testing import InlineDrafter, TableModel, TableTarget

_PRINTABLE = 96  # ASCII's letters and signs, and the end of a line


@dataclass(frozen=True)
class Tags:
    """ASCII's letters and signs, then control tokens, then a token that ends the answer."""

    chat_template: str | None
    tags: tuple[str, ...] = ()
    bos: int = -1

    @property
    def num_vocab(self) -> int:
        return _PRINTABLE + len(self.tags) + 1

    @property
    def eos(self) -> int:
        return self.num_vocab - 1

    @cached_property
    def controls(self) -> SpecialTokens:
        return SpecialTokens({tag: _PRINTABLE + i for i, tag in enumerate(self.tags)})

    def token_text(self, token: int) -> bytes:
        if token < _PRINTABLE:
            return self.piece(token)
        return b"<end>" if token == self.eos else self.tags[token - _PRINTABLE].encode()

    def tokenize(self, text: str, *, is_templated: bool) -> list[int]:
        return self.tokenize_around(text, [*self.controls.find(text)] if is_templated else [])

    def tokenize_around(self, text: str, controls: Sequence[Spelled]) -> list[int]:
        tokens, begin = [], 0
        for found in controls:
            tokens += [*map(_letter, text[begin : found.begin]), found.token]
            begin = found.end
        return [*tokens, *map(_letter, text[begin:])]

    def piece(self, token: int) -> bytes:
        return b"" if token >= _PRINTABLE else b"\n" if token == 95 else bytes([32 + token])

    def is_end(self, token: int) -> bool:
        return token == self.eos


def _letter(letter: str) -> int:
    return 95 if letter == "\n" else (ord(letter) - 32) % 95


def random_model(tokenizer: Tags, num_context: int = 3000) -> LLM:
    """A model that would write anything, with a draft model that mostly agrees."""
    table = TableModel(num_vocab=tokenizer.num_vocab, seed=7)
    drafter = InlineDrafter(replace(table, noise=0.2).load())
    return LLM(TableTarget(table), tokenizer, num_context, drafter)


@dataclass(frozen=True)
class WillingModel(TableModel):
    """Wants to write a text, each token at its place, wherever something else was written."""

    wish: tuple[int, ...] = ()

    def logits(self, context: Context) -> Row:
        row = super().logits(context)
        place = len(context.tokens())
        if place < len(self.wish):
            row[self.wish[place]] += 100.0
        return row


def willing_model(
    tokenizer: Tags, answer: str, messages: Sequence[dict[str, Any]], **shown: Any
) -> LLM:
    """A model that wants to give this answer, control tokens and all, to these messages."""
    prompt = chat_tokens(tokenizer, messages, **shown)
    wish = (*prompt, *tokenizer.tokenize(answer, is_templated=True), tokenizer.eos)
    table = WillingModel(num_vocab=tokenizer.num_vocab, seed=7, wish=wish)
    return LLM(TableTarget(table), tokenizer, 3000, InlineDrafter(table.load()))

"""Refuse prompts that cannot fit the context, before the whole of them is tokenised.

A token stands for so many characters at most, so a text has a least number of tokens. Texts that
are long for the context, yet within that bound, are counted part by part, and no further than the
context reaches: what a tokenizer costs may grow faster than the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from duodec.errors import ContextExceeded
from duodec.inputs import TOO_LONG

_PLENTY = 8  # characters a token: longer texts than a context of such tokens are counted in parts
_MOST = 32  # characters a token: a run of blanks may have more, and takes seconds
_LEAST = 1 << 16  # characters that are read in any case
_PART = 8192  # characters


class Tokenizer(Protocol):
    """What must be known of a vocabulary."""

    @property
    def num_vocab(self) -> int: ...
    def token_text(self, token: int) -> bytes: ...
    def piece(self, token: int) -> bytes: ...
    def tokenize(self, text: str, *, is_templated: bool) -> list[int]: ...


@dataclass(frozen=True)
class PromptLimits:
    """The limits of one model. ``longest``: bytes of the longest token; ``parse_special``: control
    tokens that texts spell are control tokens."""

    tokenizer: Tokenizer
    num_context: int
    longest: int
    parse_special: bool

    @classmethod
    def of(cls, tokenizer: Tokenizer, num_context: int, *, parse_special: bool) -> PromptLimits:
        """Reads the vocabulary: a second for the largest."""
        tokens = range(tokenizer.num_vocab)
        sizes = (max(len(tokenizer.piece(t)), len(tokenizer.token_text(t))) for t in tokens)
        return cls(tokenizer, num_context, max(1, max(sizes, default=1)), parse_special)

    def check_number(self, messages: object) -> None:
        """Of messages, before anything else is looked at: each has a token at least. Raises
        ContextExceeded."""
        if isinstance(messages, list) and len(messages) >= self.num_context:
            raise ContextExceeded(
                f"the prompt has {len(messages)} messages and the context holds "
                f"{self.num_context} tokens; send fewer"
            )

    def check_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> None:
        """Raises ContextExceeded."""
        self._check([*_texts(messages), *_texts(tools)])

    def check_text(self, prompt: str | Sequence[int]) -> None:
        """Raises ContextExceeded."""
        if isinstance(prompt, str):
            self._check([prompt])
        elif len(prompt) >= self.num_context:
            raise self._exceeded(len(prompt))

    def check_rendered(self, text: str) -> None:
        """Of what a template has written, control tokens included. Raises ContextExceeded."""
        self._check([text], is_templated=True)

    def _check(self, texts: Sequence[str], *, is_templated: bool | None = None) -> None:
        num_characters = sum(map(len, texts))
        if (least := num_characters // self.longest) >= self.num_context:
            raise self._exceeded(least)
        if num_characters <= _PLENTY * self.num_context:
            return
        if num_characters > (most := max(_LEAST, _MOST * self.num_context)):
            raise ContextExceeded(
                f"the prompt has {num_characters} characters and {most} are read for a context of "
                f"{self.num_context} tokens; {TOO_LONG}"
            )
        num_tokens = 0
        is_templated = self.parse_special if is_templated is None else is_templated
        for text in texts:
            for begin in range(0, len(text), _PART):
                part = text[begin : begin + _PART]
                found = len(self.tokenizer.tokenize(part, is_templated=is_templated))
                # a cut may make one token many
                num_tokens += max(0, found - self.longest)
                if num_tokens >= self.num_context:
                    raise self._exceeded(num_tokens)

    def _exceeded(self, least: int) -> ContextExceeded:
        return ContextExceeded(
            f"the prompt has {least} tokens or more and the context holds {self.num_context}; "
            f"{TOO_LONG}"
        )


def _texts(value: Any) -> Iterator[str]:
    """Every text in a JSON value."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, Mapping):
            left += item.values()
        elif isinstance(item, Sequence):
            left += item

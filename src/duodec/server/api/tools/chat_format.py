"""Apply a template's dialect to one model's vocabulary: its prompts, grammars and responses."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from duodec.chat.prompting import ControlVocabulary
from duodec.chat.template import Message
from duodec.core.grammar import Grammar
from duodec.core.protocols import Tokenizer
from duodec.core.special_tokens import SpecialTokens
from duodec.errors import BadOption
from duodec.llm import LLM
from duodec.server.api.requests import ChatWish
from duodec.server.api.tools.call import Tool
from duodec.server.api.tools.dialects import Dialect, Wanted, dialect_of
from duodec.server.api.tools.grammars import literal_for

_END_TOKENS = 32  # of a prompt: as many as the tags that may be at its end


@dataclass(frozen=True)
class Speech:
    """How one model writes calls and reasoning, by its template and its control tokens."""

    dialect: Dialect
    tokenizer: Tokenizer

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Speech:
        return cls(dialect_of(tokenizer.chat_template), tokenizer)

    def prompt(self, llm: LLM, asked: ChatWish, check: Callable[[str], object]) -> list[int]:
        """The tokens of a conversation. ``check`` may refuse what the template writes. Raises
        BadOption.

        Most templates want a call's arguments as an object, and some as its text.
        """

        def tokens_of(messages: Sequence[Message]) -> list[int]:
            return llm.tokens_of(
                messages, tools=asked.tools, variables=asked.variables, check=check
            )

        try:
            return tokens_of(asked.messages)
        except BadOption as refusal:
            if not any(message.get("tool_calls") for message in asked.messages):
                raise
            try:
                return tokens_of([_with_text(message) for message in asked.messages])
            except BadOption:
                raise refusal from None

    def end_of(self, prompt: Sequence[int]) -> str:
        """The last words of a prompt, control tokens included."""
        piece, text = self.tokenizer.piece, self.tokenizer.token_text
        parts = [piece(token) or text(token) for token in prompt[-_END_TOKENS:]]
        return b"".join(parts).decode("utf-8", "replace")

    def grammar(self, wanted: Wanted, prompt_end: str) -> Grammar | None:
        """What a response must match."""
        return self.dialect.grammar(wanted, prompt_end, literal_for(self._controls))

    def shown(self, tools: Sequence[Tool]) -> frozenset[int]:
        """The control tokens that a response is read by."""
        known = self._controls.tokens if self._controls else {}
        return frozenset(known[text] for text in self.dialect.markers(tools) if text in known)

    @property
    def _controls(self) -> SpecialTokens | None:
        tokenizer = self.tokenizer
        return tokenizer.controls if isinstance(tokenizer, ControlVocabulary) else None


def _with_text(message: Message) -> dict[str, Any]:
    """A message whose calls have their arguments as text."""
    calls = message.get("tool_calls", ())
    return {
        **message,
        **({"tool_calls": [_call_with_text(call) for call in calls]} if calls else {}),
    }


def _call_with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    words = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {**call, "function": {**function, "arguments": words}}

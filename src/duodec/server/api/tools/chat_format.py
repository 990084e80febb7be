"""Write prompts of chats, read and constrain the responses, in the format of a model's template.

Which tags surround calls and reasoning is told from the template; which of them are control tokens,
from the vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol

from duodec.backends.grammar.llguidance import rules_as
from duodec.chat.template import Message
from duodec.core.sampling.grammar import Grammar
from duodec.core.tokenizers import Tokenizer
from duodec.errors import BadOption
from duodec.llm import LLM
from duodec.server.api.tools import harmony, smollm
from duodec.server.api.tools.call import Format, Literal, Tool
from duodec.server.api.tools.deepseek import ALL_BEGIN, DEEPSEEK_3, DEEPSEEK_31
from duodec.server.api.tools.grammars import check_definitions, literal_for, until
from duodec.server.api.tools.json_calls import (
    Hermes,
    JsonList,
    Llama,
    MistralList,
    MistralNamed,
)
from duodec.server.api.tools.pythonic import LFM2, OLMO
from duodec.server.api.tools.reasoning import THINKING, PlainReader, ReasoningReader, Tags
from duodec.server.api.tools.splitting import Reader, ToolCalls
from duodec.server.api.tools.tagged import GLM, QWEN_CODER
from duodec.server.api.tools.untagged import OrUntagged
from duodec.server.errors import ApiError

_END_TOKENS = 32  # of a prompt: as many as the tags that may be at its end
_BLANK = r"(/[ \n]{1,4}/)?"  # between reasoning and what follows it


@dataclass(frozen=True)
class Expected:
    """What a response must be: a text of a grammar, or calls of these tools, or either. Anything
    where both are empty."""

    text: Grammar | None = None
    calls: Sequence[Tool] = ()
    is_many: bool = True  # several calls at once


class Syntax(Protocol):
    """How a model writes calls and reasoning."""

    @property
    def has_tools(self) -> bool:
        """The template has a place for tools, and calls are understood."""

    @property
    def has_reasoning(self) -> bool:
        """The model may reason before it answers."""

    def written(
        self, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> tuple[Sequence[Message], Sequence[Tool]]:
        """What the template is shown: tools may be told in messages."""

    def markers(self, tools: Sequence[Tool]) -> Sequence[str]:
        """Texts that are needed to read a response, and may be control tokens."""

    def reader(
        self, tools: Sequence[Tool], prompt_end: str, *, is_certain: bool = False
    ) -> Reader | None:
        """Reads one response to a prompt with this end; None where all of it is text.
        ``is_certain``: what begins as a call is one, since a grammar makes it so."""

    def grammar(self, expected: Expected, prompt_end: str, literal: Literal) -> Grammar | None:
        """What the response must match."""


@dataclass(frozen=True)
class TaggedText:
    """A text, with blocks of calls and with reasoning before it, where the model has them."""

    calls: Format | None = None
    thinking: Tags | None = None
    telling: Callable[[Sequence[Message], Sequence[Tool]], list[Message]] | None = None

    @property
    def has_tools(self) -> bool:
        return self.calls is not None

    @property
    def has_reasoning(self) -> bool:
        return self.thinking is not None

    def written(
        self, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> tuple[Sequence[Message], Sequence[Tool]]:
        return (messages, tools) if self.telling is None else (self.telling(messages, tools), ())

    def markers(self, tools: Sequence[Tool]) -> Sequence[str]:
        tags = (self.thinking.begin, self.thinking.end) if self.thinking else ()
        return [*tags, *(self.calls.markers if self.calls and tools else ())]

    def reader(
        self, tools: Sequence[Tool], prompt_end: str, *, is_certain: bool = False
    ) -> Reader | None:
        then = None
        if self.calls and tools:
            then = ToolCalls(self.calls, tools, is_certain=is_certain)
        if self.thinking is None:
            return then
        return ReasoningReader(
            self.thinking, self.thinking.state(prompt_end), then or PlainReader()
        )

    def grammar(self, expected: Expected, prompt_end: str, literal: Literal) -> Grammar | None:
        kinds, rules = [], []
        if expected.calls:
            assert self.calls is not None, "tools are refused before"
            kinds.append("calls")
            check_definitions(expected.calls)
            rules += self.calls.rules(expected.calls, literal, is_many=expected.is_many)
        state = self.thinking.state(prompt_end) if self.thinking else "closed"
        if state == "closed" and not kinds:
            return expected.text
        if expected.text is not None:
            kinds.append("said")
            rules.append(rules_as("said", expected.text))
        if not kinds:
            return None
        start = f"start: ({' | '.join(kinds)})"
        if self.thinking and state != "closed":
            head = "" if state == "open" else f"{literal(self.thinking.begin)} "
            thoughts = f"{head}thoughts {_BLANK}"
            start = f"start: {thoughts if state == 'open' else f'({thoughts})?'} answer"
            rules += [f"answer: {' | '.join(kinds)}", until("thoughts", self.thinking.end, literal)]
        return Grammar("lark", "\n".join([start, *rules]))


class Harmony:
    """gpt-oss's messages on channels."""

    has_tools = has_reasoning = True

    def written(
        self, messages: Sequence[Message], tools: Sequence[Tool]
    ) -> tuple[Sequence[Message], Sequence[Tool]]:
        return messages, tools

    def markers(self, tools: Sequence[Tool]) -> Sequence[str]:
        return harmony.MARKERS

    def reader(
        self, tools: Sequence[Tool], prompt_end: str, *, is_certain: bool = False
    ) -> Reader | None:
        return harmony.Messages()

    def grammar(self, expected: Expected, prompt_end: str, literal: Literal) -> Grammar | None:
        kinds, rules = [], []
        if expected.calls:
            kinds.append("calls")
            check_definitions(expected.calls)
            rules += harmony.called(expected.calls, literal)
        if expected.text is not None:
            kinds.append("last")
            rules += [f"last: {harmony.said(literal)} said", rules_as("said", expected.text)]
        if not kinds:
            return None
        start = f"start: thoughts? ({' | '.join(kinds)})"
        return Grammar("lark", "\n".join([start, *harmony.thoughts(literal), *rules]))


@lru_cache(maxsize=8)
def syntax_of(template: str | None) -> Syntax:
    """The syntax of a chat template, by the tags that it writes."""
    template = template or ""
    if "<|channel|>" in template and "<|message|>" in template:
        return Harmony()
    thinking = next((tags for tags in THINKING if tags.end in template), None)
    if "tools" not in template and "named SmolLM" in template:
        return TaggedText(
            OrUntagged(JsonList(smollm.BEGIN, smollm.END)), thinking, smollm.with_tools
        )
    return TaggedText(_calls_of(template) if "tools" in template else None, thinking)


def _calls_of(template: str) -> Format | None:
    """The most special tags first: several formats share ``<tool_call>``."""
    found: Sequence[tuple[str, Format]] = (
        ("[ARGS]", MistralNamed()),
        ("[TOOL_CALLS]", OrUntagged(MistralList())),
        (ALL_BEGIN, DEEPSEEK_3 if "```json" in template else DEEPSEEK_31),
        ("<arg_key>", GLM),
        ("<function=", QWEN_CODER),
        ("<tool_call>", OrUntagged(Hermes())),
        ("<|tool_call_start|>", LFM2),
        ("<function_calls>", OLMO),
        ("<|/tool_call|>", OrUntagged(JsonList(finish="<|/tool_call|>"))),
        ("<|tool_call|>", OrUntagged(JsonList())),
        ("<|python_tag|>", Llama()),
        ('"parameters": dictionary', Llama()),
    )
    return next((form for tag, form in found if tag in template), None)


@dataclass(frozen=True)
class ChatFormat:
    """The format of one model: the syntax of its template, and its control tokens."""

    syntax: Syntax
    tokenizer: Tokenizer

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ChatFormat:
        return cls(syntax_of(tokenizer.chat_template), tokenizer)

    def check_tools(self, tools: Sequence[Tool]) -> None:
        """Raises ApiError where the template has no place for them."""
        if tools and not self.syntax.has_tools:
            raise ApiError(
                400, "the model's chat template has no tools that are understood here; leave them "
                "out, or serve a model that was trained for them",
                param="tools", code="unsupported_parameter",
            )  # fmt: skip

    def prompt(
        self,
        llm: LLM,
        messages: Sequence[Message],
        tools: Sequence[Tool],
        variables: Mapping[str, Any],
        check: Callable[[str], object],
    ) -> list[int]:
        """The tokens of a conversation. ``check`` may refuse what the template writes. Raises
        BadOption.

        Most templates want a call's arguments as an object, and some as its text.
        """
        messages, tools = self.syntax.written(messages, tools)
        tokens_of = partial(llm.tokens_of, tools=tools, variables=variables, check=check)
        try:
            return tokens_of(messages)
        except BadOption as refusal:
            if not any(message.get("tool_calls") for message in messages):
                raise
            try:
                return tokens_of([_with_text(message) for message in messages])
            except BadOption:
                raise refusal from None

    def end_of(self, prompt: Sequence[int]) -> str:
        """The last characters of a prompt, control tokens included."""
        piece, text = self.tokenizer.piece, self.tokenizer.token_text
        parts = [piece(token) or text(token) for token in prompt[-_END_TOKENS:]]
        return b"".join(parts).decode("utf-8", "replace")

    def grammar(self, expected: Expected, prompt_end: str) -> Grammar | None:
        """What a response must match."""
        return self.syntax.grammar(expected, prompt_end, literal_for(self.tokenizer.controls))

    def reader(self, tools: Sequence[Tool], prompt_end: str, *, is_certain: bool) -> Reader | None:
        """As the syntax has it."""
        return self.syntax.reader(tools, prompt_end, is_certain=is_certain)

    def shown(self, tools: Sequence[Tool]) -> frozenset[int]:
        """The control tokens that a response is read by."""
        known = self.tokenizer.controls.tokens
        return frozenset(known[text] for text in self.syntax.markers(tools) if text in known)


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

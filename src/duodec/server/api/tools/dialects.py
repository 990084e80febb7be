"""Tell from a chat template how a model writes calls and reasoning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from duodec.backends.llguidance import rules_as
from duodec.core.grammar import Grammar
from duodec.server.api.tools import harmony
from duodec.server.api.tools.call import Format, Literal, Tool
from duodec.server.api.tools.deepseek import ALL_BEGIN, DEEPSEEK_3, DEEPSEEK_31
from duodec.server.api.tools.grammars import check_definitions, until
from duodec.server.api.tools.json_calls import Hermes, JsonList, Llama, MistralList, MistralNamed
from duodec.server.api.tools.pythonic import LFM2, OLMO
from duodec.server.api.tools.reasoning import THINKING, Tags, Thoughts, WithoutThoughts
from duodec.server.api.tools.splitting import Reader, ToolCalls
from duodec.server.api.tools.tagged import GLM, QWEN_CODER

_BLANK = r"(/[ \n]{1,4}/)?"  # between reasoning and what follows it


@dataclass(frozen=True)
class Wanted:
    """What a response must be: calls of these tools, or what is said in a format, or either.
    Anything where both are empty."""

    said: Grammar | None = None
    called: Sequence[Tool] = ()
    is_many: bool = True  # several calls at once


class Dialect(Protocol):
    """How a model writes calls and reasoning."""

    @property
    def has_tools(self) -> bool:
        """The template has a place for tools, and calls are understood."""

    def markers(self, tools: Sequence[Tool]) -> Sequence[str]:
        """Texts that are needed to read a response, and may be control tokens."""

    def reader(
        self, tools: Sequence[Tool], prompt_end: str, *, is_certain: bool = False
    ) -> Reader | None:
        """Reads one response to a prompt with this end; None where all of it is said.
        ``is_certain``: what begins as a call is one, since a grammar makes it so."""

    def grammar(self, wanted: Wanted, prompt_end: str, literal: Literal) -> Grammar | None:
        """What the response must match."""


@dataclass(frozen=True)
class TaggedText:
    """A text, with blocks of calls and with reasoning before it, where the model has them."""

    calls: Format | None = None
    thinking: Tags | None = None

    @property
    def has_tools(self) -> bool:
        return self.calls is not None

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
        return Thoughts(self.thinking, self.thinking.state(prompt_end), then or WithoutThoughts())

    def grammar(self, wanted: Wanted, prompt_end: str, literal: Literal) -> Grammar | None:
        kinds, rules = [], []
        if wanted.called:
            assert self.calls is not None, "tools are refused before"
            kinds.append("calls")
            check_definitions(wanted.called)
            rules += self.calls.rules(wanted.called, literal, is_many=wanted.is_many)
        state = self.thinking.state(prompt_end) if self.thinking else "closed"
        if state == "closed" and not kinds:
            return wanted.said
        if wanted.said is not None:
            kinds.append("said")
            rules.append(rules_as("said", wanted.said))
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

    has_tools = True

    def markers(self, tools: Sequence[Tool]) -> Sequence[str]:
        return harmony.MARKERS

    def reader(
        self, tools: Sequence[Tool], prompt_end: str, *, is_certain: bool = False
    ) -> Reader | None:
        return harmony.Messages()

    def grammar(self, wanted: Wanted, prompt_end: str, literal: Literal) -> Grammar | None:
        kinds, rules = [], []
        if wanted.called:
            kinds.append("calls")
            check_definitions(wanted.called)
            rules += harmony.called(wanted.called, literal)
        if wanted.said is not None:
            kinds.append("last")
            rules += [f"last: {harmony.said(literal)} said", rules_as("said", wanted.said)]
        if not kinds:
            return None
        start = f"start: thoughts? ({' | '.join(kinds)})"
        return Grammar("lark", "\n".join([start, *harmony.thoughts(literal), *rules]))


@lru_cache(maxsize=8)
def dialect_of(template: str | None) -> Dialect:
    """The dialect of a chat template, by the tags that it writes."""
    template = template or ""
    if "<|channel|>" in template and "<|message|>" in template:
        return Harmony()
    thinking = next((tags for tags in THINKING if tags.end in template), None)
    return TaggedText(_calls_of(template) if "tools" in template else None, thinking)


def _calls_of(template: str) -> Format | None:
    """The most special tags first: several formats share ``<tool_call>``."""
    found: Sequence[tuple[str, Format]] = (
        ("[ARGS]", MistralNamed()),
        ("[TOOL_CALLS]", MistralList()),
        (ALL_BEGIN, DEEPSEEK_3 if "```json" in template else DEEPSEEK_31),
        ("<arg_key>", GLM),
        ("<function=", QWEN_CODER),
        ("<tool_call>", Hermes()),
        ("<|tool_call_start|>", LFM2),
        ("<function_calls>", OLMO),
        ("<|/tool_call|>", JsonList(finish="<|/tool_call|>")),
        ("<|tool_call|>", JsonList()),
        ("<|python_tag|>", Llama()),
        ('"parameters": dictionary', Llama()),
    )
    return next((form for tag, form in found if tag in template), None)

"""Read and constrain gpt-oss's responses: messages on channels, between control tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from duodec.backends.grammar.llguidance import json_term
from duodec.server.api.tools.call import (
    Call,
    Found,
    Literal,
    Reasoning,
    Tool,
    call_id,
    name_of,
    parameters_of,
)
from duodec.server.api.tools.grammars import until
from duodec.server.api.tools.splitting import place_of
from duodec.server.http.json_limits import parse

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
END, CALL, RETURN, CONSTRAIN = "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"
MARKERS = (START, CHANNEL, MESSAGE, END, CALL, RETURN, CONSTRAIN)
_CLOSING = (END, CALL, RETURN, START)
_RECIPIENT = re.compile(r"to=(?:functions\.)?([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


class Messages:
    """Splits a response, which begins within the header of its first message.

    The analysis is reasoning, what is for a function is a call, and all else is said.
    """

    def __init__(self) -> None:
        self._held = ""
        self._header: str | None = None  # of the message whose text comes; None: within a header

    def push(self, text: str) -> Iterator[Found]:
        self._held += text
        while self._held:
            if self._header is None:
                header, found, after = self._held.partition(MESSAGE)
                if not found:
                    return
                self._header, self._held = header, after
            at = place_of(self._held, _CLOSING)
            if self._name is None:  # a call is told as a whole
                inside, self._held = self._held[:at], self._held[at:]
                yield from self._told(inside)
                at = 0
            closing = next((c for c in _CLOSING if self._held.startswith(c, at)), None)
            if closing is None:
                return
            inside, self._held = self._held[:at], self._held[at + len(closing) :]
            yield from self._told(inside)
            self._header = None

    def finish(self) -> Iterator[Found]:
        held, self._held = self._held, ""
        if self._header is not None:
            yield from self._told(held) if held else ()
        elif held.strip() and CHANNEL not in held:  # a model that knows no channels
            yield held

    @property
    def _name(self) -> str | None:
        """The function that the message is for."""
        found = _RECIPIENT.search(self._header or "")
        return found[1] if found else None

    def _told(self, text: str) -> Iterator[Found]:
        channel = _CHANNEL.search(self._header or "")
        if (name := self._name) is not None and _is_json(text or "{}"):
            yield Call(call_id(), name, text.strip() or "{}")
        elif text and channel and channel[1] == "analysis":
            yield Reasoning(text)
        elif text:
            yield text


def _is_json(text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def called(tools: Sequence[Tool], literal: Literal) -> list[str]:
    """Rules of which ``calls`` matches one call: its end ends the response."""
    kinds = " | ".join(f"tool{i}" for i in range(len(tools)))
    rules = [f"calls: {kinds}"]
    for i, tool in enumerate(tools):
        head = literal(f"{CHANNEL}commentary to=functions.{name_of(tool)} {CONSTRAIN}json{MESSAGE}")
        rules.append(f"tool{i}: {head} arguments{i}")
        rules.append(f"arguments{i}: {json_term(parameters_of(tool))}")
    return rules


def said(literal: Literal) -> str:
    """What precedes the text of a response's last message."""
    return literal(f"{CHANNEL}final{MESSAGE}")


def thoughts(literal: Literal) -> list[str]:
    """Rules of which ``thoughts`` matches a message of analysis, and the beginning of the next."""
    return [
        f"thoughts: {literal(f'{CHANNEL}analysis{MESSAGE}')} analysis",
        until("analysis", f"{END}{START}assistant", literal),
    ]

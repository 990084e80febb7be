"""Tool calls in a model's text, as it comes: a JSON object between ``<tool_call>`` tags."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

_BEGIN, _END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class Call:
    """A complete call of a tool."""

    id: str
    name: str
    arguments: str  # JSON


Found = str | Call


class ToolCalls:
    """Splits a text into what is said and what is called. Holds back what may begin a call."""

    def __init__(self) -> None:
        self._held = ""
        self.num_calls = 0

    def push(self, text: str) -> Iterator[Found]:
        """What is certain after more text."""
        self._held += text
        while _BEGIN in self._held:
            before, _, after = self._held.partition(_BEGIN)
            if _END not in after:
                if before:
                    yield before
                self._held = _BEGIN + after
                return
            inside, _, self._held = after.partition(_END)
            if before.strip():
                yield before
            yield from self._calls(inside)
        certain = len(self._held) - _doubtful(self._held)
        if certain:
            text, self._held = self._held[:certain], self._held[certain:]
            if text.strip() or not self.num_calls:  # line breaks between calls say nothing
                yield text

    def finish(self) -> Iterator[Found]:
        """What was held back, at the end of the answer; a call may lack its end."""
        held, self._held = self._held, ""
        if held.startswith(_BEGIN):
            yield from self._calls(held[len(_BEGIN) :])
        elif held:
            yield held

    def _calls(self, inside: str) -> Iterator[Found]:
        try:
            value = json.loads(inside)
            items = value if isinstance(value, list) else [value]
            calls = [(str(i["name"]), i.get("arguments", i.get("parameters", {}))) for i in items]
        except (ValueError, LookupError, TypeError, AttributeError):
            yield f"{_BEGIN}{inside}{_END}"  # no call: the client sees what the model said
            return
        for name, arguments in calls:
            self.num_calls += 1
            words = arguments if isinstance(arguments, str) else json.dumps(arguments)
            yield Call(f"call_{secrets.token_hex(12)}", name, words)


def _doubtful(held: str) -> int:
    """Length of the longest end that may begin a call."""
    for length in range(min(len(_BEGIN) - 1, len(held)), 0, -1):
        if _BEGIN.startswith(held[-length:]):
            return length
    return 0

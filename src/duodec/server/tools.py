"""Tool calls in a model's text, as it comes: a JSON object between ``<tool_call>`` tags."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass

BEGIN, END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class Call:
    """A complete call of a tool."""

    id: str
    name: str
    arguments: str  # JSON


Found = str | Call


class ToolCalls:
    """Splits a text into what is said and what is called, the same however it was cut.

    Holds back what may begin a call, and white space before which nothing was said since the
    last call: where a call follows it, it says nothing.
    """

    def __init__(self) -> None:
        self._held = ""  # from what may begin a call on
        self._blank = ""  # white space that waits for words
        self._is_saying = False  # words came since the last call
        self.num_calls = 0

    def push(self, text: str) -> Iterator[Found]:
        """What is certain after more text."""
        self._held += text
        while BEGIN in self._held:
            before, _, after = self._held.partition(BEGIN)
            yield from self._said(before)
            self._held = BEGIN + after
            if END not in after:
                return
            inside, _, self._held = after.partition(END)
            yield from self._called(inside, END)
        certain = len(self._held) - _doubtful(self._held)
        text, self._held = self._held[:certain], self._held[certain:]
        yield from self._said(text)

    def finish(self) -> Iterator[Found]:
        """What was held back, at the end of the answer; a call may lack its end."""
        held, self._held = self._held, ""
        if held.startswith(BEGIN):
            yield from self._called(held[len(BEGIN) :], "")
        else:
            yield from self._said(held)
        if self._blank and not self.num_calls:
            yield self._blank

    def _said(self, text: str) -> Iterator[str]:
        self._blank += text
        self._is_saying = self._is_saying or bool(self._blank.strip())
        if self._is_saying and self._blank:
            yield self._blank
            self._blank = ""

    def _called(self, inside: str, end: str) -> Iterator[Found]:
        try:
            value = json.loads(inside)
            items = value if isinstance(value, list) else [value]
            calls = [(str(i["name"]), i.get("arguments", i.get("parameters", {}))) for i in items]
        except (ValueError, LookupError, TypeError, AttributeError):
            # no call: the client sees what the model said
            yield from self._said(f"{BEGIN}{inside}{end}")
            return
        self._blank, self._is_saying = "", False
        for name, arguments in calls:
            self.num_calls += 1
            words = arguments if isinstance(arguments, str) else json.dumps(arguments)
            yield Call(f"call_{secrets.token_hex(12)}", name, words)


def _doubtful(held: str) -> int:
    """Length of the longest end that may begin a call."""
    for length in range(min(len(BEGIN) - 1, len(held)), 0, -1):
        if BEGIN.startswith(held[-length:]):
            return length
    return 0

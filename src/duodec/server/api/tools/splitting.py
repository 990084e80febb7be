"""Split a model's text into what is said and what is called, as it comes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from duodec.server.api.tools.call import Call, Format, Found, Fragment, Tool, call_id
from duodec.server.http.json_limits import parse

# what readers of formats raise where there is no call
NO_CALL = (
    ValueError, LookupError, TypeError, AttributeError, SyntaxError, RecursionError, MemoryError,
)  # fmt: skip


class Reader(Protocol):
    """Splits a text, the same however it was cut."""

    def push(self, text: str) -> Iterator[Found]:
        """What is certain after more text."""

    def finish(self) -> Iterator[Found]:
        """What was held back, at the end of the text."""


class ToolCalls:
    """Splits a text into what is said and the calls of a format.

    Holds back what may begin a call, and white space before which nothing was said since the
    last call: where a call follows it, it says nothing.
    """

    def __init__(
        self, form: Format, tools: Sequence[Tool] = (), *, is_certain: bool = False
    ) -> None:
        """``is_certain``: a grammar makes a call of whatever begins as one, so that its arguments
        are told as they come."""
        self._form, self._tools, self._is_certain = form, tools, is_certain
        self._open: Fragment | None = None  # a call that was told in part: all of it so far
        self._held = ""  # from what may begin a call on
        self._blank = ""  # white space that waits for text
        self._is_saying = False  # text came since the last call
        self.num_calls = 0

    def push(self, text: str) -> Iterator[Found]:
        self._held += text
        while self._held:
            begin = self._form.find(self._held, is_saying=self._is_saying)
            before, self._held = self._held[:begin], self._held[begin:]
            yield from self._said(before)
            end = self._form.end(self._held) if self._held else None
            if self._is_certain and self._held:
                yield from self._told(self._held if end is None else self._held[:end])
            if end is None:
                return
            block, self._held = self._held[:end], self._held[end:]
            yield from self._called(block)

    def finish(self) -> Iterator[Found]:
        """A last call may lack its end."""
        held, self._held = self._held, ""
        if self._open is None:
            yield from self._called(held) if held else ()
        if self._blank and not self.num_calls:
            yield self._blank

    def _said(self, text: str) -> Iterator[str]:
        self._blank += text
        self._is_saying = self._is_saying or bool(self._blank.strip())
        if self._is_saying and self._blank:
            yield self._blank
            self._blank = ""

    def _told(self, block: str) -> Iterator[Fragment]:
        """What a block has of its call's arguments, beyond what was told."""
        begun = self._form.begun(block, self._tools)
        if begun is None:
            return
        name, arguments = begun
        if self._open is None:
            self.num_calls += 1
            self._open = Fragment(self._form.new_id(), name, arguments)
            yield self._open
        elif more := arguments[len(self._open.arguments) :]:
            self._open = replace(self._open, arguments=arguments)
            yield Fragment(self._open.id, None, more)

    def _called(self, block: str) -> Iterator[Found]:
        if self._open is not None:  # it was told as it came
            self._open, self._blank, self._is_saying = None, "", False
            return
        try:
            calls = self._form.calls(block, self._tools)
            found = [(name, as_json(arguments)) for name, arguments in calls]
        except NO_CALL:  # the client sees what the model said
            yield from self._said(block)
            return
        self._blank, self._is_saying = "", False
        for name, arguments in found:
            self.num_calls += 1
            yield Call(self._form.new_id(), name, arguments)


@dataclass(frozen=True)
class BetweenTags:
    """What formats have in common whose blocks are between two texts."""

    begin: str
    finish: str

    @property
    def markers(self) -> Sequence[str]:
        """Texts that a vocabulary may have as control tokens."""
        return (self.begin, self.finish)

    def find(self, text: str, *, is_saying: bool) -> int:
        """Where a block begins, or may begin if more text comes."""
        return place_of(text, [self.begin])

    def end(self, block: str) -> int | None:
        """Where a block ends; None if it may go on."""
        at = block.find(self.finish)
        return None if at < 0 else at + len(self.finish)

    def inside(self, block: str) -> str:
        """What is between the two; the second may be missing at the end of a text."""
        return block.removeprefix(self.begin).removesuffix(self.finish)

    def begun(self, block: str, tools: Sequence[Tool]) -> tuple[str, str] | None:
        """Nothing is told before a block has its end."""
        return None

    def new_id(self) -> str:
        """A call's name for its result."""
        return call_id()


def as_json(arguments: object) -> str:
    """A call's arguments, which some models write as the text of a JSON object. Raises ValueError
    where they are no JSON: an infinity, or a text of something else."""
    if isinstance(arguments, str):
        parse(text := arguments.strip() or "{}")
        return text
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace").decode()  # halves of characters could not be sent


def doubtful(held: str, begins: Sequence[str]) -> int:
    """The length of the longest end that may begin one of these texts."""
    longest = max(map(len, begins), default=1) - 1
    for length in range(min(longest, len(held)), 0, -1):
        if any(begin.startswith(held[-length:]) for begin in begins):
            return length
    return 0


def place_of(text: str, begins: Sequence[str]) -> int:
    """Where the first of these texts begins, or may begin if more comes; else ``text``'s length."""
    found = [at for begin in begins if (at := text.find(begin)) >= 0]
    return min(found, default=len(text) - doubtful(text, begins))

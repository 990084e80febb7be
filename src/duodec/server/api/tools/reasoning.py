"""Tell a model's reasoning from what it says, where its template has tags for reasoning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from duodec.server.api.tools.call import Found, Reasoning
from duodec.server.api.tools.splitting import Reader, doubtful

State = Literal["open", "closed", "either"]
"""Of the reasoning where a response begins: the prompt has begun it, or ended it, or neither."""


@dataclass(frozen=True)
class Tags:
    """What surrounds reasoning."""

    begin: str
    end: str

    def state(self, prompt_end: str) -> State:
        """From the end of the prompt."""
        text = prompt_end.rstrip()
        if text.endswith(self.begin):
            return "open"
        return "closed" if text.endswith(self.end) else "either"


THINKING = (
    Tags("<think>", "</think>"),
    Tags("[THINK]", "[/THINK]"),
    Tags("<seed:think>", "</seed:think>"),
)


class PlainReader:
    """Reads texts of models without reasoning, or without calls."""

    def push(self, text: str) -> Iterator[Found]:
        if text:
            yield text

    def finish(self) -> Iterator[Found]:
        yield from ()


class ReasoningReader:
    """Splits reasoning from what follows it, which another reader reads.

    White space around the reasoning, and before what follows it, belongs to neither.
    """

    def __init__(self, tags: Tags, state: State, then: Reader) -> None:
        self._tags, self._then = tags, then
        self._held = ""
        self._at: Literal["begin", "thoughts", "blank", "text"] = {
            "open": "thoughts", "closed": "text", "either": "begin",
        }[state]  # type: ignore[assignment]  # fmt: skip
        self._is_thinking = False  # some of the reasoning was returned

    def push(self, text: str) -> Iterator[Found]:
        self._held += text
        if self._at == "begin":
            begun = self._held.lstrip()
            if begun.startswith(self._tags.begin):
                self._at, self._held = "thoughts", begun.removeprefix(self._tags.begin)
            elif not self._tags.begin.startswith(begun):
                self._at = "text"
        if self._at == "thoughts":
            yield from self._thoughts()
        if self._at == "blank":
            self._held = self._held.lstrip()
            self._at = "text" if self._held else "blank"
        if self._at == "text":
            held, self._held = self._held, ""
            yield from self._then.push(held)

    def finish(self) -> Iterator[Found]:
        held, self._held = self._held, ""
        if self._at == "thoughts":
            yield from self._told(held.rstrip())
        elif held:
            yield from self._then.push(held)
        yield from self._then.finish()

    def _thoughts(self) -> Iterator[Found]:
        before, end, after = self._held.partition(self._tags.end)
        if end:
            self._held = after
            yield from self._told(before.rstrip())
            self._at = "blank"
            return
        certain = self._held[: len(self._held) - doubtful(self._held, [self._tags.end])].rstrip()
        self._held = self._held[len(certain) :]
        yield from self._told(certain)

    def _told(self, text: str) -> Iterator[Reasoning]:
        text = text if self._is_thinking else text.lstrip()
        if text:
            self._is_thinking = True
            yield Reasoning(text)

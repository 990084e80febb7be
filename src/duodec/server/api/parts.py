"""Divide a completion into parts as it comes: text, reasoning and calls, each of which grows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from duodec.server.api.tools.call import Call, Found, Fragment
from duodec.server.api.tools.splitting import Reader

Kind = Literal["text", "reasoning", "call"]


@dataclass
class Part:
    """A part so far. The text of a call are its arguments; it has an id and a name."""

    kind: Kind
    text: str
    id: str = ""
    name: str = ""

    @property
    def call(self) -> Call:
        return Call(self.id, self.name, self.text)


@dataclass(frozen=True)
class Change:
    """A part has begun with a text, has more of it, or is complete."""

    kind: Literal["begin", "more", "end"]
    part: Part
    text: str = ""


class Parts:
    """The parts of one completion, no more calls among them than ``most_calls``."""

    def __init__(self, reader: Reader | None, most_calls: int) -> None:
        self._reader, self._most_calls = reader, most_calls
        self.all: list[Part] = []
        self._is_open = False  # the last one may grow

    def push(self, text: str, *, is_last: bool) -> Iterator[Change]:
        """What is certain after more text; all of it, after the last."""
        if self._reader is None:
            yield from self._found(text) if text else ()
        else:
            for found in self._reader.push(text):
                yield from self._found(found)
            for found in self._reader.finish() if is_last else ():
                yield from self._found(found)

    def end(self) -> Iterator[Change]:
        """End the last part; nothing follows it."""
        if self._is_open:
            self._is_open = False
            yield Change("end", self.all[-1])

    @property
    def is_plain(self) -> bool:
        """All text of the completion is text of a part."""
        return self._reader is None

    def text(self, kind: Kind = "text") -> str:
        """Of all parts of a kind."""
        return "".join(part.text for part in self.all if part.kind == kind)

    @property
    def calls(self) -> list[Call]:
        return [part.call for part in self.all if part.kind == "call"]

    def _found(self, found: Found) -> Iterator[Change]:
        if isinstance(found, Fragment) and found.name is None:
            last = self.all[-1] if self.all else None
            if last is not None and last.id == found.id:
                yield from self._more(found.arguments)
        elif isinstance(found, Call | Fragment):
            if len(self.calls) < self._most_calls:
                yield from self._begin(Part("call", found.arguments, found.id, found.name or ""))
                yield from self.end() if isinstance(found, Call) else ()
        else:
            part = Part("text", found) if isinstance(found, str) else Part("reasoning", found.text)
            if self._is_open and self.all[-1].kind == part.kind:
                yield from self._more(part.text)
            else:
                yield from self._begin(part)

    def _begin(self, part: Part) -> Iterator[Change]:
        yield from self.end()
        self.all.append(part)
        self._is_open = True
        yield Change("begin", part, part.text)

    def _more(self, text: str) -> Iterator[Change]:
        self.all[-1].text += text
        yield Change("more", self.all[-1], text)

"""Define a call of a tool, and what a format of calls must know."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from duodec.server.http.json_limits import parse

Tool = Mapping[str, Any]
"""As in OpenAI's requests: an object with a ``function``, its name and its parameters."""

Literal = Callable[[str], str]
"""Makes a term in Lark's notation that matches a text, whose markers may be control tokens."""

ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True)
class Call:
    """A complete call of a tool."""

    id: str
    name: str
    arguments: str  # JSON

    @property
    def is_complete(self) -> bool:
        """Its arguments are JSON; they may have been cut off."""
        try:
            json.loads(self.arguments)
        except (ValueError, RecursionError):
            return False
        return True


def object_of(arguments: str) -> dict[str, Any]:
    """A call's arguments. Those that were cut off are none, and those that hold a number which no
    JSON could be written of (1e999)."""
    try:
        found = parse(arguments)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Reasoning:
    """Text of the model's reasoning."""

    text: str


@dataclass(frozen=True)
class Fragment:
    """Part of a call's arguments, of a call that is certain; the first one names the tool."""

    id: str
    name: str | None
    arguments: str


Found = str | Reasoning | Call | Fragment


class Format(Protocol):
    """How a family of models writes calls, in blocks of one call or several."""

    @property
    def markers(self) -> Sequence[str]:
        """Texts that a vocabulary may have as control tokens."""

    def find(self, text: str, *, is_saying: bool) -> int:
        """Where a block begins, or may begin if more text comes; the text's length if nowhere.
        ``is_saying``: something was said since the last call, or since the beginning."""

    def end(self, block: str) -> int | None:
        """Where a block ends that begins where ``block`` does; None if it may go on."""

    def calls(self, block: str, tools: Sequence[Tool]) -> list[tuple[str, Any]]:
        """The names and arguments in a block. Raises ValueError and the like if it has none."""

    def begun(self, block: str, tools: Sequence[Tool]) -> tuple[str, str] | None:
        """The name of a call and its arguments' JSON, as far as a block has them that follows
        ``rules``; the text of a longer block begins with that of a shorter one. None where a block
        may have several calls, or is too short."""

    def rules(self, tools: Sequence[Tool], literal: Literal, *, is_many: bool) -> list[str]:
        """Rules in Lark's notation, of which ``calls`` matches calls of these tools."""

    def new_id(self) -> str:
        """A call's name for its result."""


def call_id() -> str:
    """As OpenAI's are."""
    return f"call_{secrets.token_hex(12)}"


def parameters_of(tool: Tool) -> Any:
    """The schema of a tool's arguments."""
    return tool["function"].get("parameters") or ANY_OBJECT


def name_of(tool: Tool) -> str:
    return str(tool["function"]["name"])

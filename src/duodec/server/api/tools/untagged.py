"""Read calls in JSON whose tags a model forgot: an object on its own, or in a fence of Markdown.

Text is held back only while it may still become such a call. A ``package.json`` in a fence begins
with a name, too, but no arguments follow it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from duodec.server.api.tools.call import Format, Literal, Tool, name_of
from duodec.server.api.tools.json_calls import call_json, json_end, named_calls

_FENCE = "```"
_OPENING = re.compile(r"```[\w-]{0,16}")  # with the language's name
_NAME = re.compile(r'\{"name":"(?:[^"\\]|\\.)*"')
_HEADS = ('{"name":"', '{"arguments":')
_NUM_LOOKED_AT = 256  # characters that show what an object begins with


@dataclass(frozen=True)
class OrUntagged:
    """A format of objects in JSON, whose tags small models forget.

    Without them, an object or a list of objects is a call if each is the name and the arguments of
    a tool that was sent, and if it stands at the beginning, or in a fence that begins a line.
    """

    form: Format

    @property
    def markers(self) -> Sequence[str]:
        return self.form.markers

    def find(self, text: str, *, is_saying: bool) -> int:
        if not is_saying and (_may_be_call(text) or _may_be_fence(text.lstrip())):
            return 0
        return min(_fence_in(text), self.form.find(text, is_saying=is_saying))

    def end(self, block: str) -> int | None:
        if _may_be_call(block):
            return json_end(block, 0)
        return _fence_end(block) if _begins_fence(block) else self.form.end(block)

    def calls(self, block: str, tools: Sequence[Tool]) -> list[tuple[str, Any]]:
        if _begins_fence(block):
            fence = block.strip()
            opening = _OPENING.match(fence)
            block = fence[opening.end() :].removesuffix(_FENCE) if opening else ""
        elif not _may_be_call(block):
            return self.form.calls(block, tools)
        value = call_json(block)
        items = value if isinstance(value, list) else [value]
        names = {name_of(tool) for tool in tools}
        if not all({"name", "arguments"} == set(one) and one["name"] in names for one in items):
            raise ValueError("this is no call of these tools")
        return named_calls(block)

    def begun(self, block: str, tools: Sequence[Tool]) -> tuple[str, str] | None:
        return self.form.begun(block, tools)

    def rules(self, tools: Sequence[Tool], literal: Literal, *, is_many: bool) -> list[str]:
        return self.form.rules(tools, literal, is_many=is_many)

    def new_id(self) -> str:
        return self.form.new_id()


def _may_be_call(text: str) -> bool:
    """Whether a text is, or may become, an object with a name and arguments, or a list of such."""
    squeezed = re.sub(r"\s", "", text[:_NUM_LOOKED_AT])
    begun = squeezed.removeprefix("[")
    begun = begun[1:] if begun.startswith("{{") else begun
    if named := _NAME.match(begun):
        begun = begun[named.end() :]
    heads = (',"arguments":',) if named else _HEADS
    could = any(head.startswith(begun) or begun.startswith(head) for head in heads)
    return bool(squeezed) and could


def _may_be_fence(text: str) -> bool:
    """Whether a text is, or may become, a fence around a call."""
    opening = _OPENING.match(text)
    if opening is None:
        return bool(text) and _FENCE.startswith(text)
    inside = text[opening.end() :]
    return not inside.strip() or _may_be_call(inside)


def _fence_in(text: str) -> int:
    """Where the line break before a fence around a call is, or may be if more text comes."""
    for found in re.finditer(r"\n(?=`|\Z)", text):
        rest = text[found.end() :]
        if not rest or _may_be_fence(rest):
            return found.start()
    return len(text)


def _begins_fence(block: str) -> bool:
    """Whether a block is one that `_fence_in` found."""
    inner = block.lstrip()
    return not inner or _may_be_fence(inner)


def _fence_end(block: str) -> int | None:
    """Where a fence ends. Where it has something besides a call, its first character is a block of
    its own, which is text."""
    opening = _OPENING.match(block, len(block) - len(block.lstrip()))
    if opening is None or (end := json_end(block, opening.end())) is None:
        return None
    closing = block[end:].lstrip()
    if closing.startswith(_FENCE):
        return len(block) - len(closing) + len(_FENCE)
    return None if _FENCE.startswith(closing) else 1

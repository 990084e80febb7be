"""Read and constrain DeepSeek's calls, in version 3's format or 3.1's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from duodec.server.api.tools.call import Literal, Tool, name_of
from duodec.server.api.tools.grammars import json_arguments, some_tool
from duodec.server.api.tools.splitting import BetweenTags
from duodec.server.http.json_limits import parse

# the bars and blanks of these tags are letters of their own
ALL_BEGIN, ALL_END, ONE_BEGIN, ONE_END, BETWEEN = (
    f"<\uff5ctool\u2581{words}\uff5c>"
    for words in ("calls\u2581begin", "calls\u2581end", "call\u2581begin", "call\u2581end", "sep")
)
_ONE = re.compile(f"(?s){ONE_BEGIN}(.*?){BETWEEN}(.*?)(?:{ONE_END}|$)")
_FENCED = re.compile(r"(?s)(.*?)\n```json\n(.*?)\n?(?:```|$)")


@dataclass(frozen=True)
class DeepSeek(BetweenTags):
    """``head`` and ``tail`` surround a call's arguments; {}: the tool's name."""

    head: str
    tail: str

    @property
    def markers(self) -> Sequence[str]:
        return (ALL_BEGIN, ALL_END, ONE_BEGIN, ONE_END, BETWEEN)

    def calls(self, block: str, tools: Sequence[Tool]) -> list[tuple[str, Any]]:
        found = [_read(*pair) for pair in _ONE.findall(block)]
        if not found:
            raise ValueError("there is no call")
        return found

    def rules(self, tools: Sequence[Tool], literal: Literal, *, is_many: bool) -> list[str]:
        more = ' ("\\n"? call)*' if is_many else ""
        rules = [
            f"calls: {literal(ALL_BEGIN)} call{more} {literal(ALL_END)}",
            f"call: {literal(ONE_BEGIN)} tool {literal(self.tail + ONE_END)}",
            some_tool(tools),
        ]
        for i, tool in enumerate(tools):
            rules.append(f"tool{i}: {literal(self.head.format(name_of(tool)))} arguments{i}")
        return [*rules, *json_arguments(tools)]


def _read(name: str, inside: str) -> tuple[str, Any]:
    """A call of either version: in the older one, the tag is between a type and the name."""
    if fenced := _FENCED.match(inside):
        name, inside = fenced[1], fenced[2]
    return name.strip(), parse(inside)


DEEPSEEK_3 = DeepSeek(ALL_BEGIN, ALL_END, f"function{BETWEEN}{{}}\n```json\n", "\n```")
DEEPSEEK_31 = DeepSeek(ALL_BEGIN, ALL_END, f"{{}}{BETWEEN}", "")

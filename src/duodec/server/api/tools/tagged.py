"""Read and constrain calls whose arguments are tags: Qwen3-Coder's and GLM's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from duodec.server.api.tools.call import Literal, Tool, name_of
from duodec.server.api.tools.grammars import (
    property_of,
    some_tool,
    tagged_values,
    takes_text,
    tool_named,
)
from duodec.server.api.tools.splitting import BetweenTags, as_json
from duodec.server.http.json_limits import parse


@dataclass(frozen=True)
class Tagged(BetweenTags):
    """A block is one call: its name, then each argument between tags of its own.

    The expressions find the name, and the arguments as pairs of a name and a value.
    """

    head: str  # what precedes the first argument; {}: the tool's name
    before: str  # what precedes a value; {}: the argument's name
    after: str  # what follows a value
    end_text: str  # what follows the last value
    name: re.Pattern[str]
    argument: re.Pattern[str]
    separator: str = "\n"  # between two calls

    @property
    def markers(self) -> Sequence[str]:
        texts = (self.begin, self.finish, self.head, self.before, self.after, self.end_text)
        return sorted({tag for text in texts for tag in re.findall(r"</?\w+>", text)})

    def calls(self, block: str, tools: Sequence[Tool]) -> list[tuple[str, Any]]:
        inside = self.inside(block)
        found = self.name.match(inside)
        if found is None:
            raise ValueError("there is no name")
        name = found[1].strip()
        tool = tool_named(tools, name)
        pairs = self.argument.findall(inside[found.end() :])
        return [(name, {key.strip(): _value(tool, key.strip(), text) for key, text in pairs})]

    def begun(self, block: str, tools: Sequence[Tool]) -> tuple[str, str] | None:
        """Each argument once it has its end."""
        try:
            ((name, arguments),) = self.calls(block, tools)
        except ValueError:
            return None
        if not block.startswith(self.begin + self.head.format(name)):
            return None  # the name may go on
        text = as_json(arguments)
        return name, text if self.end(block) is not None else text[:-1]

    def rules(self, tools: Sequence[Tool], literal: Literal, *, is_many: bool) -> list[str]:
        more = f" ({literal(self.separator)} call)*" if is_many else ""
        rules = [f"calls: call{more}", f"call: {literal(self.begin)} tool", some_tool(tools)]
        for i, tool in enumerate(tools):
            rules.append(f"tool{i}: {literal(self.head.format(name_of(tool)))} arguments{i}")
            end = self.end_text + self.finish
            rules += tagged_values(tool, i, self.before, self.after, end, literal)
        return rules


def _value(tool: Tool | None, name: str, text: str) -> Any:
    """A text where the schema has one, and else JSON, if it is any."""
    schema = property_of(tool, name)
    if schema is not None and takes_text(schema):
        return text
    try:
        return parse(text)
    except ValueError:
        return text


QWEN_CODER = Tagged(
    begin="<tool_call>", finish="</tool_call>", head="\n<function={}>\n",
    before="<parameter={}>\n", after="\n</parameter>\n", end_text="</function>\n",
    name=re.compile(r"\s*<function=([^>\n]+)>"),
    argument=re.compile(r"(?s)<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>"),
)  # fmt: skip

GLM = Tagged(
    begin="<tool_call>", finish="</tool_call>", head="{}\n",
    before="<arg_key>{}</arg_key>\n<arg_value>", after="</arg_value>\n", end_text="",
    name=re.compile(r"\s*([^<\s]+)"),
    argument=re.compile(r"(?s)<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>"),
)  # fmt: skip

"""Read and constrain calls that are JSON, between tags or after a marker."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from duodec.server.api.tools.call import Literal, Tool, call_id, name_of
from duodec.server.api.tools.grammars import json_arguments, some_tool
from duodec.server.api.tools.splitting import BetweenTags, place_of
from duodec.server.http.json_limits import parse

_JSON, _DOUBLED = json.JSONDecoder(), "{{"


def named_calls(inside: str) -> list[tuple[str, Any]]:
    """The calls in JSON: an object with a name and arguments, or a list of such. Raises ValueError
    and the like."""
    value = call_json(inside)
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ValueError("there is no call")
    return [(str(one["name"]), one.get("arguments", one.get("parameters", {}))) for one in items]


def call_json(text: str) -> Any:
    """The value of calls in JSON. Models repeat the doubled braces that Qwen2.5-Coder's template
    shows in its instructions. Raises ValueError and the like."""
    text = text.strip()
    if text.startswith(_DOUBLED):
        end = _JSON.raw_decode(text, 1)[1]
        text = text[1:end] if text[end:].strip() in ("", "}") else text
    return parse(text)


def json_end(text: str, begin: int) -> int | None:
    """Where a JSON object or array ends; None where it may go on, or is none. An object's braces
    may be doubled, see `call_json`."""
    begin += len(text[begin:]) - len(text[begin:].lstrip())
    if text[begin : begin + 1] not in ("{", "["):
        return None
    is_doubled = text.startswith(_DOUBLED, begin)
    try:
        end = _JSON.raw_decode(text, begin + is_doubled)[1]
    except (ValueError, RecursionError):
        return None
    rest = text[end:].lstrip()
    if not is_doubled or not rest:
        return None if is_doubled else end
    return len(text) - len(rest) + 1 if rest.startswith("}") else end


_NAME = r'"name": ("(?:[^"\\]|\\.)*"), "(?:arguments|parameters)": '


def _begun(head: str, block: str) -> tuple[str, str] | None:
    """The name and the arguments after this expression, whose first group is the name's JSON."""
    found = re.match(head, block)
    if found is None or not block[found.end() :]:
        return None
    end = json_end(block, found.end())
    return str(json.loads(found[1])), block[found.end() : end]


def _objects(tools: Sequence[Tool], key: str, literal: Literal) -> list[str]:
    """The rule ``tool``: an object with a name and arguments."""
    rules = [some_tool(tools)]
    for i, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(name_of(tool))}, "{key}": '
        rules.append(f'tool{i}: {literal(head)} arguments{i} "}}"')
    return [*rules, *json_arguments(tools)]


@dataclass(frozen=True)
class Hermes(BetweenTags):
    """Objects between tags, of Hermes, Qwen 2.5 and 3, Granite 4 and others."""

    begin: str = "<tool_call>"
    finish: str = "</tool_call>"

    def calls(self, block: str, tools: Sequence[Tool]) -> list[tuple[str, Any]]:
        return named_calls(self.inside(block))

    def begun(self, block: str, tools: Sequence[Tool]) -> tuple[str, str] | None:
        return _begun(rf"{re.escape(self.begin)}\s*\{{{{1,2}}{_NAME}", block)

    def rules(self, tools: Sequence[Tool], literal: Literal, *, is_many: bool) -> list[str]:
        more = ' ("\\n" call)*' if is_many else ""
        head, tail = literal(f"{self.begin}\n"), literal(f"\n{self.finish}")
        rules = [f"calls: call{more}", f"call: {head} tool {tail}"]
        return [*rules, *_objects(tools, "arguments", literal)]


@dataclass(frozen=True)
class JsonList(BetweenTags):
    """A list of objects after a marker: Granite 3's, Phi-4-mini's and SmolLM2's."""

    begin: str = "<|tool_call|>"
    finish: str = ""

    @property
    def markers(self) -> Sequence[str]:
        return (self.begin, *([self.finish] if self.finish else []))

    def end(self, block: str) -> int | None:
        if not block.startswith(self.begin):
            return None
        end = json_end(block, len(self.begin))
        if end is None or not block[end:].lstrip().startswith(self.finish):
            return None
        return block.index(self.finish, end) + len(self.finish)

    def calls(self, block: str, tools: Sequence[Tool]) -> list[tuple[str, Any]]:
        return named_calls(self.inside(block))

    def rules(self, tools: Sequence[Tool], literal: Literal, *, is_many: bool) -> list[str]:
        more = ' (", " tool)*' if is_many else ""
        head, tail = literal(f"{self.begin}["), literal(f"]{self.finish}")
        return [f"calls: {head} tool{more} {tail}", *_objects(tools, "arguments", literal)]


@dataclass(frozen=True)
class Llama:
    """Llama 3's: a response that is an object, or several with semicolons between them."""

    marker: str = "<|python_tag|>"

    @property
    def markers(self) -> Sequence[str]:
        return (self.marker,)

    def find(self, text: str, *, is_saying: bool) -> int:
        """Only where nothing was said, and only what goes on as calls do."""
        if is_saying:
            return len(text)
        begun = re.sub(r"\s", "", text.lstrip(" \n;"))
        if not begun or self.marker.startswith(begun):
            return 0
        begun = begun.removeprefix(self.marker)
        heads = ('{"name":', '{"type":', '{"parameters":', '{"function":')
        could = any(head.startswith(begun) or begun.startswith(head) for head in heads)
        return 0 if could else len(text)

    def end(self, block: str) -> int | None:
        return json_end(block, begin) if (begin := block.find("{")) >= 0 else None

    def calls(self, block: str, tools: Sequence[Tool]) -> list[tuple[str, Any]]:
        return named_calls(block.lstrip(" \n;").removeprefix(self.marker))

    def begun(self, block: str, tools: Sequence[Tool]) -> tuple[str, str] | None:
        return _begun(rf"[ \n;]*(?:{re.escape(self.marker)})?\{{{_NAME}", block)

    def rules(self, tools: Sequence[Tool], literal: Literal, *, is_many: bool) -> list[str]:
        more = ' ("; " tool)*' if is_many else ""
        return [f"calls: tool{more}", *_objects(tools, "parameters", literal)]

    def new_id(self) -> str:
        return call_id()


# --- Mistral


class _Mistral:
    """Reads both of Mistral's formats: a list of objects, and names with arguments."""

    begin = "[TOOL_CALLS]"
    middle = "[ARGS]"
    markers = (begin, middle, "[CALL_ID]")

    def find(self, text: str, *, is_saying: bool) -> int:
        return place_of(text, [self.begin])

    def end(self, block: str) -> int | None:
        if not block.startswith(self.begin):
            return None
        inside = block[len(self.begin) :].lstrip()
        at = block.find(self.middle)
        if inside.startswith("["):
            return json_end(block, len(self.begin))
        return None if at < 0 else json_end(block, at + len(self.middle))

    def calls(self, block: str, tools: Sequence[Tool]) -> list[tuple[str, Any]]:
        inside = block.removeprefix(self.begin).strip()
        if inside.startswith("["):
            return named_calls(inside)
        name, middle, arguments = inside.partition(self.middle)
        name = name.partition("[CALL_ID]")[0].strip()
        if not (name and middle):
            raise ValueError("there is no name, or no arguments")
        return [(name, parse(arguments))]

    def new_id(self) -> str:
        """Their templates take no others."""
        return secrets.token_hex(8)[:9]


class MistralList(_Mistral):
    """A list of objects: up to version 7 of Mistral's tokenizers."""

    def begun(self, block: str, tools: Sequence[Tool]) -> tuple[str, str] | None:
        return None

    def rules(self, tools: Sequence[Tool], literal: Literal, *, is_many: bool) -> list[str]:
        more = ' (", " tool)*' if is_many else ""
        head = literal(f"{self.begin}[")
        return [f'calls: {head} tool{more} "]"', *_objects(tools, "arguments", literal)]


class MistralNamed(_Mistral):
    """A name and arguments for each call: from version 11 of Mistral's tokenizers on."""

    def begun(self, block: str, tools: Sequence[Tool]) -> tuple[str, str] | None:
        name, middle, _ = block.removeprefix(self.begin).partition(self.middle)
        begin = len(self.begin) + len(name) + len(middle)
        if not middle or not block[begin:]:
            return None
        return name, block[begin : json_end(block, begin)]

    def rules(self, tools: Sequence[Tool], literal: Literal, *, is_many: bool) -> list[str]:
        rules = [f"calls: tool{'+' if is_many else ''}", some_tool(tools)]
        for i, tool in enumerate(tools):
            head = literal(f"{self.begin}{name_of(tool)}{self.middle}")
            rules.append(f"tool{i}: {head} arguments{i}")
        return [*rules, *json_arguments(tools)]

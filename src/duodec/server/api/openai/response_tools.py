"""Read the tools of ``/v1/responses`` as functions, and name their calls back.

A custom tool's call is a text: the model is shown a function of one text. The functions of a
namespace are shown with its name before theirs. OpenAI's own tools are left out, since there is
nobody to run them; the response lists the tools that remain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from duodec.server.api.bodies import Tool
from duodec.server.api.fields import refused
from duodec.server.api.tools.call import object_of
from duodec.server.http.json_limits import kind

Item = dict[str, Any]
_ABOUT = ("name", "description", "parameters", "strict")
_INPUT = "input"  # the one text of a custom tool
_TAKES_TEXT = {
    "type": "object", "properties": {_INPUT: {"type": "string"}}, "required": [_INPUT],
    "additionalProperties": False,
}  # fmt: skip


@dataclass(frozen=True)
class SentTool:
    """A tool of the client."""

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None
    shown: Tool  # in a chat request's form, as the model sees it

    def call(self, call_id: str, arguments: str) -> Item:
        """What an item of the response says of a call."""
        place = {} if self.namespace is None else {"namespace": self.namespace}
        head = {"call_id": call_id, "name": self.name, **place}
        if self.kind == "function":
            return {**head, "arguments": arguments}
        return {**head, "input": self.input(arguments)}

    def input(self, arguments: str) -> str:
        """The text of a custom tool's call."""
        text = object_of(arguments).get(_INPUT)
        return text if isinstance(text, str) else arguments


@dataclass(frozen=True)
class SentTools:
    """The tools of a request, but for those that are left out."""

    all: tuple[SentTool, ...] = ()
    echoed: tuple[Item, ...] = ()

    def named(self, name: str) -> SentTool:
        """By the name that the model calls; a name of its own is a function's."""
        known = (tool for tool in self.all if tool.shown["function"]["name"] == name)
        return next(known, SentTool("function", name, None, {}))

    @property
    def shown(self) -> list[Tool]:
        return [tool.shown for tool in self.all]


def tools_of(value: Any) -> SentTools:
    """Those of a request. Raises what pydantic reports."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise refused(f"is {kind(value)}; send an array")
    found = [(tool, [*_read(tool, None)]) for tool in value]
    kept = [(tool, read) for tool, read in found if read]
    return SentTools(
        tuple(one for _, read in kept for one in read), tuple(_echoed(tool) for tool, _ in kept)
    )


def name_shown(namespace: Any, name: str) -> str:
    """The name of a function for the model."""
    return f"{str(namespace).rstrip('_')}__{name}" if namespace else name


def text_call(text: str) -> Item:
    """The arguments of a custom tool's call."""
    return {_INPUT: text}


def _read(tool: Any, namespace: str | None) -> Iterator[SentTool]:
    if not isinstance(tool, Mapping) or not isinstance(form := tool.get("type"), str):
        raise refused("has a tool without a type; send {type, name, parameters}")
    if form not in ("function", "custom", "namespace"):
        return
    if not isinstance(name := tool.get("name"), str):
        raise refused(f"has a {form} without a name; send {{type, name, ...}}")
    if form == "namespace":
        inner = tool.get("tools", [])
        if not isinstance(inner, list):
            raise refused(f"has a namespace whose tools are {kind(inner)}; send an array")
        if namespace is not None:  # its calls could not be named back
            raise refused(f"has a namespace, {name[:100]}, in another one; send it by itself")
        for one in inner:
            yield from _read(one, name)
        return
    told = {field: tool[field] for field in _ABOUT if tool.get(field) is not None}
    own = {**told, "name": name_shown(namespace, name)}
    if form == "custom":
        own = {**own, "description": _described(tool), "parameters": _TAKES_TEXT}
    yield SentTool(
        "custom" if form == "custom" else "function", name, namespace,
        {"type": "function", "function": own},
    )  # fmt: skip


def _described(tool: Mapping[str, Any]) -> str:
    """A custom tool, with the grammar of its text, which is told and not enforced."""
    form = tool.get("format")
    rules = form.get("definition") if isinstance(form, Mapping) else None
    parts = [tool.get("description"), f"The input follows this grammar:\n{rules}" if rules else ""]
    return "\n\n".join(str(part) for part in parts if part)


def _echoed(tool: Mapping[str, Any]) -> Item:
    if tool["type"] == "function":
        return {"strict": True, "parameters": None, **tool}
    if tool["type"] == "namespace":
        return {**tool, "tools": [_echoed(one) for one in tool["tools"] if [*_read(one, None)]]}
    return dict(tool)

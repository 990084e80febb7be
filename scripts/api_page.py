"""Write docs/api.md from the docstrings of the public classes: python scripts/api_page.py"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import duodec
from duodec import inputs
from duodec.chat import template
from duodec.core import events
from duodec.core.round import Stats
from duodec.loading.config import EngineConfig

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
CLASSES = (
    "LLM",
    "EngineConfig",
    "SamplingParams",
    "Completion",
    "Stats",
    "Logprob",
    "Started",
    "Delta",
    "Segment",
    "Finished",
    "Grammar",
)
ELSEWHERE = {"EngineConfig": EngineConfig, "Stats": Stats}
TYPES = ((template, "Message"), (inputs, "Prompt"), (inputs, "Params"), (events, "Event"),
         (events, "FinishReason"), (events, "DraftSource"))  # fmt: skip
WIDTH = 96  # of a signature on one line
METHODS = (
    "load", "generate", "agenerate", "chat", "stream", "astream", "encode", "decode", "close",
)  # fmt: skip


def page() -> str:
    """The whole page."""
    parts = [
        "<!-- python scripts/api_page.py writes this page from the docstrings -->",
        "# Python API",
        "Everything but `EngineConfig` and `Stats` is imported from `duodec`.",
        "Errors that a caller can cause are subclasses of `duodec.DuodecError`.",
    ]
    for name in CLASSES:
        parts += _class(name)
    aliases = "\n".join(_alias(module, name) for module, name in TYPES)
    parts += ["## Types", f"```python\n{aliases}\n```"]
    return "\n\n".join(parts) + "\n"


def _class(name: str) -> list[str]:
    kind = ELSEWHERE.get(name) or getattr(duodec, name)
    parts = [f"## `{name}`", inspect.getdoc(kind) or ""]
    if name == "LLM":
        for method in METHODS:
            function = getattr(kind, method)
            parts += [f"### `LLM.{method}`", _signature(method, function), _text(function)]
    else:
        parts.append(_fields(kind))
        parts.append(_properties(kind))
    return [part for part in parts if part]


def _signature(name: str, function: Callable[..., object]) -> str:
    """A call as Python writes it, over several lines if it is long."""
    signature = inspect.signature(function)
    words = [_parameter(one) for key, one in signature.parameters.items() if key != "self"]
    stars = [
        i for i, one in enumerate(signature.parameters.values()) if one.kind == one.KEYWORD_ONLY
    ]
    if stars:
        words.insert(stars[0] - ("self" in signature.parameters), "*")
    is_async = inspect.isasyncgenfunction(function)
    head, end = f"{'async ' if is_async else ''}def {name}", signature.return_annotation
    line = f"{head}({', '.join(words)}) -> {end}"
    if len(line) > WIDTH:
        line = f"{head}(\n" + "".join(f"    {word},\n" for word in words) + f") -> {end}"
    return f"```python\n{line}\n```"


def _parameter(one: inspect.Parameter) -> str:
    stars = "**" if one.kind is one.VAR_KEYWORD else ""
    default = "" if one.default is one.empty else f" = {one.default!r}"
    return f"{stars}{one.name}: {one.annotation}{default}"


def _alias(module: ModuleType, name: str) -> str:
    """Its definition, as the source has it."""
    found = re.search(rf"(?m)^{name} = .*$", inspect.getsource(module))
    assert found, name
    return found[0]


def _properties(kind: type) -> str:
    """A list of a class's properties, by their docstrings."""
    found = {name: one for name, one in vars(kind).items() if isinstance(one, property)}
    lines = [
        f"- `{name}: {inspect.signature(one.fget).return_annotation}`"
        + (f": {' '.join((one.__doc__ or '').split())}" if one.__doc__ else "")
        for name, one in found.items()
        if one.fget is not None and not name.startswith("_")
    ]
    return "**Properties**\n\n" + "\n".join(lines) if lines else ""


def _text(function: object) -> str:
    """A docstring, whose sections are indented lines, as Markdown."""
    lines = []
    for line in (inspect.getdoc(function) or "").split("\n"):
        if line.endswith(":") and line[:-1] in ("Args", "Raises", "Example"):
            lines += [f"**{line[:-1]}**", ""]
        elif line.startswith(("    >>>", "    ...")):
            lines.append(line)
        elif line.startswith("        "):
            lines[-1] += " " + line.strip()
        elif line.startswith("    "):
            name, colon, rest = line.strip().partition(": ")
            lines.append(f"- `{name}`: {rest}" if colon else f"- {line.strip()}")
        else:
            lines.append(line)
    return "\n".join(lines)


def _fields(kind: type) -> str:
    """A table of a dataclass's fields; the comment beside each in the source says what it is."""
    records = [record for record in kind.__mro__ if dataclasses.is_dataclass(record)]
    source = "\n".join(map(inspect.getsource, records)).split("\n")
    hints = typing.get_type_hints(kind, include_extras=True)
    rows = ["| field | type | default | |", "|---|---|---|---|"]
    order = list(inspect.signature(kind).parameters)  # those of its bases come last
    for field in sorted(dataclasses.fields(kind), key=lambda one: order.index(one.name)):
        default = "" if field.default is dataclasses.MISSING else f"`{field.default!r}`"
        words, shown = "", str(field.type)
        hint = hints[field.name]
        if typing.get_origin(hint) is typing.Annotated:
            shown = shown.removeprefix("Annotated[").split(",", 1)[0]
            words = getattr(hint.__metadata__[0], "help", "")
        else:
            line = next((x for x in source if x.strip().startswith(f"{field.name}:")), "")
            words = line.partition("#")[2].strip()
        shown = shown.replace(" | ", " \\| ")  # not a column of the table
        rows.append(f"| `{field.name}` | `{shown}` | {default} | {words} |")
    return "\n".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")

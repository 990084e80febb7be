"""Write docs/api.md from the docstrings of the public classes: python scripts/api_page.py"""

from __future__ import annotations

import dataclasses
import inspect
import re
import typing
from pathlib import Path

import duodec
from duodec.loading.config import EngineConfig

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
CLASSES = (
    "LLM",
    "EngineConfig",
    "SamplingParams",
    "Completion",
    "Logprob",
    "Started",
    "Delta",
    "Segment",
    "Finished",
    "Grammar",
)
METHODS = (
    "load", "generate", "agenerate", "chat", "stream", "astream", "encode", "decode", "close",
)  # fmt: skip


def page() -> str:
    """The whole page."""
    parts = [
        "# Python API",
        "Written by `python scripts/api_page.py` from the docstrings; do not edit.",
        "Everything but `EngineConfig` is imported from `duodec`.",
        "Errors that a caller can cause are subclasses of `duodec.DuodecError`.",
    ]
    for name in CLASSES:
        parts += _class(name)
    return "\n\n".join(parts) + "\n"


def _class(name: str) -> list[str]:
    kind = getattr(duodec, name) if name != "EngineConfig" else EngineConfig
    parts = [f"## `{name}`", inspect.getdoc(kind) or ""]
    if name == "LLM":
        for method in METHODS:
            function = getattr(kind, method)
            signature = str(inspect.signature(function)).replace("'", "").replace("self, ", "")
            signature = re.sub(r"<function [^>]*>[^>]*>", "...", signature).replace("(self)", "()")
            parts += [f"### `LLM.{method}`", f"    {method}{signature}", _text(function)]
    else:
        parts.append(_fields(kind))
    return parts


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
    source = inspect.getsource(kind).split("\n")
    hints = typing.get_type_hints(kind, include_extras=True)
    rows = ["| field | type | default | |", "|---|---|---|---|"]
    for field in dataclasses.fields(kind):
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

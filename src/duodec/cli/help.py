"""Print a command's help: a screen of it with `--help`, all of it with `--help-all`.

A command's epilog has sections: a title that ends in a colon, then lines. The lines of the examples
are commands, each with an optional comment.
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from duodec.cli import spelling
from duodec.cli.output import has_colour
from duodec.errors import DuodecError
from duodec.methods.registry import METHODS, names

_MOST = 17  # most options of a short help
_MOST_EXAMPLES = 6
_WIDEST = 100  # most columns
_NAMES = 26  # columns of an option's names; longer ones get their own line
# Newcomers look for these options in commands that have more than _MOST.
_BASIC = (
    "prompt", "model", "file", "target", "draft", "method", "max-tokens", "temperature", "seed",
    "system", "raw", "context", "threads", "device", "gpu-layers", "json", "output", "host",
    "port", "api-key", "parallel", "config", "log-level", "methods", "tasks", "limit",
    "replay-ms", "simulate-ms", "resume", "offline", "show-draft", "target-ms",
    "from", "prompts", "minutes", "loss", "layers", "quantize",
)  # fmt: skip

_COMMON = "Common"  # heading of options that belong to no other
_COMMAND = re.compile(r"([A-Z_]+=\S+ )?(duodec|cat|curl) ")
_WORD = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")

Rows = list[tuple[str, str]]
"""Names and what they mean."""


class Command(TyperCommand):
    """Show a command whose `--help` fits on a screen; the list of methods is part of
    `--help-all`."""

    is_whole = False

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spelling.read(args, self, ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_whole(self, ctx) if self.is_whole else _short(self, ctx))


class Group(TyperGroup):
    """Show a group with one line per command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args[:1] == ["help"] and "help" not in self.commands:  # git and Ollama allow this
            args = [*args[1:], "--help"]
        # What follows the name of a command belongs to that command.
        at = next((i for i, word in enumerate(args) if not word.startswith("-")), len(args))
        # The group's own help is always whole.
        own = ["--help" if word == "--help-all" else word for word in args[:at]]
        return super().parse_args(ctx, [*spelling.read(own, self, ctx), *args[at:]])

    def format_help(self, ctx: Any, formatter: Any) -> None:
        rows = [(name, self._summary_of(name)) for name in self.list_commands(ctx)]
        lines = [*_head(self, ctx), *_table(rows), *_sections(self.epilog or "")]
        formatter.write("\n".join([*lines, ""]))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def _summary_of(self, name: str) -> str:
        """Return what a command does, or why a package's command cannot be loaded."""
        try:
            return _first_sentence(self.commands[name].help or "")
        except DuodecError as error:
            return str(error)


def show_all(context: typer.Context, is_asked: bool) -> None:
    """Print the whole help and exit, if requested."""
    if not is_asked:
        return
    command: Any = context.command
    command.is_whole = True
    try:
        typer.echo(command.get_help(context))
    finally:
        command.is_whole = False
    raise typer.Exit


def _short(command: Any, context: Any) -> str:
    """Return the first paragraph, the most important options with their first clauses, and
    examples."""
    options = [p for p in _options(command, context) if p.name != "help_all"]
    shown = options
    if len(options) > _MOST:
        basic = [p for p in options if _names(p) & set(_BASIC) or _is_argument(p)]
        shown = basic[: _MOST + 2]
    rows = [
        (_flags(p, _shortest), _first_clause(p.help or "") + _default(p, " ({})")) for p in shown
    ]
    found = re.search(r"^Examples:\n((?:.+\n?)+)", command.epilog or "", re.MULTILINE)
    examples = found[1].splitlines()[:_MOST_EXAMPLES] if found else []
    lines = [*_head(command, context), *_table(rows)]
    if examples:
        lines += _sections("\n".join(["Examples:", *(e.partition("  #")[0] for e in examples)]))
    num_left = len(options) - len(shown)
    more = f"{num_left} more options" if num_left else "In full"
    return "\n".join([*lines, "", f"{more}: {context.command_path} --help-all", ""])


def _whole(command: Any, context: Any) -> str:
    """Return the description, all options by heading, the epilog, and the methods."""
    lines = _head(command, context, is_whole=True)
    parts: dict[str, Rows] = {}
    for p in _options(command, context):
        panel = getattr(p, "rich_help_panel", None) or ("Arguments" if _is_argument(p) else _COMMON)
        words = " ".join([p.help or "", *_environment(p, context)]) + _default(p, " [default: {}]")
        parts.setdefault(panel, []).append((_flags(p, tuple), words))
    for i, (panel, rows) in enumerate(parts.items()):
        lines += [*([""] if i else []), _bold(panel), *_table(rows)]
    lines += _sections(command.epilog or "")
    if any(parameter.name == "method" for parameter in command.params):
        methods = [(name, _first_line(kind)) for name, kind in METHODS.items()]
        methods += [(name, "From another package.") for name in names()[len(METHODS) :]]
        methods.append(("module:Class", "A method of your own: docs/methods.md."))
        lines += ["", _bold("Methods"), *_table(methods)]
    return "\n".join([*lines, ""])


def _head(command: Any, context: Any, *, is_whole: bool = False) -> list[str]:
    """Return the usage and the description."""
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    lines = [f"{_bold('Usage:')} {usage}", ""]
    for paragraph in paragraphs if is_whole else paragraphs[:1]:
        lines += [*_wrapped(" ".join(paragraph.split())), ""]
    return lines


def _sections(epilog: str) -> Iterator[str]:
    """Yield the lines of an epilog, with an empty line before each section."""
    for section in filter(None, re.split(r"\n{2,}", epilog.strip())):
        title, _, body = section.partition(":\n")
        if not body:
            yield from ("", *_wrapped(" ".join(section.split())))
            continue
        yield from ("", _bold(title))
        for line in body.splitlines():
            words, _, comment = line.partition("  #")
            lines = _command(words) if _COMMAND.match(words) else _wrapped(words, "  ")
            if comment and len(lines) == 1 and len(lines[0] + comment) + 3 <= _width():
                lines = [f"{lines[0]}  #{comment}"]
            elif comment:
                lines = [*_wrapped(f"#{comment}", "  "), *lines]
            yield from lines


def _command(line: str) -> list[str]:
    """Return a command, wrapped between its words so that it can still be copied."""
    lines = ["  "]
    for word in _WORD.findall(line):
        if len(lines[-1]) + len(word) + len(" \\") > _width():
            lines[-1] += "\\"
            lines.append("      ")
        lines[-1] += f"{word} "
    return [shown.rstrip() for shown in lines]


def _table(rows: Rows) -> Iterator[str]:
    """Yield lines with names on the left and their meanings on the right, wrapped."""
    widest = min(_NAMES, max((len(name) for name, _ in rows), default=0))
    for name, words in rows:
        shown = _wrapped(words, " " * (widest + 4)) or [""]
        if len(name) <= widest:
            shown[0] = f"  {_painted(name)}{' ' * (widest - len(name))}  {shown[0].lstrip()}"
        else:
            shown.insert(0, f"  {_painted(name)}")
        yield from (line.rstrip() for line in shown)


def _wrapped(words: str, indent: str = "") -> list[str]:
    """Return lines that fit the width."""
    return textwrap.wrap(
        words, _width(), initial_indent=indent, subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _width() -> int:
    return min(shutil.get_terminal_size().columns, _WIDEST)


def _bold(words: str) -> str:
    return f"\x1b[1m{words}\x1b[0m" if has_colour(sys.stdout) else words


def _painted(words: str) -> str:
    return f"\x1b[36m{words}\x1b[0m" if has_colour(sys.stdout) else words


def _options(command: Any, context: Any) -> list[Any]:
    return [p for p in command.get_params(context) if not getattr(p, "hidden", False)]


def _is_argument(parameter: Any) -> bool:
    return bool(getattr(parameter, "param_type_name", "") == "argument")


def _names(parameter: Any) -> set[str]:
    return {flag.lstrip("-") for flag in parameter.opts}


def _shortest(flags: Sequence[str]) -> tuple[str, ...]:
    """Return the shortest and the longest of several names."""
    return (flags[0], flags[-1]) if len(flags) > 1 else tuple(flags)


def _flags(parameter: Any, choose: Any) -> str:
    if _is_argument(parameter):
        return str(parameter.metavar or parameter.name.upper())
    flags = sorted(parameter.opts, key=len)
    value = "" if getattr(parameter, "is_flag", False) else f" {_value(parameter)}"
    return f"{', '.join(choose(flags))}{value}"


def _value(parameter: Any) -> str:
    kind = getattr(parameter, "type_descriptor", None) or getattr(parameter, "type", None)
    words = re.findall(r"\w+", str(getattr(kind, "annotation", kind)).lower())
    letter = next((sign for name, sign in (("int", "N"), ("float", "X")) if name in words), "NAME")
    return str(parameter.metavar or letter)


def _environment(parameter: Any, context: Any) -> list[str]:
    """Return the variables that set an option."""
    names = [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or []
    prefix = context.auto_envvar_prefix
    if not names and prefix and not _is_argument(parameter) and parameter.name != "help":
        names = [f"{prefix}_{parameter.name.upper()}"]
    return [f"[{', '.join(names)}]"] if names else []


def _default(parameter: Any, form: str) -> str:
    default = parameter.default
    is_shown = getattr(parameter, "show_default", False) and not callable(default)
    is_empty = default is None or default is False or default in ("", ())
    return form.format(default) if is_shown and not is_empty else ""


def _first_sentence(words: str) -> str:
    return inspect.cleandoc(words).partition("\n\n")[0].replace("\n", " ").rstrip(".")


def _first_clause(words: str) -> str:
    words = re.sub(r" \([^)]*\)", "", " ".join(words.split()))
    return re.split(r"[;:.] |[;:.]$|, such as", words, maxsplit=1)[0]


def _first_line(kind: object) -> str:
    """Return the first line of a method's module."""
    return (inspect.getdoc(inspect.getmodule(kind)) or "").split("\n")[0]

"""Print a command's help: under a screen with `--help`, all of it with `--help-all`."""

from __future__ import annotations

import inspect
import io
import re
import sys
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from duodec.cli.output import has_colour
from duodec.methods.registry import METHODS

_MOST = 17  # options of a short help
_MOST_EXAMPLES = 6
# of the commands with more options than that, those that a newcomer looks for
_BASIC = (
    "prompt", "model", "file", "target", "draft", "method", "max-tokens", "temperature", "seed",
    "system", "raw", "context", "threads", "device", "gpu-layers", "json", "output", "host",
    "port", "api-key", "parallel", "config", "log-level", "methods", "tasks", "limit",
    "replay-ms", "simulate-ms", "resume", "offline", "show-draft", "target-ms",
    "from", "prompts", "minutes", "loss", "layers", "quantize",
)  # fmt: skip


def methods_help() -> str:
    """One line on every method, for the end of a help text."""
    lines = [f"[bold]{name}[/bold]  {_first_line(kind)}" for name, kind in METHODS.items()]
    return "\n\n".join(["[bold]Methods[/bold]", *lines])


def _first_line(kind: object) -> str:
    """The first line of a method's module."""
    return (inspect.getdoc(inspect.getmodule(kind)) or "").split("\n")[0]


class Command(TyperCommand):
    """A command whose `--help` fits on a screen; the list of methods is part of `--help-all`."""

    is_whole = False

    def format_help(self, ctx: Any, formatter: Any) -> None:
        if not self.is_whole:
            formatter.write(_short(self, ctx))
            return
        epilog = self.epilog
        try:
            if any(parameter.name == "method" for parameter in self.params):
                self.epilog = f"{epilog}\n\n{methods_help()}"
            super().format_help(ctx, formatter)
        finally:
            self.epilog = epilog


def show_all(context: typer.Context, is_asked: bool) -> None:
    """Print the whole help and leave, if asked."""
    if not is_asked:
        return
    command: Any = context.command
    command.is_whole = True
    try:
        typer.echo(command.get_help(context))
    finally:
        command.is_whole = False
    raise typer.Exit


class Group(TyperGroup):
    """A group of commands, a line each."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(_short(self, ctx))


def _short(command: Any, context: Any) -> str:
    """The description; the commands, or the options that matter most, a line each; examples."""
    from rich.console import Console
    from rich.markup import escape
    from rich.text import Text

    rows, num_left = _rows(command, context)
    out = io.StringIO()
    is_coloured = has_colour(sys.stdout)
    console = Console(file=out, force_terminal=is_coloured, highlight=False, width=_width())
    widest = max((len(name) for name, _ in rows), default=0)
    usage = " ".join(command.collect_usage_pieces(context))
    console.print(f"[bold]Usage:[/bold] {escape(context.command_path)} {escape(usage)}\n")
    about = inspect.cleandoc(command.help or "").partition("\n\n")[0]
    console.print(f"{escape(' '.join(about.split()))}\n")
    for name, words in rows:
        row = Text.assemble("  ", (f"{name:<{widest}}", "cyan"), f"  {words}")
        console.print(row, no_wrap=True, overflow="ellipsis")
    examples = _examples(command.epilog or "")
    if examples:
        console.print("\n[bold]Examples[/bold]")
        for example in examples:
            console.print(Text(f"  {example}"), no_wrap=True, overflow="ellipsis")
    if isinstance(command, TyperCommand):
        more = f"{num_left} more options" if num_left else "In full"
        console.print(f"\n{more}: {escape(context.command_path)} --help-all")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _width() -> int:
    from rich.console import Console

    return min(Console().width, 100)


def _rows(command: Any, context: Any) -> tuple[list[tuple[str, str]], int]:
    """The names and words of each command or option shown, and how many are not shown."""
    if not isinstance(command, TyperCommand):
        shown = [command.get_command(context, name) for name in command.list_commands(context)]
        return [
            (one.name, (one.help or "").strip().partition("\n")[0].rstrip(".")) for one in shown
        ], 0
    found = [p for p in command.get_params(context) if not getattr(p, "hidden", False)]
    options = [p for p in found if p.name != "help_all"]
    shown = options
    if len(options) > _MOST:
        shown = [p for p in options if _names(p) & set(_BASIC) or _is_argument(p)]
        shown = shown[: _MOST + 2]
    return [(_flags(p, context), _words(p)) for p in shown], len(options) - len(shown)


def _is_argument(parameter: Any) -> bool:
    return bool(getattr(parameter, "param_type_name", "") == "argument")


def _names(parameter: Any) -> set[str]:
    return {flag.lstrip("-") for flag in parameter.opts}


def _flags(parameter: Any, context: Any) -> str:
    if _is_argument(parameter):
        return str(parameter.metavar or parameter.name.upper())
    flags = sorted((f for f in parameter.opts), key=lambda flag: len(flag))
    ours = [flags[0], flags[-1]] if len(flags) > 1 else flags
    value = "" if getattr(parameter, "is_flag", False) else f" {_value(parameter)}"
    return f"{', '.join(ours)}{value}"


def _value(parameter: Any) -> str:
    kind = getattr(parameter, "type_descriptor", None) or getattr(parameter, "type", None)
    words = re.findall(r"\w+", str(getattr(kind, "annotation", kind)).lower())
    letter = next((sign for name, sign in (("int", "N"), ("float", "X")) if name in words), "NAME")
    return str(parameter.metavar or letter)


def _words(parameter: Any) -> str:
    """The first clause of an option's help, and its default."""
    first = _first_clause(str(parameter.help or ""))
    default = parameter.default
    is_shown = getattr(parameter, "show_default", False) and not callable(default)
    if is_shown and default not in (None, False, "", ()):
        first += f" ({default})"
    return first


def _first_clause(words: str) -> str:
    words = re.sub(r" \([^)]*\)", "", " ".join(words.replace("\\", "").split()))
    return re.split(r"[;:.] |[;:.]$|, such as", words, maxsplit=1)[0]


def _examples(epilog: str) -> list[str]:
    """The lines of an epilog that are commands."""
    lines = (line.strip().partition("     ")[0].replace("\\[", "[") for line in epilog.splitlines())
    found = [line for line in lines if re.match(r"(DUODEC_\w+=\S+ |cat .*\| )?duodec ", line)]
    return found[:_MOST_EXAMPLES]

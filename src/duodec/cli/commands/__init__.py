"""Look up the commands by their names: the engine's own, and those that packages add.

A command's module is imported when the command is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any

import typer

from duodec.cli.options import register
from duodec.machine import plugins

OWN = {
    "run": "run",
    "demo": "demo",
    "generate": "generate",
    "chat": "chat",
    "embed": "embed",
    "serve": "serve",
    "ps": "ps",
    "stop": "ps",
    "list": "models:list_models",
    "show": "models",
    "pull": "models",
    "rm": "models:remove",
    "drafts": "models",
    "doctor": "doctor",
    "profile": "profile",
    "setup": "setup",
    "datastore": "datastore:app",
    "cache": "cache:app",
}
"""The modules of our commands. An object is named if its name differs from its command's."""


class Commands(MutableMapping[str, Any]):
    """Hold the commands of a group: ``own``, then those that packages add, named ``group.command``
    in a nested group. Raises what is wrong with a command when it is used."""

    def __init__(self, own: Mapping[str, str], group: str = "") -> None:
        self._own, self._group = own, group
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _command(name, self._found(name))
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._own or plugins.is_known(plugins.COMMANDS, self._full(str(name)))

    def __iter__(self) -> Iterator[str]:
        yield from self._own
        before = self._full("")
        for full in plugins.installed(plugins.COMMANDS):
            name = full.removeprefix(before)
            if full.startswith(before) and "." not in name and name not in self._own:
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _full(self, name: str) -> str:
        return f"{self._group}.{name}" if self._group else name

    def _found(self, name: str) -> Any:
        """Return a function, or a `typer.Typer`. Raises KeyError, and what is wrong with a
        package."""
        if name in self._own:
            module, _, found = self._own[name].partition(":")
            return getattr(import_module(f"{__name__}.{module}"), found or name)
        full = self._full(name)
        if not plugins.is_known(plugins.COMMANDS, full):
            raise KeyError(name)
        return plugins.load(plugins.COMMANDS, full, f"duodec {full.replace('.', ' ')}")


def _command(name: str, found: Any) -> Any:
    """Return a command of the parser, or a group of them."""
    if isinstance(found, typer.Typer):
        if found.registered_callback or found.registered_groups or found.registered_commands[1:]:
            group = typer.main.get_group(found)
            group.name = name
            return group
        found = found.registered_commands[0].callback  # a Typer with one command is not a group
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    register(app, [(name, found)])
    return typer.main.get_command(app)

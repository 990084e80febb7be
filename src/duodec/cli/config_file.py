"""Read the configuration file of all commands: options by their long names, in YAML.

    threads: 4              # every command that has this option
    serve:                  # this command only
      port: 9000

The command line and the environment override the file, the part of a command overrides the top.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import typer

from duodec.cli.spelling import canonical
from duodec.errors import BadOption, DuodecError

VARIABLE = "DUODEC_CONFIG"

Sections = dict[str, dict[str, object]]
"""Options by parameter; the values are strings or lists of strings. "" is the top level of the
file."""


def default_file() -> Path:
    """Return the file that is read if none is named; it may not exist."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "duodec" / "config.yaml"


def apply(context: typer.Context, named: Path | None) -> Path | None:
    """Make the options of the configuration file the defaults of this command. Raises BadOption."""
    file = named or (default_file() if default_file().is_file() else None)
    if file is None:
        return None
    sections = read_options(file)
    root = context.find_root().command
    commands = dict(_commands(root))
    _check_names(sections, commands, file)
    name = " ".join(context.command_path.split()[1:])
    own = {str(parameter.name): parameter for parameter in context.command.params}
    found: dict[str, Any] = {}
    for section in ("", *(part for part in sections if part == name)):
        for option, value in sections.get(section, {}).items():
            if option not in own:
                continue
            is_list = getattr(own[option], "multiple", False) and not isinstance(value, list)
            found[option] = [value] if is_list else value
    context.default_map = {**(context.default_map or {}), **found}
    return file


def _check_names(sections: Sections, commands: dict[str, set[str]], file: Path) -> None:
    """Raise BadOption for a command or an option that does not exist."""
    for section, options in sections.items():
        if section and section not in commands:
            raise BadOption(f"{file} has no command '{section}' to set{_hint(section, commands)}")
        known = commands[section] if section else set().union(*commands.values())
        for name in options:
            if name not in known:
                where = f" of {section}" if section else ""
                hint = _hint(name, known)
                raise BadOption(f"{file} has no option '{name}'{where} to set{hint}")


def _hint(name: str, known: Any) -> str:
    near = get_close_matches(name, sorted(known), 1)
    return f"; did you mean {near[0]}?" if near else ""


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, set[str]]]:
    """Yield every command's full name and its parameters."""
    for name in group.commands:
        try:
            command = group.commands[name]
        except DuodecError:  # a package is broken; using it reports the error
            continue
        yield f"{before}{name}", {str(parameter.name) for parameter in command.params}
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")


def read_options(file: Path) -> Sections:
    """Return the options of a YAML file, by command. Raises BadOption."""
    import yaml

    try:
        node = yaml.compose(file.read_text("utf-8"), yaml.BaseLoader)
        pairs = _pairs(node)
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(f"cannot read {file} ({error}); name a YAML file with --config") from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise BadOption(
            f"{file} is not a list of options ({reason}); write, say, port: 9000"
        ) from error
    found: Sections = {"": {}}
    for name, value in pairs:
        if isinstance(value, list) and value and isinstance(value[0], tuple):
            section = found.setdefault(str(name), {})
            for option, own in value:
                _put(section, str(option), own, file)
        else:
            _put(found[""], str(name), value, file)
    return found


def _pairs(node: Any) -> list[tuple[str, Any]]:
    """Return the keys and values of a mapping. A nested mapping becomes a list of pairs, in which
    keys may repeat."""
    import yaml

    if node is None:
        return []
    loader = yaml.BaseLoader("")
    if not isinstance(node, yaml.MappingNode):
        return list(loader.construct_pairs(node, deep=True))  # raises what is wrong with it
    return [
        (
            loader.construct_object(key, deep=True),
            _pairs(value)
            if isinstance(value, yaml.MappingNode)
            else loader.construct_object(value, deep=True),
        )
        for key, value in node.value
    ]


def _put(options: dict[str, object], name: str, value: object, file: Path) -> None:
    name = canonical(name).replace("-", "_")
    if name in options:
        raise BadOption(f"{file} sets {name} twice; write several values as a list: [A, B]")
    options[name] = value

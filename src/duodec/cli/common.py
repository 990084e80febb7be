"""Register commands with the options that all of them have."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from duodec.cli import settings_file
from duodec.cli.help import Command, show_all
from duodec.cli.options import CONTEXT_SETTINGS
from duodec.errors import BadOption

_PANEL = "Common"
LEVELS = ("debug", "info", "warning", "error")


def _set_level(level: str | None) -> str | None:
    if level is None:
        return None
    if level.lower() not in LEVELS:
        raise BadOption(f"--log-level is '{level}'; choose from: {', '.join(LEVELS)}")
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    for name in ("", "duodec"):
        logging.getLogger(name).setLevel(level.upper())
    if level.lower() == "debug":
        os.environ["DUODEC_LLAMA_LOG"] = "1"
    return level.lower()


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="A YAML file with options by their long names; without it ~/.config/duodec/"
        "config.yaml, if there is one. The command line and the environment override it.",
        metavar="FILE",
        envvar=[settings_file.VARIABLE, "DUODEC_CONFIG_FILE"],
        callback=settings_file.apply,
        is_eager=True,
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
LogLevel = Annotated[
    str | None,
    typer.Option(
        "--log-level",
        help="How much is logged to stderr: debug (with llama.cpp's own log), info, warning or "
        "error.",
        metavar="LEVEL",
        callback=_set_level,
        show_default=False,
        rich_help_panel=_PANEL,
    ),
]
HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all",
        help="Show every option.",
        callback=show_all,
        is_eager=True,
        rich_help_panel=_PANEL,
    ),
]
_COMMON: dict[str, tuple[Any, Any]] = {
    "config_file": (ConfigFile, None),
    "log_level": (LogLevel, None),
    "help_all": (HelpAll, False),
}


def register(
    app: typer.Typer, commands: Sequence[tuple[str, Callable[..., None]]], epilog: str = ""
) -> None:
    """Add commands by name. The examples below a command's help are the ``EPILOG`` of its module,
    unless one is given."""
    for name, command in commands:
        words = epilog or getattr(inspect.getmodule(command), "EPILOG", "")
        settings: dict[str, Any] = dict(CONTEXT_SETTINGS)
        if name == "serve":
            settings["auto_envvar_prefix"] = "DUODEC"
        app.command(name, cls=Command, epilog=words, context_settings=settings)(_common(command))


def _common(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options that every command has, which it does not see."""
    signature = inspect.signature(command, eval_str=True)
    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in signature.parameters.values()]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
        for name, (kind, default) in _COMMON.items()
        if name not in signature.parameters
    ]

    def run(**values: Any) -> None:
        command(**{p.name: values[p.name] for p in own})

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *added)}
    run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    return run

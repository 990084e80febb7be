"""Parse the other models of a server: a name, a model, and options of its own."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from duodec.cli import options
from duodec.cli.spelling import UsageError
from duodec.core.parameters import fields_of
from duodec.errors import BadOption
from duodec.models import check_reference
from duodec.models.config import EngineConfig

_NAMED = re.compile(r"([^=/\\:]+)=(.+)")
_ITS_OWN = (  # some of which a model of another backend does not have
    "draft", "context", "target_backend", "dtype", "gpu_layers", "cpu_moe", "n_cpu_moe",
    "override_tensor", "cache_type_k", "cache_type_v",
)  # fmt: skip
_OF_THE_SERVER = ("target", "exact", "fast", "parse_special", *options.GRAMMAR_LIMITS)


def other_models(
    given: list[str], first: EngineConfig, name_of_first: str
) -> dict[str, EngineConfig]:
    """The models of ``--also`` by name; what concerns the machine is as for the first model, unless
    options say otherwise. Raises BadOption."""
    found: dict[str, EngineConfig] = {}
    for words in given:
        name, config = _model(words, first)
        if name == name_of_first or name in found:
            raise BadOption(f"also is '{words}', and '{name}' is taken; write ANOTHER={words}")
        found[name] = config
    return found


def name_of(target: str) -> str:
    """A target's name without its folders."""
    path = Path(target).expanduser()
    return path.name if "/" in target and path.exists() else target


def _model(words: str, first: EngineConfig) -> tuple[str, EngineConfig]:
    try:
        model, *arguments = shlex.split(words)  # no word at all is a ValueError, too
    except ValueError as error:
        raise BadOption(f"also is '{words}'; name a model, as in coder=MODEL -c 16384") from error
    named = _NAMED.fullmatch(model)
    name, target = named.groups() if named else (name_of(model), model)
    check_reference(target)
    default = EngineConfig()
    shared = replace(first, datastore="auto", **{own: getattr(default, own) for own in _ITS_OWN})
    known = {options.parameter_name(f): f.name for f in fields_of(EngineConfig).values()}
    try:
        config: EngineConfig = _command().main(
            arguments,
            prog_name="also",
            standalone_mode=False,
            default_map={option: getattr(shared, own) for option, own in known.items()},
        )
    except UsageError as error:
        told = str(getattr(error, "format_message", error.__str__)()).rstrip(".")
        raise BadOption(f"also is '{words}': {told}") from error
    except BadOption as error:
        raise BadOption(f"also is '{words}': {error}") from error
    of_server = {own: getattr(first, own) for own in (*_OF_THE_SERVER, "num_slots")}
    return name, replace(config, **{**of_server, "target": target})


def _command() -> Any:
    """A command that returns the configuration that its options make."""

    @options.derived
    def model(
        *, config: Annotated[EngineConfig, options.Options(without=_OF_THE_SERVER)]
    ) -> EngineConfig:
        return config

    settings = {**options.CONTEXT_SETTINGS, "help_option_names": []}
    app = typer.Typer(add_completion=False, context_settings=settings)
    app.command()(model)
    return typer.main.get_command(app)

"""Find what packages add to the engine: commands, backends, methods, checks and figures, by name.

A package names its objects as entry points of a group, such as ``duodec.commands``; see
docs/extending.md. Our own satellites do the same. Only the names of what they add are known here,
so that a missing one can be named with its remedy, and so that no other package takes its place.
Nothing of a package is imported, and no metadata is read, before it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from duodec.errors import BackendUnavailable, BadOption
from duodec.machine.install import satellite_command

COMMANDS = "duodec.commands"  # functions with typer's annotations, or `typer.Typer`s
BACKENDS = "duodec.backends"  # classes of `duodec.loading.backends.Backend`
METHODS = "duodec.methods"  # classes of `duodec.methods.Method`
CHECKS = "duodec.checks"  # functions of target, draft and offline for `duodec doctor`
FIGURES = "duodec.figures"  # functions that return SVG

_OURS: Mapping[str, Mapping[str, str]] = {
    COMMANDS: {
        "bench": "duodec-lab",
        "report": "duodec-lab",
        "verify": "duodec-lab",
        "plan": "duodec-lab",
        "distill": "duodec-lab",
        "datastore.build": "duodec-lab",
        "vllm": "duodec-vllm",
    },
    BACKENDS: {"torch": "duodec-torch"},
    CHECKS: {"vllm": "duodec-vllm"},
    FIGURES: {"costs": "duodec-lab"},
}
"""What our satellites add to each group, and the distribution that provides it."""


@cache  # it reads one file per package
def installed(group: str) -> Mapping[str, EntryPoint]:
    """Return what installed packages add to a group, by name; ours come first."""
    ours = _OURS.get(group, {})
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        package = point.dist.name if point.dist else ""
        if ours.get(point.name, package) == package:
            found[point.name] = point
    names = [*ours, *found]
    return {name: found[name] for name in dict.fromkeys(names) if name in found}


def missing(group: str) -> tuple[str, ...]:
    """Return the names of our satellites that are not installed."""
    return tuple(name for name in _OURS.get(group, {}) if name not in installed(group))


def is_known(group: str, name: str) -> bool:
    """Return whether a name belongs to an installed package, or to one of our satellites, installed
    or not."""
    return name in _OURS.get(group, {}) or name in installed(group)


def load(group: str, name: str, what: str = "") -> Any:
    """Return the object with a known name. ``what`` names its user in errors. Raises
    BackendUnavailable for a satellite that is not installed, and BadOption for a broken package."""
    point = installed(group).get(name)
    if point is None:
        distribution = _OURS[group][name]  # a known name that is not installed is ours
        raise BackendUnavailable(
            f"{what or name} is part of {distribution}, which is not installed; "
            f"run: {satellite_command(distribution)}"
        )
    try:
        return point.load()
    except (AttributeError, ImportError, SyntaxError) as error:
        package = point.dist.name if point.dist else point.module
        raise BadOption(
            f"{what or name} of the package {package} cannot be imported: {error}; "
            "update or remove that package"
        ) from error

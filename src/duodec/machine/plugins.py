"""Find what packages add to the engine: commands, backends, checks and figures, by their names.

A package names its objects as entry points of a group, such as ``duodec.commands``; see
docs/extending.md. Our own satellites are in a table besides, so that they are found in one source
tree with the engine, and can be named where they are missing. Nothing of a package is imported
before it is asked for, and no metadata is read for a name of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

from duodec.errors import BackendUnavailable, BadOption
from duodec.machine.install import install_command

COMMANDS = "duodec.commands"  # functions with typer's annotations, or `typer.Typer`s
BACKENDS = "duodec.backends"  # classes of `duodec.loading.backends.Backend`
CHECKS = "duodec.checks"  # of `duodec doctor`: functions of target, draft and offline
FIGURES = "duodec.figures"  # functions that return SVG

_LAB = "duodec.lab.commands"
_SATELLITES: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "duodec-lab": {
        COMMANDS: {
            "bench": f"{_LAB}.bench:bench",
            "report": f"{_LAB}.report:report",
            "verify": f"{_LAB}.verify:verify",
            "plan": f"{_LAB}.plan:plan",
            "distill": f"{_LAB}.distill:distill",
            "datastore.build": f"{_LAB}.datastore:build",
        },
        FIGURES: {"costs": "duodec.bench.figures.costs:costs_figure"},
    },
    "duodec-torch": {BACKENDS: {"torch": "duodec.backends.torch.backend:TorchBackend"}},
    "duodec-vllm": {
        COMMANDS: {"vllm": "duodec.integrations.vllm.command:vllm"},
        CHECKS: {"vllm": "duodec.integrations.vllm.checks:checks"},
    },
}
"""Distributions of ours beside the engine, and what each adds to a group."""


@dataclass(frozen=True)
class _Ours:
    """What a satellite of ours adds."""

    point: EntryPoint
    distribution: str

    @property
    def is_here(self) -> bool:
        """Whether it lies in one source tree with the engine."""
        try:
            return find_spec(self.point.module) is not None
        except ModuleNotFoundError:  # not even the package that it would be in
            return False


@cache
def _ours(group: str) -> Mapping[str, _Ours]:
    return {
        name: _Ours(EntryPoint(name, value, group), distribution)
        for distribution, groups in _SATELLITES.items()
        for name, value in groups.get(group, {}).items()
    }


@cache  # it reads a file a package
def installed(group: str) -> Mapping[str, EntryPoint]:
    """What installed packages add to a group, by name."""
    return {point.name: point for point in entry_points(group=group)}


def names(group: str) -> tuple[str, ...]:
    """The names that can be loaded: ours first."""
    ours = (name for name, one in _ours(group).items() if one.is_here)
    return tuple(dict.fromkeys([*ours, *installed(group)]))


def missing(group: str) -> tuple[str, ...]:
    """The names of our satellites that are not installed."""
    return tuple(name for name in _ours(group) if name not in names(group))


def is_known(group: str, name: str) -> bool:
    """Whether a name is of an installed package, or of a satellite of ours, installed or not."""
    return name in _ours(group) or name in installed(group)


def load(group: str, name: str, what: str = "") -> Any:
    """The object of a known name; ``what`` needs it, for the errors. Raises BackendUnavailable for
    one of a satellite that is not installed, and BadOption for a package that is broken."""
    ours = _ours(group).get(name)
    if ours and ours.is_here:
        return ours.point.load()
    point = installed(group).get(name)
    if point is None:
        assert ours, f"{name} is known"
        raise BackendUnavailable(
            f"{what or name} is part of {ours.distribution}, which is not installed; "
            f"run: {install_command(ours.distribution)}"
        )
    try:
        return point.load()
    except (AttributeError, ImportError, SyntaxError) as error:
        package = point.dist.name if point.dist else point.module
        raise BadOption(
            f"{what or name} of the package {package} cannot be imported: {error}; "
            "update or remove that package"
        ) from error

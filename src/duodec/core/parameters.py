"""Describe the fields of a dataclass where they are declared: help, range and spelling.

    top_k: Annotated[int, Parameter("Only the K likeliest; 0: off.", ge=0)] = 0

`check` refuses what is out of range, and the command line derives its options: whoever adds a
field adds its option, and neither can contradict the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from duodec.errors import BadOption


@dataclass(frozen=True)
class Parameter:
    """What is known of a field besides its type and its default; bounds as in pydantic."""

    help: str
    panel: str = ""  # the part of a command's help that lists it
    flags: tuple[str, ...] = ()  # of the command line, the long one first; (): the field's name
    metavar: str | None = None
    ge: float = -math.inf
    gt: float | None = None
    le: float = math.inf
    lt: float | None = None
    remedy: str = ""  # after the value in the error; by default what ``ge`` says
    choices: Collection[str] = ()

    def is_in_range(self, value: float) -> bool:
        """NaN is not, and infinity is out of every bound but the absent one."""
        is_above = self.ge <= value and (self.gt is None or self.gt < value)
        is_below = value <= self.le and (self.lt is None or value < self.lt)
        return is_above and is_below


@dataclass(frozen=True)
class Field:
    """A described field of a dataclass."""

    name: str
    kind: Any  # its type
    parameter: Parameter

    @property
    def flags(self) -> tuple[str, ...]:
        """How the command line spells it."""
        return self.parameter.flags or (f"--{self.name.replace('_', '-')}",)

    @property
    def option(self) -> str:
        """The same, as errors name it."""
        return self.flags[0].lstrip("-")


@cache
def fields_of(record: type) -> Mapping[str, Field]:
    """The described fields of a dataclass, by name, in their order."""
    found: dict[str, Field] = {}
    for name, hint in get_type_hints(record, include_extras=True).items():
        kind, *notes = get_args(hint) if get_origin(hint) is not None else (hint,)
        for note in notes:
            if isinstance(note, Parameter):
                found[name] = Field(name, kind, note)
    return found


def by_name(field: Field) -> str:
    """A field under its own name, in an error of the library."""
    return field.name


def by_option(field: Field) -> str:
    """A field under its option's name."""
    return field.option


def check(record: object, spelled: Callable[[Field], str] = by_option) -> None:
    """Raises BadOption for the first field whose value is out of its range; None is in it."""
    kind: Any = type(record)
    for field in fields_of(kind).values():
        value, parameter = getattr(record, field.name), field.parameter
        if value is None:
            continue
        if parameter.choices and value not in parameter.choices:
            raise BadOption(
                f"unknown {spelled(field).replace('-', ' ')} '{value}'; choose from: "
                f"{', '.join(parameter.choices)}"
            )
        if isinstance(value, (int, float)) and not parameter.is_in_range(value):
            remedy = parameter.remedy or f"use {parameter.ge:g} or more"
            raise BadOption(f"{spelled(field)} is {value}; {remedy}")

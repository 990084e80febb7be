"""Describe the fields of a dataclass where they are declared: help, range and spelling.

    top_k: Annotated[int, Parameter("Only the K likeliest; 0: off.", ge=0)] = 0

`check` refuses values out of range, and the command line derives its options from the same
declarations: a new field is a new option, and the two cannot contradict each other.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache, wraps
from numbers import Integral, Real
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from duodec.errors import BadOption

_Record = TypeVar("_Record")


@dataclass(frozen=True)
class Parameter:
    """Describe a field beyond its type and default, with bounds as in pydantic."""

    help: str
    panel: str = ""  # part of a command's help that lists it
    flags: tuple[str, ...] = ()  # command-line flags, the long one first; (): the field's name
    metavar: str | None = None
    ge: float = -math.inf
    gt: float | None = None
    le: float = math.inf
    lt: float | None = None
    remedy: str = ""  # follows the value in the error; derived from ``ge`` by default
    choices: Collection[str] = ()

    def is_in_range(self, value: float) -> bool:
        """Return whether a value is in range. NaN never is; infinity is only where there is no
        bound."""
        is_above = self.ge <= value and (self.gt is None or self.gt < value)
        is_below = value <= self.le and (self.lt is None or value < self.lt)
        return is_above and is_below


@dataclass(frozen=True)
class Field:
    """Describe a field of a dataclass."""

    name: str
    kind: Any  # the type
    parameter: Parameter

    @property
    def number(self) -> type | None:
        """Return int or float, where the field holds a number or None, and no text."""
        kinds = (self.kind, *get_args(self.kind))
        return None if str in kinds else next((k for k in (int, float) if k in kinds), None)

    @property
    def is_optional(self) -> bool:
        """Return whether the field may be None."""
        return NoneType in get_args(self.kind)

    @property
    def flags(self) -> tuple[str, ...]:
        """Return how the command line spells the field."""
        return self.parameter.flags or (f"--{self.name.replace('_', '-')}",)

    @property
    def option(self) -> str:
        """Return the option's name for errors."""
        return self.flags[0].lstrip("-")


@cache
def fields_of(record: type) -> Mapping[str, Field]:
    """Return the described fields of a dataclass, by name, in their order."""
    found: dict[str, Field] = {}
    for name, hint in get_type_hints(record, include_extras=True).items():
        kind, *notes = get_args(hint) if get_origin(hint) is not None else (hint,)
        for note in notes:
            if isinstance(note, Parameter):
                found[name] = Field(name, kind, note)
    return found


def whole(name: str, value: object, flags: tuple[str, ...] = ()) -> int:
    """Return a whole number, also one of NumPy's, as Python's own. Raises BadOption for all else;
    True and False are not numbers."""
    if isinstance(value, Integral) and _is_number(value):
        return int(value)
    words = "a whole number" if _is_number(value) else "a number"
    raise BadOption(f"{name} is {shown(value)}; write {words}", option=name, flags=flags)


def real(name: str, value: object, flags: tuple[str, ...] = ()) -> float:
    """Return a number, also one of NumPy's, as Python's own; an int stays one. Raises BadOption for
    all else."""
    if type(value) in (int, float):
        with suppress(OverflowError):
            float(value)  # type: ignore[arg-type]
            return value  # type: ignore[return-value]
        raise BadOption(
            f"{name} is {shown(value)}; write a smaller number", option=name, flags=flags
        )
    if isinstance(value, Real) and _is_number(value):
        return real(name, int(value) if isinstance(value, Integral) else float(value), flags)
    raise BadOption(f"{name} is {shown(value)}; write a number", option=name, flags=flags)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


_SHOWN = 80  # longest value in an error, in characters


def shown(value: object) -> str:
    """Return a value as an error names it, in one line."""
    try:
        words = repr(value)
    except ValueError:  # Python writes no number of thousands of digits
        return "a number of thousands of digits"
    words = " ".join(words.split())
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN]}..."


def check(record: object) -> None:
    """Raise BadOption for the first field whose value is out of range, or is not the number or text
    that the field requires. None is in range where the field may be None. NumPy's numbers become
    Python's. The command line makes options of the fields' names."""
    kind: Any = type(record)
    for field in fields_of(kind).values():
        value, parameter = getattr(record, field.name), field.parameter
        if value is None and (field.is_optional or not (field.number or field.kind is str)):
            continue
        if field.number:
            number = whole if field.number is int else real
            value = number(field.name, value, field.flags)
            object.__setattr__(record, field.name, value)
        elif field.kind is str and not isinstance(value, str):
            raise BadOption(
                f"{field.name} is {shown(value)}; write a text", option=field.name,
                flags=field.flags,
            )  # fmt: skip
        if parameter.choices and value not in parameter.choices:
            raise BadOption(
                f"unknown {field.name.replace('_', ' ')} '{value}'; choose from: "
                f"{', '.join(parameter.choices)}"
            )
        if isinstance(value, (int, float)) and not parameter.is_in_range(value):
            remedy = parameter.remedy or f"use {parameter.ge:g} or more"
            raise BadOption(
                f"{field.name} is {shown(value)}; {remedy}", option=field.name, flags=field.flags
            )


def made(record: type[_Record], values: Mapping[str, Any]) -> _Record:
    """Return a record of these fields. Raises BadOption for a name that is not a field, and
    suggests the nearest."""
    _check_names(record, values)
    return record(**values)


def strict(record: type[_Record]) -> type[_Record]:
    """Let a dataclass refuse a name that is not a field as `made` does, in place of a TypeError."""
    make: Any = record.__init__

    @wraps(make)
    def init(self: object, *values: Any, **named: Any) -> None:
        _check_names(record, named)
        make(self, *values, **named)

    setattr(record, "__init__", init)  # noqa: B010  mypy forbids the assignment
    return record


def _check_names(record: type, values: Mapping[str, Any]) -> None:
    known = record.__dataclass_fields__  # type: ignore[attr-defined]
    if known.keys() >= values.keys():
        return
    name = next(name for name in values if name not in known)
    near = get_close_matches(str(name), known, 1)
    hint = f"did you mean {near[0]}?" if near else f"choose from: {', '.join(known)}"
    raise BadOption(f"{record.__name__} has no {name!r}; {hint}")

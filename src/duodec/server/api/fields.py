"""Validate the fields of requests, and refuse what does not fit in OpenAI's shape.

Nothing is ignored in silence: a field that an object does not have is refused, but for those that
clients send by habit and that have no effect. Null counts as absent, and no value is converted to
another type.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Strict,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from duodec.server.errors import ApiError, bad_field
from duodec.server.http.json_limits import kind

MAX_STOPS, MAX_STOP_LENGTH, MAX_BIASES = 16, 1024, 1024
_MAX_ID = 256  # characters; OpenAI's own limit is 64, and some clients join two of them

_EXPECTED = {
    "string_type": "a string",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}

_B = TypeVar("_B", bound=BaseModel)


def validated(schema: type[_B], body: Mapping[str, Any]) -> _B:
    """The body as this schema has it. Raises ApiError of the first field that does not fit.

    Lists of bodies are validated with FailFast: the errors of all items of a long one would take
    seconds and hundreds of megabytes."""
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False)[0]) from None


def _refusal(error: ErrorDetails) -> ApiError:
    name = _name(error["loc"])
    if error["type"] == "refused_field":
        name = _name([*error["loc"], error["ctx"]["field"]])
        return bad_field(name, f"{name} {error['ctx']['why']}")
    if error["type"] == "refused":
        return bad_field(name, f"{name} {error['ctx']['why']}")
    if error["type"] == "missing":
        return bad_field(name, f"{name} is missing or empty; send it")
    expected = _EXPECTED.get(error["type"])
    if expected is None:
        return bad_field(name, f"{name}: {error['msg']}")
    found = kind(error["input"])
    if found == expected:  # an integer that no float holds
        return bad_field(name, f"{name} is too large; send a smaller number")
    return bad_field(name, f"{name} is {found}; send {expected}")


def _name(place: Sequence[str | int]) -> str:
    """A field's full name, as ``messages[0].role``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)[1:]


def refused(why: str) -> PydanticCustomError:
    """``why`` follows the field's name."""
    return PydanticCustomError("refused", "{why}", {"why": why})


# --- values


def _integral(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def between(least: float, most: float = math.inf) -> AfterValidator:
    """The bounds of a number."""

    def check(value: float) -> float:
        # `not (a <= b)` rather than `a > b`: NaN is refused too
        if not least <= value <= most:
            bounds = f"from {least:g} to {most:g}" if most < math.inf else f"{least:g} or more"
            raise refused(f"is {value}; use {bounds}")
        return value

    return AfterValidator(check)


Whole = Annotated[int, Strict(), BeforeValidator(_integral)]
Number = Annotated[float, Strict()]
Penalty = Annotated[Number, between(-2, 2)]
Repetition = Annotated[Number, between(0.01, 100)]
Share = Annotated[Number, between(0, 1)]
Limit = Annotated[Whole, between(1)]


def one_of(names: Sequence[str]) -> AfterValidator:
    """The values of a text."""

    def check(value: str) -> str:
        if value not in names:
            raise refused(f"is {value[:200]!r}; use {', '.join(names)}")
        return value

    return AfterValidator(check)


def _stops(value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if isinstance(stops, list):
        if len(stops) > MAX_STOPS:
            raise refused(f"has {len(stops)} texts; use {MAX_STOPS} or fewer")
        if not all(isinstance(stop, str) and stop for stop in stops):
            raise refused("holds something that is no text, or an empty one")
        if (longest := max(map(len, stops), default=0)) > MAX_STOP_LENGTH:
            raise refused(
                f"has a text of {longest} characters; use {MAX_STOP_LENGTH} or fewer in each"
            )
    return stops


def _biases(value: Any) -> Any:
    if isinstance(value, dict):
        if len(value) > MAX_BIASES:
            raise refused(f"has {len(value)} tokens; use {MAX_BIASES} or fewer")
        for name in value:
            if not (name.isdecimal() and len(name) < 10):
                raise refused(f"names {name!r}; use numbers of tokens")
        return {name: bias for name, bias in value.items() if bias is not None}
    return value


def id_fault(value: object) -> str | None:
    """What is wrong with the id of a call, which may be missing; None if it is sound."""
    if value is not None and not isinstance(value, str):
        return f"is {kind(value)}; send a text"
    if value is not None and len(value) > _MAX_ID:
        return f"has {len(value)} characters; use {_MAX_ID} or fewer"
    return None


def _short(value: Any) -> Any:
    if (fault := id_fault(value)) is not None:
        raise refused(fault)
    return value


ShortId = Annotated[str, BeforeValidator(_short)]


def id_in(item: Mapping[str, Any], field: str, place: str) -> str | None:
    """The id of a call in an item of a list; None where there is none. Raises ApiError."""
    value: str | None = item.get(field)
    if (fault := id_fault(value)) is not None:
        raise bad_field(f"{place}.{field}", f"{place}.{field} {fault}")
    return value


Stops = Annotated[list[str], FailFast(), BeforeValidator(_stops)]
Biases = Annotated[dict[str, Annotated[Number, between(-100, 100)]], BeforeValidator(_biases)]


class Object(BaseModel):
    """A JSON object, of these fields alone.

    ``without_effect``: fields that clients send by habit, and that change nothing. ``neutral``:
    fields of other servers, and the values of them that mean what is done here anyway.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    without_effect: ClassVar[frozenset[str]] = frozenset()
    neutral: ClassVar[Mapping[str, Sequence[Any]]] = {}

    @classmethod
    def names(cls) -> list[str]:
        """Of the fields that have an effect, as clients write them."""
        return [field.alias or name for name, field in cls.model_fields.items()]

    @model_validator(mode="before")
    @classmethod
    def _known(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        given = {name: value for name, value in values.items() if value is not None}
        if cls.model_config.get("extra") == "allow":
            return given
        known = set(cls.names())
        for name, value in given.items():
            if name not in known and name not in cls.without_effect:
                cls._check_neutral(name, value)
        return {name: value for name, value in given.items() if name in known}

    @classmethod
    def _check_neutral(cls, name: str, value: Any) -> None:
        served = cls.neutral.get(name)
        if served is None:
            near = get_close_matches(name, cls.names(), 1)
            hint = f"; did you mean {near[0]}?" if near else "; leave it out"
            raise _refused_field(name[:200], f"is no field that is served here{hint}")
        if not any(value == own and isinstance(value, bool) is isinstance(own, bool)
                   for own in served):  # fmt: skip
            shown = " or ".join(map(json.dumps, served))
            raise _refused_field(name, f"is served as {shown} only; leave it out")


def _refused_field(name: str, why: str) -> PydanticCustomError:
    """Of an object whose field is not to be there."""
    return PydanticCustomError("refused_field", "{why}", {"field": name, "why": why})

"""A JSON object read field by field: what is missing, null, or of the wrong type is said so."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from duodec.server.errors import bad_field
from duodec.server.jsons import kind


class Fields:
    """The fields of one object; null counts as absent. All methods raise ApiError."""

    def __init__(self, values: Mapping[str, Any], place: str = "") -> None:
        self._values = values
        self._place = place

    def name(self, field: str) -> str:
        """A field's full name, as ``stream_options.include_usage``."""
        return f"{self._place}{field}"

    def value(self, field: str) -> Any:
        return self._values.get(field)

    def refuse(self, field: str, wanted: str) -> NoReturn:
        value = self.value(field)
        raise bad_field(
            self.name(field), f"{self.name(field)} is {kind(value)}; send {wanted}"
        ) from None

    def text(self, field: str) -> str | None:
        value = self.value(field)
        if value is not None and not isinstance(value, str):
            self.refuse(field, "a string")
        return value

    def truth(self, field: str, default: bool = False) -> bool:
        value = self.value(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(field, "true or false")
        return bool(value)

    def number(
        self, field: str, default: float, least: float = -math.inf, most: float = math.inf
    ) -> float:
        value = self.value(field)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(field, "a number")
        self._check(field, value, least, most)
        return float(value)

    def whole(
        self, field: str, default: int | None, least: float = -math.inf, most: float = math.inf
    ) -> int | None:
        value = self.value(field)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(field, "a whole number")
        self._check(field, value, least, most)
        return int(value)

    def items(self, field: str) -> Sequence[Any]:
        value = self.value(field)
        if value is None:
            return ()
        if not isinstance(value, list):
            self.refuse(field, "an array")
        return list(value)

    def object(self, field: str) -> Fields:
        """An object's fields; none where it is absent."""
        value = self.value(field)
        if value is not None and not isinstance(value, dict):
            self.refuse(field, "an object")
        return Fields(value or {}, f"{self.name(field)}.")

    def mapping(self, field: str) -> Mapping[str, Any]:
        value = self.value(field)
        if value is not None and not isinstance(value, dict):
            self.refuse(field, "an object")
        return value or {}

    def _check(self, field: str, value: float, least: float, most: float) -> None:
        # `not (a <= b)` rather than `a > b`: NaN is refused too
        if not least <= value <= most:
            bounds = f"from {least:g} to {most:g}" if most < math.inf else f"{least:g} or more"
            raise bad_field(self.name(field), f"{self.name(field)} is {value}; use {bounds}")

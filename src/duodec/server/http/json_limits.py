"""Parse JSON that clients send, within limits of depth and number.

A parser of JSON lets nothing else run in this process until it is done, and what is nested deeply
exhausts the stack of whoever walks over it later. Both are counted first, on the bytes.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from math import isinf
from typing import Any, NoReturn

import numpy as np

from duodec.server.errors import ApiError

MAX_DEPTH = 100
MAX_VALUES = 300_000
MAX_NAMES = 50_000  # of fields, arrays and objects: what is dear to make
PART_BYTES = 1 << 18  # bytes that are counted at a time
_REMEDY = "send one JSON object"


class TooMuch(ValueError):
    """More than is read; ValueError as what is no JSON at all."""


@dataclass(frozen=True)
class Size:
    """How much a JSON text holds, or may hold; ``num_names`` are fields, arrays and objects."""

    num_values: int = 0
    num_names: int = 0

    def plus(self, other: Size) -> Size:
        return Size(self.num_values + other.num_values, self.num_names + other.num_names)

    def check(self, most: Size) -> None:
        """Raises TooMuch."""
        if self.num_values > most.num_values:
            raise TooMuch(f"more than {most.num_values} values")
        if self.num_names > most.num_names:
            raise TooMuch(f"more than {most.num_names} fields, arrays and objects")


MOST = Size(MAX_VALUES, MAX_NAMES)


def parse_object(data: bytes) -> dict[str, Any]:
    """The JSON object of a body. Raises ApiError."""
    try:
        value = parse(data)
    except ValueError as error:
        raise ApiError(
            400, f"the body is no JSON ({error}); {_REMEDY}", code="invalid_json"
        ) from error
    if not isinstance(value, dict):
        raise ApiError(400, f"the body is {kind(value)}; {_REMEDY}", code="invalid_json")
    return value


def parse(data: bytes | str, most: Size = MOST) -> Any:
    """Any JSON value, of no more than ``most``. Raises ValueError, which says why."""
    data = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    size_of(data, most)
    value = _loads(data.decode("utf-8"))
    if b"\\ud" in data.lower():  # halves of characters are no text: nothing could be sent back
        whole = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
        value = _loads(whole)
    return value


def kind(value: object) -> str:
    """A JSON value's type, for people."""
    if value is None:
        return "null"
    for kinds, name in (
        (bool, "a boolean"), (str, "a string"), ((int, float), "a number"), (dict, "an object"),
    ):  # fmt: skip
        if isinstance(value, kinds):
            return name
    return "an array"


def size_of(data: bytes, most: Size = MOST) -> Size:
    """How much a JSON text holds. Raises TooMuch, at the first part that holds more than ``most``:
    others run between two parts."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"  ").replace(b'\\"', b"  ")
    size = Size()
    depth = is_open_text = 0
    for begin in range(0, len(data), PART_BYTES):
        signs = np.frombuffer(data[begin : begin + PART_BYTES], dtype=np.uint8)
        quotes = np.cumsum(signs == ord('"'), dtype=np.uint8)  # wraps, and stays odd or even
        is_text = (quotes & 1) ^ is_open_text
        is_open_text = int(is_text[-1])
        signs = signs[is_text == 0]
        is_open = (signs == ord("[")) | (signs == ord("{"))
        is_close = (signs == ord("]")) | (signs == ord("}"))
        depths = depth + np.cumsum(np.where(is_open[is_open | is_close], 1, -1))
        if depths.size:
            depth = int(depths[-1])
            if depths.max() > MAX_DEPTH:
                raise TooMuch(f"nested too deeply, more than {MAX_DEPTH} levels")
        num_open = int(np.count_nonzero(is_open))
        num_commas, num_colons = (int(np.count_nonzero(signs == ord(sign))) for sign in ",:")
        size = size.plus(Size(num_open + num_commas, num_open + num_colons))
        size.check(most)
    return size


def _loads(text: str | bytes) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except ValueError as error:
        if "int_max_str_digits" in str(error):  # Python's remedy, not the client's
            most = sys.get_int_max_str_digits()
            raise ValueError(f"a whole number has more than {most} digits") from error
        raise


def _finite(text: str) -> float:
    """A number that JSON can write again: 1e400 is read as an infinity, which it cannot."""
    value = float(text)
    if isinf(value):
        raise ValueError(f"{text[:20]} is too large for a number")
    return value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")

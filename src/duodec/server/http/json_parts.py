"""Encode JSON in small parts, between which other threads run.

The standard encoder keeps Python's lock until it is done: a response of ten megabytes, as one with
logprobs of a long prompt, would stop the event loop for half a second, whichever thread encodes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

MOST_VALUES = 4_000  # values that are encoded at once: a millisecond or two
_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def encoded(value: Any) -> bytes:
    """The JSON of a value. A function in it is called for the value in its place, which is then
    made where it is encoded."""
    return "".join(_parts(value)).encode("utf-8")


def _parts(value: Any) -> Iterator[str]:
    """Parts of at most about `MOST_VALUES` values, but for texts, which are quick."""
    if callable(value):
        value = value()
    if not isinstance(value, dict | list | tuple) or _num_values(value) <= MOST_VALUES:
        yield _JSON.encode(value)
    elif isinstance(value, dict):
        yield from _joined("{", "}", list(value.items()), dict)
    else:
        yield from _joined("[", "]", value, list)


def _joined(begin: str, end: str, items: Sequence[Any], kind: type) -> Iterator[str]:
    """An object or an array: large items part by part, small ones together."""
    for batch in _batches(items):
        yield begin
        begin = ","
        if len(batch) > 1 or _num_values(batch[0]) <= MOST_VALUES:
            yield _JSON.encode(kind(batch))[1:-1]
        elif kind is dict:
            name, value = batch[0]
            yield f"{_JSON.encode(name)}:"
            yield from _parts(value)
        else:
            yield from _parts(batch[0])
    yield end


def _batches(items: Sequence[Any]) -> Iterator[list[Any]]:
    """Neighbours that have no more than `MOST_VALUES` values together; what has more is alone."""
    batch: list[Any] = []
    num = 0
    for item in items:
        size = _num_values(item)
        if batch and num + size > MOST_VALUES:
            yield batch
            batch, num = [], 0
        batch.append(item)
        num += size
    yield batch


def _num_values(value: Any) -> int:
    """How many values it holds, counted to `MOST_VALUES`; a function holds more than that."""
    if callable(value):
        return MOST_VALUES + 1
    if not isinstance(value, dict | list | tuple):
        return 1
    num = 1 + len(value)
    for item in value.values() if isinstance(value, dict) else value:
        if num > MOST_VALUES:
            break
        if callable(item) or isinstance(item, dict | list | tuple):
            num += _num_values(item)
    return num

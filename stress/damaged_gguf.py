"""Damage model files: each by a few changes that follow from its number alone.

Values and types in the header, lengths of arrays and texts, records of tensors, their bytes, a cut
end.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_VALUES = (0, 1, 2, 3, 7, 127, 128, 255, 256, 4095, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1,
           1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)  # fmt: skip
_FLOATS = (float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1e-38, 1e38, 2.0)


@dataclass(frozen=True)
class Field:
    """A place in the file that holds a number of so many bytes."""

    name: str
    at: int
    size: int
    is_float: bool = False


@dataclass(frozen=True)
class Map:
    """Where a file has what."""

    values: list[Field]  # of the header's entries
    types: list[Field]
    lengths: list[Field]  # of arrays and texts
    records: list[Field]  # of tensors: dimensions, types, offsets
    header_end: int


def map_of(data: bytes) -> Map:
    """Read the file once; it is sound."""
    found = Map([], [], [], [], 0)
    num_tensors, num_entries = struct.unpack_from("<QQ", data, 8)
    found.lengths.extend([Field("tensors", 8, 8), Field("entries", 16, 8)])
    at = 24

    def text(name: str) -> str:
        nonlocal at
        (size,) = struct.unpack_from("<Q", data, at)
        found.lengths.append(Field(name, at, 8))
        at += 8 + size
        return data[at - size : at].decode("utf-8", "replace")

    for _ in range(num_entries):
        key = text("a key's length")
        kind = struct.unpack_from("<I", data, at)[0]
        found.types.append(Field(f"{key} type", at, 4))
        at += 4
        if kind == _STRING:
            text(f"{key} length")
        elif kind == _ARRAY:
            inner, size = struct.unpack_from("<IQ", data, at)
            found.types.append(Field(f"{key} element type", at, 4))
            found.lengths.append(Field(f"{key} size", at + 4, 8))
            at += 12
            if inner == _STRING:
                for i in range(size):
                    if i < 20:
                        text(f"{key}[{i}] length")
                    else:
                        at += 8 + struct.unpack_from("<Q", data, at)[0]
            else:
                width = _SIZES[inner]
                for i in range(min(size, 3)):
                    found.values.append(Field(f"{key}[{i}]", at + i * width, width))
                at += size * width
        else:
            found.values.append(Field(key, at, _SIZES[kind], kind in (6, 12)))
            at += _SIZES[kind]
    for _ in range(num_tensors):
        name = text("a tensor's name")
        (num_dimensions,) = struct.unpack_from("<I", data, at)
        found.records.append(Field(f"{name} dimensions", at, 4))
        at += 4
        for i in range(num_dimensions):
            found.records.append(Field(f"{name} dimension {i}", at + 8 * i, 8))
        at += 8 * num_dimensions
        found.records.append(Field(f"{name} type", at, 4))
        found.records.append(Field(f"{name} offset", at + 4, 8))
        at += 12
    return Map(found.values, found.types, found.lengths, found.records, at)


def mutated(data: bytes, places: Map, number: int) -> tuple[bytes, list[str]]:
    """The file of this number, and what was changed."""
    dice = random.Random(number)
    changed, said = bytearray(data), []

    def put(field: Field) -> None:
        if field.is_float and dice.random() < 0.7:
            value = dice.choice(_FLOATS)
            struct.pack_into("<f" if field.size == 4 else "<d", changed, field.at, value)
            said.append(f"{field.name} = {value}")
            return
        old = int.from_bytes(data[field.at : field.at + field.size], "little")
        near = dice.choice((old - 1, old + 1, 2 * old, old // 2, old ^ (1 << dice.randrange(32))))
        new = (near if dice.random() < 0.5 else dice.choice(_VALUES)) % (1 << (8 * field.size))
        changed[field.at : field.at + field.size] = new.to_bytes(field.size, "little")
        said.append(f"{field.name} = {new}")

    def bytes_in(begin: int, end: int) -> None:
        size = min(dice.choice((1, 2, 8, 64, 4096, 1 << 20)), end - begin)
        at = dice.randrange(begin, end - size + 1)
        fill = dice.choice((b"\x00" * size, b"\xff" * size, dice.randbytes(size)))
        changed[at : at + size] = fill
        said.append(f"{size} bytes at {at}")

    def cut() -> None:
        size = dice.choice((dice.randrange(places.header_end), dice.randrange(len(data))))
        del changed[size:]
        said.append(f"cut at {size}")

    kinds: list[tuple[int, Callable[[], None]]] = [
        (8, lambda: put(dice.choice(places.values))),
        (2, lambda: put(dice.choice(places.types))),
        (4, lambda: put(dice.choice(places.lengths))),
        (4, lambda: put(dice.choice(places.records))),
        (2, lambda: bytes_in(0, places.header_end)),
        (4, lambda: bytes_in(places.header_end, len(data))),
        (1, cut),
    ]
    weights = [weight for weight, _ in kinds]
    for _ in range(dice.choice((1, 1, 1, 2, 3))):
        if len(changed) == len(data):  # nothing lies beyond a cut
            dice.choices(kinds, weights)[0][1]()
    return bytes(changed), said

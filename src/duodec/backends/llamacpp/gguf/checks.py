"""Check the header of a GGUF file before llama.cpp reads it, which aborts on some values."""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from duodec.errors import ModelUnreadable

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
# These are the formats of GGUF's types of numbers, by their number.
_FORMATS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_LONGEST_KEY = 1 << 16
_MOST_ENTRIES = 1 << 16  # most entries of the header
_MOST_TENSORS = 1 << 20
_MOST_TOKENS = 1 << 23


class _Range(NamedTuple):
    least: float
    most: float


# These are bounds of a model's own fields: llama.cpp's limits, or far beyond any existing model.
_RANGES = {
    "block_count": _Range(1, 512),
    "context_length": _Range(1, 1 << 27),
    "embedding_length": _Range(1, 1 << 20),
    "feed_forward_length": _Range(0, 1 << 24),
    "expert_count": _Range(0, 1024),
    "expert_used_count": _Range(0, 1024),
    "vocab_size": _Range(1, _MOST_TOKENS),
    "attention.head_count": _Range(0, 1 << 16),
    "attention.head_count_kv": _Range(0, 1 << 16),
    "attention.key_length": _Range(1, 1 << 20),
    "attention.value_length": _Range(1, 1 << 20),
    "attention.layer_norm_epsilon": _Range(0, 1),
    "attention.layer_norm_rms_epsilon": _Range(0, 1),
    "rope.dimension_count": _Range(0, 1 << 20),
    "rope.freq_base": _Range(1e-6, 1e15),
    "rope.scaling.factor": _Range(0, 1e6),
}
_TOKENS = "tokenizer.ggml.tokens"
_BY_TOKEN = {"tokenizer.ggml.scores": "f", "tokenizer.ggml.token_type": "i"}
_SPLIT = re.compile(r".+-(\d{5})-of-\d{5}\.gguf")


def check_header(path: Path) -> None:
    """Raise ModelUnreadable, which names the field and its value."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _check(path, _Reader(path, data))
    except (OSError, ValueError) as error:  # an empty file cannot be mapped
        reason = getattr(error, "strerror", None) or "it is empty"
        raise ModelUnreadable(f"cannot read {path}: {reason}; check its owner") from error


def _check(path: Path, reader: _Reader) -> None:
    if reader.bytes(4) != _MAGIC:
        raise ModelUnreadable(f"{path} is not a GGUF file; give one, or a hub repository of one")
    version = reader.number("I")
    if version not in _VERSIONS:
        raise reader.wrong("version", version, f"one of {_VERSIONS}")
    num_tensors, num_entries = reader.number("Q"), reader.number("Q")
    if num_tensors > _MOST_TENSORS:
        raise reader.wrong("number of tensors", num_tensors, f"{_MOST_TENSORS} or less")
    if num_entries > _MOST_ENTRIES:
        raise reader.wrong("number of entries", num_entries, f"{_MOST_ENTRIES} or less")
    entries = dict(reader.entries(num_entries))
    architecture = entries.get("general.architecture")
    if not isinstance(architecture, str):
        if _SPLIT.fullmatch(path.name):  # only the first part says what the model is
            return
        raise reader.wrong("general.architecture", architecture, "the name of one")
    for key, value in entries.items():
        _check_entry(reader, key.removeprefix(f"{architecture}."), key, value)
    rotated = f"{architecture}.rope.dimension_count"
    if f"{architecture}.rope.dimension_sections" in entries and entries.get(rotated) == 0:
        raise reader.wrong(rotated, 0, "1 or more, which are in sections")  # it would never end
    tokens = entries.get(_TOKENS)
    if tokens is not None and not (isinstance(tokens, _Array) and tokens.format == "s"):
        raise reader.wrong(_TOKENS, tokens, "an array of texts")
    for key, kind in _BY_TOKEN.items():
        found = entries.get(key)
        if found is None or not isinstance(tokens, _Array):
            continue
        if not isinstance(found, _Array) or found.format != kind or found.size != tokens.size:
            wanted = f"an array of {tokens.size} numbers ({kind}), one a token"
            raise reader.wrong(key, found, wanted)


def _check_entry(reader: _Reader, field: str, key: str, value: Any) -> None:
    """Check one entry; ``field`` is its key without the model's architecture."""
    numbers = value.numbers if isinstance(value, _Array) else (value,)
    limits = _RANGES.get(field) if field != key else None
    for number in numbers:
        if field != key and isinstance(number, float) and not math.isfinite(number):
            raise reader.wrong(key, number, "a finite number")
        if limits and not (
            isinstance(number, (int, float)) and limits.least <= number <= limits.most
        ):
            raise reader.wrong(key, number, f"{limits.least:.15g} to {limits.most:.15g}")
    if key == _TOKENS and isinstance(value, _Array) and not 1 <= value.size <= _MOST_TOKENS:
        raise reader.wrong(key, value, f"1 to {_MOST_TOKENS} tokens")


class _Array(NamedTuple):
    """Hold an array's format (``s``: texts) and length, and its numbers if they are few."""

    format: str
    size: int
    numbers: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.size} values ({self.format})"


_FEW = 4096


def _shown(words: object) -> str:
    """Return a text of a file, safe for a terminal."""
    return "".join(c if c.isprintable() else "?" for c in str(words)[:100])


class _Reader:
    """Read a header from its beginning, never beyond the file's end. Raises ModelUnreadable."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path, self._data, self._at = path, data, 0

    def wrong(self, field: str, value: object, wanted: str) -> ModelUnreadable:
        return ModelUnreadable(
            f"{self._path} says that {_shown(field)} is {_shown(value)}, which should be "
            f"{wanted}: it is damaged; download it again"
        )

    def bytes(self, size: int) -> bytes:
        self._need(size)
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self, form: str) -> Any:
        return struct.unpack("<" + form, self.bytes(struct.calcsize("<" + form)))[0]

    def entries(self, count: int) -> Iterator[tuple[str, Any]]:
        seen = set()
        for _ in range(count):
            size = self.number("Q")
            if not 1 <= size <= _LONGEST_KEY:
                raise self.wrong("the length of a key", size, f"1 to {_LONGEST_KEY}")
            key = self.bytes(size).decode("utf-8", "replace")
            if key in seen:
                raise self.wrong("a key", key, "there once")
            seen.add(key)
            yield key, self._value(key)

    def _value(self, key: str) -> Any:
        kind = self.number("I")
        if kind == _ARRAY:
            return self._array(key)
        if kind == _STRING:
            return self.bytes(self.number("Q")).decode("utf-8", "replace")
        return self.number(self._format(key, kind))

    def _array(self, key: str) -> _Array:
        kind, size = self.number("I"), self.number("Q")
        if kind == _STRING:
            self._need(8 * size)
            self._skip_texts(size)
            return _Array("s", size, ())
        form = self._format(key, kind)
        num_bytes = size * struct.calcsize("<" + form)
        self._need(num_bytes)
        if size > _FEW:
            self._at += num_bytes
            return _Array(form, size, ())
        return _Array(form, size, struct.unpack(f"<{size}{form}", self.bytes(num_bytes)))

    def _skip_texts(self, count: int) -> None:
        data, at, end, length = self._data, self._at, len(self._data), struct.Struct("<Q")
        for _ in range(count):
            if at + 8 > end:
                break
            at += 8 + length.unpack_from(data, at)[0]
        self._at = min(at, end + 1)
        self._need(0)

    def _format(self, key: str, kind: int) -> str:
        if kind not in _FORMATS:
            raise self.wrong(f"the type of {key}", kind, "one of GGUF's")
        return _FORMATS[kind]

    def _need(self, size: int) -> None:
        if size > len(self._data) - self._at:
            raise ModelUnreadable(
                f"{self._path} ends within its header: it is truncated or damaged; "
                "download it again"
            )

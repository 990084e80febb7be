"""Read a model's kind, size and vocabulary from its files, without loading it."""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from duodec.core.traits import ENCODERS
from duodec.errors import ModelUnreadable
from duodec.models.contents import check_gguf

_STRING, _ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
_TOKENS = "tokenizer.ggml.tokens"
# This gives bytes for a number of weights, by the number of ggml's format.
_BLOCKS = {0: (4, 1), 1: (2, 1), 2: (18, 32), 3: (20, 32), 6: (22, 32), 7: (24, 32), 8: (34, 32),
           10: (84, 256), 11: (110, 256), 12: (144, 256), 13: (176, 256), 14: (210, 256),
           30: (2, 1), 39: (17, 32)}  # fmt: skip
# These are llama.cpp's names of kinds of files, by number.
_FILE_TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1",
               10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S",
               15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS",
               20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S",
               25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
               30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 38: "MXFP4"}  # fmt: skip
_ALIKE = 0.99  # share of equal tokens in two vocabularies
_PADDING = 512
_RANK = 4  # llama_pooling_type
Use = Literal["completion", "embedding", "rerank"]


@dataclass(frozen=True)
class ModelMetadata:
    """Describe a model. ``num_params`` is 0 if it is unknown."""

    architecture: str
    name: str
    num_params: int
    num_bytes: int
    tokens: tuple[bytes, ...]  # entries of the vocabulary, by number
    is_recurrent: bool = False
    quantisation: str = ""  # llama.cpp's name, or the format of a folder's weights
    num_context: int = 0  # tokens of a text that it was trained for; 0 if the file does not say
    pooling: int = 0  # llama.cpp's number; not 0: it makes embeddings (4: ranks), and no text

    @property
    def use(self) -> Use:
        """Return what the model is for."""
        if self.pooling == _RANK:
            return "rerank"
        return "embedding" if self.pooling or self.architecture in ENCODERS else "completion"

    @classmethod
    def of(cls, path: Path) -> ModelMetadata:
        """Read a GGUF file or a folder. Raises ModelUnreadable for a damaged or truncated file."""
        return _of_folder(path) if path.is_dir() else _of_file(check_gguf(path))

    def has_vocabulary_of(self, other: ModelMetadata) -> bool:
        """Return whether both number the same tokens, except a few, and padding."""
        size = min(len(self.tokens), len(other.tokens))
        if not size or abs(len(self.tokens) - len(other.tokens)) > _PADDING:
            return False
        pairs = zip(self.tokens, other.tokens, strict=False)
        return sum(ours == theirs for ours, theirs in pairs) >= _ALIKE * size


def _of_folder(path: Path) -> ModelMetadata:
    """Read a folder with config.json, safetensors and tokenizer.json."""
    try:
        config = json.loads((path / "config.json").read_text("utf-8"))
        spelled = json.loads((path / "tokenizer.json").read_text("utf-8"))
        known = spelled["model"]["vocab"]
        numbered = known.items() if isinstance(known, dict) else ((t[0], i) for i, t in
                                                                  enumerate(known))  # fmt: skip
        by_number = {number: text for text, number in numbered}
        by_number |= {one["id"]: one["content"] for one in spelled.get("added_tokens", ())}
        num_bytes = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelUnreadable(
            f"{path} has no config.json and tokenizer.json that can be read; fetch them again"
        ) from error
    tokens = tuple(
        by_number.get(i, f"[PAD{i}]").encode() for i in range(max(by_number, default=-1) + 1)
    )
    kind = str(config.get("model_type", "unknown"))
    format_ = str(config.get("dtype") or config.get("torch_dtype") or "")
    num_context = int(config.get("max_position_embeddings") or 0)
    return ModelMetadata(
        kind, path.name, num_bytes // 2, num_bytes, tokens, quantisation=format_,
        num_context=num_context,
    )  # fmt: skip


def _of_file(path: Path) -> ModelMetadata:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).summary(path)
    except (OSError, ValueError, struct.error, KeyError) as error:
        raise ModelUnreadable(f"{path} is truncated or damaged; download it again") from error


class _Reader:
    """Read a GGUF file from its beginning. Raises ValueError and struct.error beyond its end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at = data, 4

    def summary(self, path: Path) -> ModelMetadata:
        version, num_tensors, num_entries = self._unpack("IQQ")
        if version not in (2, 3) or num_entries > 1 << 16 or num_tensors > 1 << 20:
            raise ValueError("no header")
        entries = {self._text().decode("utf-8", "replace"): self._value() for _ in
                   range(num_entries)}  # fmt: skip
        num_params, end = self._tensors(num_tensors, entries)
        is_part = int(entries.get("split.count", 1)) > 1
        if end > len(self._data) and not is_part:
            raise ValueError("weights are missing")
        architecture = _words(entries.get("general.architecture", b"unknown"))
        name = _words(entries.get("general.name", b"")) or path.stem
        tokens = entries.get(_TOKENS)
        keys = (f"{architecture}.ssm.state_size", f"{architecture}.wkv.head_size")
        return ModelMetadata(
            architecture,
            name,
            num_params,
            len(self._data),
            tuple(tokens) if isinstance(tokens, list) else (),
            any(key in entries for key in keys),
            _FILE_TYPES.get(entries.get("general.file_type", -1), ""),
            int(entries.get(f"{architecture}.context_length") or 0),
            int(entries.get(f"{architecture}.pooling_type") or 0),
        )

    def _tensors(self, count: int, entries: dict[str, Any]) -> tuple[int, int]:
        """Return the number of weights, and where the last one ends."""
        num_params, ends = 0, [0]
        for _ in range(count):
            self._text()
            (num_dims,) = self._unpack("I")
            if num_dims > 8:
                raise ValueError("no tensor")
            dims = self._unpack(f"{num_dims}Q")
            kind, offset = self._unpack("IQ")
            size = math.prod(dims)
            num_params += size
            num_bytes, block = _BLOCKS.get(kind, (0, 1))
            ends.append(offset + size // block * num_bytes)
        alignment = int(entries.get("general.alignment", 32))
        return num_params, -(-self._at // alignment) * alignment + max(ends)

    def _unpack(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(f"<{form}")
        return found

    def _text(self) -> bytes:
        (size,) = self._unpack("Q")
        if size > len(self._data) - self._at:
            raise ValueError("a text beyond the end")
        self._at += size
        return self._data[self._at - size : self._at]

    def _value(self) -> Any:
        (kind,) = self._unpack("I")
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            return self._unpack(_NUMBERS[kind])[0]
        kind, count = self._unpack("IQ")
        if kind == _STRING:
            return list(self._texts(count))
        size = count * struct.calcsize(f"<{_NUMBERS[kind]}")
        if size > len(self._data) - self._at:
            raise ValueError("an array beyond the end")
        self._at += size
        return None

    def _texts(self, count: int) -> Iterator[bytes]:
        for _ in range(count):
            yield self._text()


def _words(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else "unknown"

"""GGUF files that say what they are, and hold no weights worth the name."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

_TEXT, _ARRAY, _U32, _F16 = 8, 9, 4, 1


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def write_model(
    path: Path,
    *,
    tokens: Sequence[str],
    num_params: int,
    architecture: str = "llama",
    name: str = "",
    more: Sequence[str] = (),
) -> Path:
    """A file of one tensor; ``more`` are keys of numbers."""
    entries = [
        (_text("general.architecture") + struct.pack("<I", _TEXT) + _text(architecture)),
        (_text("general.name") + struct.pack("<I", _TEXT) + _text(name)),
        *(_text(key) + struct.pack("<II", _U32, 1) for key in more),
    ]
    if tokens:
        spelled = b"".join(map(_text, tokens))
        head = struct.pack("<IIQ", _ARRAY, _TEXT, len(tokens))
        entries.append(_text("tokenizer.ggml.tokens") + head + spelled)
    tensor = _text("w") + struct.pack("<IQIQ", 1, num_params, _F16, 0)
    data = b"GGUF" + struct.pack("<IQQ", 3, 1, len(entries)) + b"".join(entries) + tensor
    data += bytes(-len(data) % 32) + bytes(2 * num_params)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path

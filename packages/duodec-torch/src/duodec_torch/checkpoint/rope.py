"""Read a GGUF file's rope scaling, which transformers ignores: without it text is worse."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

from duodec.errors import ModelUnreadable
from duodec_torch.library import torch

_FREQS = b"rope_freqs.weight"
_HEAD_BYTES = 64 << 20  # of a file: more than its vocabulary and its list of tensors
_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192  # the same in every Llama 3.1, 3.2 and 3.3
_CLOSE = 1e-3


def add_rope(path: Path, config: Any, scaling: str | None, factor: str | None) -> None:
    """Put a file's rope scaling into ``config``; ``scaling`` and ``factor`` are its metadata.

    Raises ModelUnreadable for a kind that we cannot be sure of.
    """
    known = getattr(config, "rope_parameters", None) or {}
    if known.get("rope_type", "default") != "default":
        return  # transformers read it
    if scaling == "linear" and factor:
        config.rope_parameters = {**known, "rope_type": "linear", "factor": float(factor)}
    elif scaling not in (None, "none"):
        raise ModelUnreadable(
            f"{path} scales its rope ({scaling}), which transformers does not read from a GGUF "
            "file; use `target_backend=llama.cpp`, or the model's safetensors"
        )
    if _has_divisors(path):
        config.rope_parameters = {**known, **_llama3(path, known["rope_theta"])}


def _has_divisors(path: Path) -> bool:
    named = len(_FREQS).to_bytes(8, "little") + _FREQS
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(named, 0, _HEAD_BYTES) >= 0


def _llama3(path: Path, theta: float) -> dict[str, Any]:
    """Llama 3.1's scaling with the divisors in a file. Raises ModelUnreadable for others."""
    import gguf

    (tensor,) = (t for t in gguf.GGUFReader(path).tensors if t.name == _FREQS.decode())
    found = torch.tensor(tensor.data.astype("float32").ravel())
    factor = round(float(found.max()), 3)
    if not torch.allclose(found, divisors(theta, 2 * len(found), factor), rtol=_CLOSE):
        raise ModelUnreadable(
            f"{path} scales its rope by divisors that are not Llama 3.1's; use "
            "`target_backend=llama.cpp`, or the model's safetensors"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": _LOW,
        "high_freq_factor": _HIGH,
        "original_max_position_embeddings": _ORIGINAL,
    }


def divisors(theta: float, head_dim: int, factor: float) -> Any:
    """How much slower each pair of dimensions rotates, as llama.cpp's converter writes it."""
    turns = theta ** (torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    lengths = 2 * torch.pi * turns  # tokens of a full turn
    smooth = (_ORIGINAL / lengths - _LOW) / (_HIGH - _LOW)
    between = 1 / ((1 - smooth) / factor + smooth)
    slow = torch.where(lengths > _ORIGINAL / _LOW, factor, between)
    return torch.where(lengths < _ORIGINAL / _HIGH, 1.0, slow).to(torch.float32)

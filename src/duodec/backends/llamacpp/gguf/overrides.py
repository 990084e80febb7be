"""Place tensors by name: weights that stay in the CPU's memory while a GPU computes the rest.

Patterns, devices and the meaning of `--cpu-moe` are llama.cpp's.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duodec.backends.llamacpp.gguf.header import Header, ggml
from duodec.errors import BadOption

CPU = "CPU"
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"


@dataclass(frozen=True)
class Override:
    """Place tensors whose names match on a device; the first of several that match counts."""

    pattern: str
    device: str
    option: str  # option that asked for it, for errors


def parse(texts: str | Iterable[str]) -> list[Override]:
    """Parse ``PATTERN=DEVICE``s; a text may hold several, separated by commas. Raises BadOption."""
    found = []
    texts = [texts] if isinstance(texts, str) else texts
    for part in (part for text in texts for part in text.split(",")):
        pattern, sign, device = part.rpartition("=")
        if not (sign and pattern and device):
            raise BadOption(f"override_tensor is '{part}'; write PATTERN=DEVICE, as exps=CPU")
        try:
            re.compile(pattern)
        except re.error as error:
            raise BadOption(
                f"override_tensor is '{part}', whose pattern is no regular expression ({error}); "
                "write one, as blk\\.[0-9]\\."
            ) from error
        found.append(Override(pattern, device, "override_tensor"))
    return found


def experts(num_layers: int | None) -> list[Override]:
    """Return overrides that place the experts of the first layers on the CPU; None: of all
    layers."""
    if num_layers is None:
        return [Override(_EXPERTS, CPU, "cpu_moe")]
    return [Override(rf"blk\.{i}{_EXPERTS}", CPU, "n_cpu_moe") for i in range(num_layers)]


def check(overrides: Sequence[Override], path: Path, header: Header) -> None:
    """Raise BadOption for a pattern that matches no tensor of the file. For the first layers'
    experts, one layer that has some is enough."""
    names = list(header.tensors)
    for override in overrides:
        same = [o for o in overrides if o.option == override.option]
        tried = same if override.option == "n_cpu_moe" else [override]
        if any(re.search(o.pattern, name) for o in tried for name in names):
            continue
        if override.option == "override_tensor":
            raise BadOption(
                f"override_tensor names '{override.pattern}', which no tensor of {path.name} "
                f"matches; name some, as {names[-1]}"
            )
        raise BadOption(
            f"{override.option} keeps experts on the CPU, and {path.name} has none "
            f"({header.architecture}); leave it out, or use `gpu_layers`"
        )


def device_of(overrides: Sequence[Override], name: str) -> str | None:
    """Return the device that a tensor was placed on; None for its layer's."""
    return next((o.device for o in overrides if re.search(o.pattern, name)), None)


class _Entry(ctypes.Structure):
    """Mirror llama_model_tensor_buft_override."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


def as_array(lib: Any, overrides: Sequence[Override]) -> Any:
    """Return the overrides for llama_model_params; the array must outlive the loading. Raises
    BadOption for a device that does not exist."""
    devices = _buffer_types(lib)
    entries = (_Entry * (len(overrides) + 1))()  # the last one stays empty: it ends the list
    for entry, override in zip(entries, overrides, strict=False):
        if override.device not in devices:
            raise BadOption(
                f"{override.option} names the device '{override.device}'; choose from: "
                f"{', '.join(devices)}"
            )
        entry.pattern, entry.buft = override.pattern.encode(), devices[override.device]
    return entries


def _buffer_types(lib: Any) -> dict[str, int]:
    """Return kinds of memory by llama.cpp's names."""
    count = ggml(lib, "ggml_backend_dev_count", ctypes.c_size_t)
    device = ggml(lib, "ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    kind = ggml(lib, "ggml_backend_dev_buffer_type", ctypes.c_void_p, ctypes.c_void_p)
    name = ggml(lib, "ggml_backend_buft_name", ctypes.c_char_p, ctypes.c_void_p)
    cpu = ggml(lib, "ggml_backend_cpu_buffer_type", ctypes.c_void_p)
    kinds = [found for i in range(count()) if (found := kind(device(i)))]
    return {CPU: cpu()} | {name(found).decode(): found for found in kinds}

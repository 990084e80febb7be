"""Choose where a model may be placed and in which number format, before it is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import psutil

from duodec.errors import BackendUnavailable, BadOption
from duodec_torch.library import torch

_CUDA = re.compile(r"cuda(:(0|[1-9]\d*))?")


@dataclass(frozen=True)
class DevicePlacement:
    """The devices of a model and the type of its numbers."""

    devices: tuple[str, ...]  # ("cpu",), or ("cuda:0", "cuda:1"): the first layers on the first
    dtype: Any  # of torch

    @property
    def is_on_cpu(self) -> bool:
        return self.devices == ("cpu",)

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def free_bytes(self) -> tuple[int, ...]:
        """The memory that is free now on each device."""
        if self.is_on_cpu:
            return (int(psutil.virtual_memory().available),)
        torch.cuda.empty_cache()  # memory that torch keeps for later is free too
        return tuple(int(torch.cuda.mem_get_info(device)[0]) for device in self.devices)

    @property
    def words(self) -> str:
        """For people: `cuda:0 (NVIDIA H200)`."""
        if self.is_on_cpu:
            return "the CPU"
        return " and ".join(f"{d} ({torch.cuda.get_device_name(d)})" for d in self.devices)


def choose_places(device: str, dtype: str, own_dtype: Any) -> list[DevicePlacement]:
    """The places that the options allow, in the order to try them: one GPU before several.
    ``own_dtype`` is the files' own, None if they are quantised.

    Raises BadOption, and BackendUnavailable if there is no such device.
    """
    allowed = _devices(device)
    return [DevicePlacement(devices, _dtype(devices[0], dtype, own_dtype)) for devices in allowed]


def _dtype(device: str, dtype: str, own_dtype: Any) -> Any:
    if dtype != "auto":
        return getattr(torch, dtype)
    if device == "cpu":
        return own_dtype or torch.float32
    has_bf16 = torch.cuda.get_device_capability(device) >= (8, 0)  # older ones emulate it, slowly
    return torch.bfloat16 if has_bf16 else torch.float16


def _devices(device: str) -> list[tuple[str, ...]]:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return [("cpu",)]
    names = device.split(",")
    wanted = [_CUDA.fullmatch(name) for name in names]
    if not all(wanted) or (len(names) > 1 and "cuda" in names):
        raise BadOption(
            f"unknown device '{device}'; use auto, cpu, cuda, cuda:1, or several as cuda:0,cuda:1"
        )
    if len(set(names)) < len(names):
        raise BadOption(f"device is {device}, which names a GPU twice; name each once")
    if not torch.cuda.is_available():
        why = (
            f"torch {torch.__version__} was built without CUDA"
            if torch.version.cuda is None
            else f"torch {torch.__version__} finds no GPU, or no suitable driver"
        )
        raise BackendUnavailable(f"no device {device}: {why}; fix that, or use `device=cpu`")
    there = tuple(f"cuda:{number}" for number in range(torch.cuda.device_count()))
    if device == "cuda":
        alone = [(name,) for name in there]
        return alone + [there[:count] for count in range(2, len(there) + 1)]
    for name in names:
        if name not in there:
            raise BackendUnavailable(
                f"no device {name}: this machine shows {len(there)}; use `device=cuda:0`"
            )
    return [tuple(names)]


def gpu_words() -> str | None:
    """The GPUs that torch can use, for people; None when there is none."""
    if not torch.cuda.is_available():
        return None
    devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    found = []
    for device in devices:
        free, total = torch.cuda.mem_get_info(device)
        name = torch.cuda.get_device_name(device)
        found.append(f"{device} {name}, {size_words(free)} of {size_words(total)} free")
    return f"CUDA {torch.version.cuda}: {'; '.join(found)}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch ran out of memory, on a GPU or on the machine."""
    words = str(error)
    return isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError)
        and ("not enough memory" in words or "out of memory" in words)
    )


def size_words(num_bytes: int) -> str:
    """Bytes, for people."""
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"

"""Where a model's weights go and in which number format, decided before any of them is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import psutil

from duodec.backends.torch.library import torch
from duodec.errors import BackendUnavailable, BadOption, ModelUnreadable

_CUDA = re.compile(r"cuda(:(?P<number>\d+))?")
_LOWEST_CONTEXT, _STEP = 512, 256  # tokens


@dataclass(frozen=True)
class Place:
    """A model's device and the type of its numbers."""

    device: str  # "cpu" or "cuda:0"
    dtype: Any  # of torch

    @property
    def is_on_cpu(self) -> bool:
        return self.device == "cpu"

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def free_bytes(self) -> int:
        """Memory that is free now."""
        if self.is_on_cpu:
            return int(psutil.virtual_memory().available)
        return int(torch.cuda.mem_get_info(self.device)[0])

    @property
    def words(self) -> str:
        """For people: `cuda:0 (NVIDIA H200)`."""
        if self.is_on_cpu:
            return "the CPU"
        return f"{self.device} ({torch.cuda.get_device_name(self.device)})"


def choose_place(device: str, dtype: str, own_dtype: Any) -> Place:
    """The place asked for; ``own_dtype`` is the files', None where they are quantised.

    Raises BadOption, and BackendUnavailable where no such device is there.
    """
    found = _device(device)
    if dtype != "auto":
        return Place(found, getattr(torch, dtype))
    if found == "cpu":
        return Place(found, own_dtype or torch.float32)
    has_bf16 = torch.cuda.get_device_capability(found) >= (8, 0)  # older ones emulate it, slowly
    return Place(found, torch.bfloat16 if has_bf16 else torch.float16)


def _device(device: str) -> str:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return device
    wanted = _CUDA.fullmatch(device)
    if wanted is None:
        raise BadOption(f"unknown device '{device}'; use auto, cpu, cuda or cuda:1")
    if not torch.cuda.is_available():
        why = (
            f"torch {torch.__version__} was built without CUDA"
            if torch.version.cuda is None
            else f"torch {torch.__version__} finds no GPU, or no driver that suits it"
        )
        raise BackendUnavailable(f"no device {device}: {why}; mend that, or use --device cpu")
    number, num_devices = int(wanted["number"] or 0), torch.cuda.device_count()
    if number >= num_devices:
        raise BackendUnavailable(
            f"no device {device}: this machine shows {num_devices}; use --device cuda:0"
        )
    return f"cuda:{number}"


@dataclass(frozen=True)
class Need:
    """What a model takes: its numbers, and its cache."""

    name: str
    num_params: int
    cache_bytes_per_token: int
    num_context: int

    def num_bytes(self, place: Place) -> int:
        return self._weights(place.dtype) + self.num_context * self.cache_bytes_per_token

    def check(self, place: Place) -> None:
        """Raises ModelUnreadable where this cannot fit, with what would."""
        if self.num_bytes(place) > place.free_bytes:
            raise ModelUnreadable(self.complaint(place))

    def complaint(self, place: Place) -> str:
        """One line on what is needed, what there is, and what would fit."""
        cache = self.num_context * self.cache_bytes_per_token
        return (
            f"{self.name} needs {_size(self._weights(place.dtype))} for its weights in "
            f"{place.dtype_name} and {_size(cache)} for {self.num_context} tokens of context, and "
            f"{place.words} has {_size(place.free_bytes)} free; {self._remedy(place)}"
        )

    def _weights(self, dtype: Any) -> int:
        return int(self.num_params * dtype.itemsize)

    def _remedy(self, place: Place) -> str:
        free = place.free_bytes
        left = free - self._weights(place.dtype)
        num_context = left // max(1, self.cache_bytes_per_token) // _STEP * _STEP
        if _LOWEST_CONTEXT <= num_context < self.num_context:
            return f"use --context {num_context} or less"
        half = self._weights(torch.bfloat16)
        if half < self._weights(place.dtype) and half < free:
            return "use --dtype bfloat16"
        return (
            "take a smaller model, or a quantised GGUF file of it with --target-backend llama.cpp"
        )


def gpu_words() -> str | None:
    """The GPUs that torch can use, for people; None when there is none."""
    if not torch.cuda.is_available():
        return None
    devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    found = []
    for device in devices:
        free, total = torch.cuda.mem_get_info(device)
        name = torch.cuda.get_device_name(device)
        found.append(f"{device} {name}, {_size(free)} of {_size(total)} free")
    return f"CUDA {torch.version.cuda}: {'; '.join(found)}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether torch failed for want of memory, of a GPU or of the machine."""
    words = str(error)
    return isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError)
        and ("not enough memory" in words or "out of memory" in words)
    )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"

"""List the devices that this build of llama.cpp can compute on, and find one by its name."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from duodec.backends.llamacpp.gguf.header import ggml
from duodec.errors import BackendUnavailable, BadOption

_INTEGRATED = 2  # ggml_backend_dev_type
_GPUS = (1, _INTEGRATED)
_KINDS = {  # users' names, by llama.cpp's names of devices
    "CUDA": "cuda", "ROCm": "rocm", "HIP": "rocm", "Vulkan": "vulkan", "Metal": "metal",
    "MTL": "metal", "SYCL": "sycl",
}  # fmt: skip
KINDS = tuple(dict.fromkeys(_KINDS.values()))
_NAME = re.compile(rf"(?P<kind>{'|'.join(KINDS)})(:(?P<number>\d+))?$", re.IGNORECASE)


@dataclass(frozen=True)
class Device:
    """Describe a GPU, or a software device."""

    name: str  # llama.cpp's name, such as Vulkan0
    description: str  # the vendor's description
    is_integrated: bool = False  # its memory is the machine's

    @property
    def kind(self) -> str:
        """Return the kind as `--device` names it, without a number."""
        own = self.name.rstrip("0123456789")
        return _KINDS.get(own, own.lower())


def every(lib: Any) -> list[Device]:
    """Return all devices of this build, in llama.cpp's order; none for a build without a GPU. Their
    memory is not queried, since that would make a context on them."""
    return [_describe(lib, pointer) for pointer in _pointers(lib)]


def find(lib: Any, wanted: str) -> list[Device]:
    """Return the devices that ``wanted`` names: all of a kind (``vulkan``), or one (``vulkan:1``,
    or in llama.cpp's spelling ``Vulkan1``). Raises BackendUnavailable and BadOption."""
    found = every(lib)
    names = ", ".join(device.name for device in found)
    if same := [device for device in found if device.name.lower() == wanted.lower()]:
        return same
    match = _NAME.match(wanted)
    if not match:
        raise BadOption(
            f"unknown device '{wanted}'; use auto, cpu"
            + (f", or one of: {names}" if found else f", {', '.join(KINDS)}")
        )
    kind, number = match["kind"].lower(), match["number"]
    of_kind = [device for device in found if device.kind == kind]
    if not of_kind:
        has = f"has {names}" if found else "was built without a GPU"
        raise BackendUnavailable(
            f"no device {wanted}: this llama.cpp {has}; build one with `duodec setup --gpu {kind}`"
            + (f", or choose from: {names}" if found else "")
        )
    if number is None:
        return of_kind
    if int(number) >= len(of_kind):
        raise BadOption(
            f"device is {wanted}, and there are {len(of_kind)} of {kind}; choose from: "
            f"{', '.join(device.name for device in of_kind)}"
        )
    return [of_kind[int(number)]]


def as_array(lib: Any, chosen: Sequence[Device]) -> Any:
    """Return the devices for llama_model_params, ended by an empty one; the array must outlive the
    loading."""
    names = {device.name for device in chosen}
    pointers = [p for p in _pointers(lib) if _describe(lib, p).name in names]
    return (ctypes.c_void_p * (len(pointers) + 1))(*pointers, None)


def fewest(lib: Any, chosen: Sequence[Device], num_bytes: int) -> list[Device]:
    """Return as few devices as hold ``num_bytes``, those with the most free memory first: a forward
    pass over several waits for each in turn. ``chosen`` are those to choose from; by default those
    that llama.cpp uses. Return all of them if they do not hold it, or if a driver does not report
    its memory."""
    of_own = [d for d in chosen or every(lib) if not d.is_integrated]
    left = of_own or list(chosen) or every(lib)
    left.sort(key=lambda device: free_bytes(lib, [device]), reverse=True)
    for count in range(1, len(left)):
        if free_bytes(lib, left[:count]) >= num_bytes:
            return left[:count]
    return list(chosen)


def free_bytes(lib: Any, chosen: Sequence[Device] = ()) -> int:
    """Return the free memory of some devices together, or of all, as far as their drivers report
    it."""
    names = {device.name for device in chosen or every(lib)}
    return sum(_free_bytes(lib, p) for p in _pointers(lib) if _describe(lib, p).name in names)


def _pointers(lib: Any) -> list[int]:
    count = ggml(lib, "ggml_backend_dev_count", ctypes.c_size_t)
    device = ggml(lib, "ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    kind = ggml(lib, "ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
    return [pointer for pointer in map(device, range(count())) if kind(pointer) in _GPUS]


def _describe(lib: Any, pointer: int) -> Device:
    name = ggml(lib, "ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
    words = ggml(lib, "ggml_backend_dev_description", ctypes.c_char_p, ctypes.c_void_p)
    kind = ggml(lib, "ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
    return Device(
        name(pointer).decode(),
        words(pointer).decode(),
        kind(pointer) == _INTEGRATED,
    )


def _free_bytes(lib: Any, pointer: int) -> int:
    sizes = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t))
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml(lib, "ggml_backend_dev_memory", None, *sizes)(
        pointer, ctypes.byref(free), ctypes.byref(total)
    )
    return free.value

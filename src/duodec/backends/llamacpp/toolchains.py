"""Find what a build of llama.cpp for a GPU needs, and say what to install where it is missing.

Standard library only, as `native`: `scripts/setup.py` loads this file by its path.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

DRIVERS = {  # what to do where a build of a kind sees no device
    "cuda": "install NVIDIA's driver, and look whether nvidia-smi lists the GPU",
    "rocm": "install AMD's driver, and look whether rocminfo lists the GPU; you may have to be in "
    "the groups render and video",
    "vulkan": "install the GPU's Vulkan driver (apt install mesa-vulkan-drivers for AMD and "
    "Intel), and look whether vulkaninfo --summary lists the GPU",
    "metal": "look whether this Mac has a GPU that Metal supports",
}
GPUS = tuple(DRIVERS)
OWN_HEADERS = "vulkan-headers/usr"  # in duodec's cache, where make setup-vulkan-software put them
WHEELS = "https://abetlen.github.io/llama-cpp-python/whl/cu{}"  # of llama-cpp-python, by CUDA
_OLDEST_WHEELS, _MOST_TRIED = (12, 1), 6
_LEAST_VULKAN = 272  # of 1.3: the first headers with VK_EXT_layer_settings
_CUDA_HOME, _ROCM_HOME = Path("/usr/local/cuda"), Path("/opt/rocm")


class ToolchainMissing(Exception):
    """What is missing for a GPU: one line, with the remedy."""


def cmake_args(gpu: str, *, headers: Path, system_headers: Path = Path("/usr/include")) -> str:
    """The options of a build for a GPU; Vulkan's ``headers`` may lie in a folder of our own, which
    has the layout of /usr. Raises ToolchainMissing."""
    if gpu == "cuda":
        return _cuda()
    if gpu == "rocm":
        return _rocm()
    if gpu == "metal":
        return _metal()
    if gpu == "vulkan":
        return _vulkan(headers, system_headers)
    raise ToolchainMissing(f"gpu is {gpu}; use one of: {', '.join(GPUS)}")


def has_nvcc(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether CUDA's compiler is where CMake will look."""
    named = any(environment.get(name) for name in ("CUDACXX", "CUDA_PATH"))
    return bool(shutil.which("nvcc") or named or (_CUDA_HOME / "bin" / "nvcc").exists())


def cuda_wheels() -> list[str]:
    """The indices of llama-cpp-python that may have a wheel for the driver's CUDA, newest first;
    none without a driver."""
    program = shutil.which("nvidia-smi")
    if not program:
        return []
    try:
        told = subprocess.run(
            [program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30,
            check=False,
        ).stdout.decode(errors="replace")  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    match = re.search(r"CUDA Version: (\d+)\.(\d+)", told)
    if not match:
        return []
    major, minor = int(match[1]), int(match[2])
    versions = [(major, m) for m in range(minor, -1, -1)]
    versions = [version for version in versions if version >= _OLDEST_WHEELS][:_MOST_TRIED]
    return [WHEELS.format(f"{a}{b}") for a, b in versions]


def vulkan_header_version(include: Path) -> tuple[int, int] | None:
    """Minor and patch of the headers in a folder; None where there are none."""
    try:
        words = (include / "vulkan" / "vulkan_core.h").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    patch = re.search(r"#define VK_HEADER_VERSION (\d+)", words)
    whole = re.search(r"VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION\(0, 1, (\d+)", words)
    return (int(whole[1]), int(patch[1])) if patch and whole else None


def is_new_enough(version: tuple[int, int] | None) -> bool:
    """Whether Vulkan headers have what llama.cpp uses."""
    return version is not None and version >= (3, _LEAST_VULKAN)


def _cuda() -> str:
    if not has_nvcc():
        raise ToolchainMissing(
            "no CUDA compiler (nvcc) found; install the CUDA toolkit (apt install "
            "nvidia-cuda-toolkit on Debian and Ubuntu) and put its bin folder on PATH"
        )
    return "-DGGML_CUDA=on"


def _rocm() -> str:
    if not (shutil.which("hipcc") or (_ROCM_HOME / "bin" / "hipcc").exists()):
        raise ToolchainMissing(
            "no HIP compiler (hipcc) found; install ROCm with its development packages "
            "(apt install hipcc rocm-dev, from AMD's repository) and put its bin folder on PATH"
        )
    return "-DGGML_HIP=on"


def _metal() -> str:
    if platform.system() != "Darwin":
        raise ToolchainMissing("gpu is metal, which macOS has; use cuda, rocm or vulkan here")
    return "-DGGML_METAL=on"


def _vulkan(headers: Path, system_headers: Path) -> str:
    if not shutil.which("glslc"):
        raise ToolchainMissing(
            "no compiler of Vulkan shaders (glslc) found; install it: apt install glslc "
            "libvulkan-dev spirv-headers (Debian, Ubuntu), dnf install glslc vulkan-loader-devel "
            "spirv-headers-devel (Fedora), or the Vulkan SDK"
        )
    own = headers / "include"
    if is_new_enough(vulkan_header_version(own)):
        cmake = headers / "share" / "cmake" / "SPIRV-Headers"
        return f"-DGGML_VULKAN=ON -DVulkan_INCLUDE_DIR={own} -DSPIRV-Headers_DIR={cmake}"
    sdk = os.environ.get("VULKAN_SDK")
    places = [Path(sdk) / "include"] if sdk else [system_headers, Path("/usr/local/include")]
    found = [version for place in places if (version := vulkan_header_version(place))]
    if not any(is_new_enough(version) for version in found):
        has = f"those of 1.{found[0][0]}.{found[0][1]} are too old" if found else "there are none"
        raise ToolchainMissing(
            f"llama.cpp needs Vulkan's headers of 1.3.{_LEAST_VULKAN} or later, and {has}; install "
            "libvulkan-dev and spirv-headers of Debian 13 or Ubuntu 24.10 or later, set VULKAN_SDK "
            "to an SDK, or run make setup-vulkan-software, which unpacks newer ones beside"
        )
    return "-DGGML_VULKAN=ON"

"""Find what a build of llama.cpp for a GPU needs, and name what to install if it is missing.

It uses only the standard library, as `native`: `scripts/setup.py` loads this file by its path.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
from pathlib import Path

DRIVERS = {  # remedies for a kind of build that sees no device
    "cuda": "install NVIDIA's driver, and look whether nvidia-smi lists the GPU",
    "rocm": "install AMD's driver, and look whether rocminfo lists the GPU; you may have to be in "
    "the groups render and video",
    "vulkan": "install the GPU's Vulkan driver (apt install mesa-vulkan-drivers for AMD and "
    "Intel), and look whether vulkaninfo --summary lists the GPU",
    "metal": "look whether this Mac has a GPU that Metal supports",
}
GPUS = tuple(DRIVERS)
OWN_HEADERS = "vulkan-headers/usr"  # in duodec's cache; make setup-vulkan-software puts them there
# Wheels of llama-cpp-python, by CUDA.
WHEELS = "https://abetlen.github.io/llama-cpp-python/whl/cu{}"
_OLDEST_WHEELS, _MOST_TRIED = (12, 1), 6
PACKAGED_NVCC = "nvidia/*/bin/nvcc"
_PACKAGED = 13  # the CUDA whose compiler NVIDIA's packages contain completely
_LEAST_VULKAN = 272  # for 1.3: the first headers with VK_EXT_layer_settings
_CUDA_HOMES, _ROCM_HOME = Path("/usr/local"), Path("/opt/rocm")
_SYSTEM = Path("/usr")  # Debian's CUDA toolkit lies there
_COMPILER = ("nvvm", "cuda-crt", "cuda-cccl", "cuda-runtime", "cuda-nvcc")  # all of one release
_INCLUDES = ("include", "targets/*/include")
_LIBRARIES = ("lib64", "lib", "lib/*-linux-gnu", "targets/*/lib")
_STUBS = tuple(f"{place}/stubs" for place in _LIBRARIES)
_NAMED_CARDS = "86: RTX 30, 89: RTX 40, 90: H100 and H200, 120: RTX 50"
_PLACES_OF_CUDA = ("CUDAToolkit_ROOT", "CMAKE_PREFIX_PATH", "CMAKE_LIBRARY_PATH", "CUDA_cublas")


class ToolchainMissing(Exception):
    """Raised for what is missing for a GPU: one line, with the remedy."""


def cmake_args(
    gpu: str, told: str = "", *, headers: Path, system_headers: Path = Path("/usr/include")
) -> str:
    """Return the options of a build for a GPU, in addition to those of the user (``told``).
    Vulkan's ``headers`` may lie in a folder of our own, which has the layout of /usr. Raises
    ToolchainMissing."""
    if gpu == "cuda":
        return _cuda(told)
    if gpu == "rocm":
        return _rocm()
    if gpu == "metal":
        return _metal()
    if gpu == "vulkan":
        return _vulkan(headers, system_headers)
    raise ToolchainMissing(f"gpu is {gpu}; use one of: {', '.join(GPUS)}")


# --- NVIDIA's compiler, driver and cards


def find_nvcc() -> Path | None:
    """Return CUDA's compiler: the environment's, that on PATH, or the newest at its usual places;
    None if there is none."""
    if named := shutil.which(os.environ.get("CUDACXX", "")) or shutil.which("nvcc"):
        return Path(named)
    homes = [Path(os.environ[name]) for name in ("CUDA_PATH", "CUDA_HOME") if name in os.environ]
    homes += [_CUDA_HOMES / "cuda", *sorted(_CUDA_HOMES.glob("cuda-*"), key=_number, reverse=True)]
    return next((nvcc for home in homes if (nvcc := home / "bin" / "nvcc").exists()), None)


def is_for_cuda(cmake_args: str) -> bool:
    """Return whether these options build for NVIDIA's GPUs."""
    return "-dggml_cuda=on" in cmake_args.lower()


def architectures() -> list[str]:
    """Return the architectures of NVIDIA's cards in this machine, as CMake names them; none if
    their driver does not report them."""
    told = _output("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    return sorted({f"{a}{b}" for a, b in re.findall(r"^\s*(\d+)\.(\d+)\s*$", told, re.MULTILINE)})


def driver() -> tuple[str, tuple[int, int]] | None:
    """Return NVIDIA's driver and the newest CUDA that it runs; None without a driver."""
    told = _output("nvidia-smi")
    number = re.search(r"Driver Version: ([\d.]+)", told)
    cuda = re.search(r"CUDA(?: UMD)? Version: (\d+)\.(\d+)", told)
    return (number[1] if number else "?", (int(cuda[1]), int(cuda[2]))) if cuda else None


def old_driver(num_parts: int = 1) -> str:
    """Return what to do if the driver is older than the compiler, comparing ``num_parts`` of their
    versions; an empty text if it is not. A program of CUDA 12.9 runs on any driver for CUDA 12."""
    nvcc, found = find_nvcc(), driver()
    built = re.search(r"release (\d+)\.(\d+)", _output(str(nvcc), "--version")) if nvcc else None
    if not built or not found:
        return ""
    (number, runs), made = found, (int(built[1]), int(built[2]))
    if runs[:num_parts] >= made[:num_parts]:
        return ""
    return (
        f"the driver {number} runs CUDA {runs[0]}.{runs[1]} and {nvcc} is of CUDA {made[0]}."
        f"{made[1]}; update NVIDIA's driver, or name the nvcc of an older toolkit in CUDACXX"
    )


def remedy(gpu: str) -> str:
    """Return what to do if a build for a GPU sees no device."""
    return (gpu == "cuda" and old_driver(2)) or DRIVERS[gpu]


def cuda_wheels() -> list[str]:
    """Return the indices of llama-cpp-python that may have a wheel for the driver's CUDA, newest
    first; none without a driver."""
    if (found := driver()) is None:
        return []
    major, minor = found[1]
    versions = [(major, m) for m in range(minor, -1, -1)]
    versions = [version for version in versions if version >= _OLDEST_WHEELS][:_MOST_TRIED]
    return [WHEELS.format(f"{a}{b}") for a, b in versions]


def packaged_toolkit() -> list[str]:
    """Return the packages, as pip takes them, with a CUDA compiler whose programs the driver runs.
    Without a driver, return those of the oldest; with a driver older than all of them, none."""
    found = driver()
    major, minor = found[1] if found else (_PACKAGED, 0)
    if major < _PACKAGED:
        return []
    below = f"{_PACKAGED}.{minor + 1}" if major == _PACKAGED else str(_PACKAGED + 1)
    compiler = [f"nvidia-{name}>={_PACKAGED},<{below}" for name in _COMPILER]
    return [f"nvidia-cublas>={_PACKAGED},<{_PACKAGED + 1}", *compiler]


def can_build_cuda(told: str) -> bool:
    """Return whether a build needs only a compiler: the user names none, and the cards are
    known."""
    knows_cards = "CMAKE_CUDA_ARCHITECTURES" in told or "CUDAARCHS" in os.environ
    return "CMAKE_CUDA_COMPILER" not in told and (knows_cards or bool(architectures()))


def complete_toolkit(folder: Path) -> None:
    """Give the libraries of `packaged_toolkit`, installed in a folder, the names that a linker
    looks for, and their folder the name in which `nvcc` looks."""
    for home in folder.glob("nvidia/*/lib"):
        if not home.with_name("lib64").exists():
            home.with_name("lib64").symlink_to(home.name)
    for library in sorted(folder.glob("nvidia/*/lib/lib*.so.*")):
        name = library.with_name(f"{library.name.partition('.so')[0]}.so")
        if not name.is_symlink() and not name.exists():
            name.symlink_to(library.name)


def packaged_nvcc(folder: Path) -> Path | None:
    """Return the compiler in a folder of packages."""
    return next(folder.glob(PACKAGED_NVCC), None)


def _cuda(told: str) -> str:
    if (nvcc := find_nvcc()) is None:
        raise ToolchainMissing(
            "no CUDA compiler (nvcc) found; install the CUDA toolkit (apt install "
            "nvidia-cuda-toolkit on Debian and Ubuntu), or name its nvcc in CUDACXX"
        )
    if words := old_driver():
        raise ToolchainMissing(words)
    options, home = ["-DGGML_CUDA=on"], nvcc.resolve().parent.parent
    is_elsewhere = any(name in told for name in _PLACES_OF_CUDA)  # its libraries
    # CMake looks for a compiler only on PATH and in the environment. It looks for its libraries
    # also at /usr/local/cuda, where those of another toolkit may lie.
    if "CMAKE_CUDA_COMPILER" not in told and shutil.which("nvcc") != str(nvcc):
        options.append(shlex.quote(f"-DCMAKE_CUDA_COMPILER={nvcc}"))
        if not is_elsewhere:
            options.append(shlex.quote(f"-DCUDAToolkit_ROOT={home}"))
    places = [f"{place}/libcuda.so" for place in (*_STUBS, *_LIBRARIES)]
    if "GGML_CUDA_NO_VMM" not in told and not is_elsewhere and not _is_below(home, *places):
        options.append("-DGGML_CUDA_NO_VMM=ON")  # otherwise the driver's library is linked to
    if "CMAKE_CUDA_ARCHITECTURES" not in told and "CUDAARCHS" not in os.environ:
        options.append(f"-DCMAKE_CUDA_ARCHITECTURES={_architectures_for(nvcc)}")
    if not is_elsewhere:
        _check_cublas(home)
    return " ".join(options)


def _architectures_for(nvcc: Path) -> str:
    found = architectures()
    if not found:
        raise ToolchainMissing(
            "no NVIDIA GPU is seen here (nvidia-smi lists none), so name the architecture to build "
            f"for: CMAKE_ARGS=-DCMAKE_CUDA_ARCHITECTURES=89 ({_NAMED_CARDS})"
        )
    known = re.findall(r"compute_(\d+)", _output(str(nvcc), "--list-gpu-arch"))
    if known and (new := [number for number in found if number not in known]):
        raise ToolchainMissing(
            f"{nvcc} does not know this GPU's architecture {new[0]}, only {known[0]} to "
            f"{known[-1]}; install a CUDA toolkit that does, and name its nvcc in CUDACXX"
        )
    return ";".join(found)


def _check_cublas(home: Path) -> None:
    """Raise ToolchainMissing if its header or its library is missing."""
    for name, places in (("cublas_v2.h", _INCLUDES), ("libcublas.so", _LIBRARIES)):
        if not _is_below(home, *(f"{place}/{name}" for place in places)):
            raise ToolchainMissing(
                f"cuBLAS is not complete: {name} is not below {home}; install it (apt install "
                "libcublas-dev, or the package libcublas-dev-* of NVIDIA's repository), or name "
                "the toolkit that has it: CMAKE_ARGS=-DCUDAToolkit_ROOT=FOLDER"
            )


def _is_below(home: Path, *patterns: str) -> bool:
    """Return whether a toolkit or the system has one of these files."""
    return any(any(root.glob(pattern)) for root in (home, _SYSTEM) for pattern in patterns)


def _number(path: Path) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", path.name)]


def _output(*command: str) -> str:
    """Return the output of a program; an empty text if it is missing or fails."""
    if not shutil.which(command[0]):
        return ""
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout.decode(errors="replace")


# --- Vulkan's headers


def vulkan_header_version(include: Path) -> tuple[int, int] | None:
    """Return minor and patch of the headers in a folder; None if there are none."""
    try:
        words = (include / "vulkan" / "vulkan_core.h").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    patch = re.search(r"#define VK_HEADER_VERSION (\d+)", words)
    whole = re.search(r"VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION\(0, 1, (\d+)", words)
    return (int(whole[1]), int(patch[1])) if patch and whole else None


def is_new_enough(version: tuple[int, int] | None) -> bool:
    """Return whether Vulkan headers have what llama.cpp uses."""
    return version is not None and version >= (3, _LEAST_VULKAN)


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

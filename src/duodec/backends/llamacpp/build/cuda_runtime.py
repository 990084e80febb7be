"""Find the CUDA libraries that a build of llama.cpp needs, if NVIDIA's wheels brought them.

The system's loader does not look into site-packages. A library that is loaded here, by its path, is
the one that llama.cpp then finds by its name.
"""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import re
import sys
from pathlib import Path

from duodec.errors import BackendUnavailable

_NEEDED = re.compile(rb"lib(?:cudart|cublas)\.so\.(?:\d+)")
_NAMES_END = 16 << 20  # in bytes: the names of the libraries that a library needs lie within these
_PACKAGES = {"libcudart": "nvidia-cuda-runtime", "libcublas": "nvidia-cublas"}
_FIRST_UNNUMBERED = 13  # from this CUDA on, the packages' names have no number


def needed(library: Path) -> list[str]:
    """Return the CUDA libraries that a library was linked to, such as libcublas.so.12."""
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return sorted({name.decode() for name in _NEEDED.findall(data[:_NAMES_END])})


def packages(names: list[str]) -> list[str]:
    """Return the packages that have these libraries."""
    found = []
    for name in names:
        stem, _, number = name.partition(".so.")
        suffix = "" if int(number) >= _FIRST_UNNUMBERED else f"-cu{number}"
        found.append(_PACKAGES[stem] + suffix)
    return found


def missing(names: list[str]) -> list[str]:
    """Return those that are neither in a wheel nor where the system looks, and load the others."""
    return [name for name in names if not _is_loaded(name)]


def linked() -> list[str]:
    """Return the CUDA libraries that the installed llama.cpp needs; none for a build without
    CUDA."""
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        return []  # the check of the library reports it
    library = next((Path(spec.origin).parent / "lib").glob("libggml-cuda.so*"), None)
    return needed(library) if library else []


def load() -> None:
    """Load the CUDA libraries that the installed llama.cpp needs. Raises BackendUnavailable."""
    if lacks := missing(linked()):
        raise BackendUnavailable(
            f"llama.cpp was built for CUDA and needs {', '.join(lacks)}, which is not found; run: "
            f"pip install {' '.join(packages(lacks))}"
        )


def _is_loaded(name: str) -> bool:
    if name.startswith("libcublas."):
        _is_loaded(name.replace("libcublas", "libcublasLt"))  # libcublas itself needs it
    places = (Path(place).glob(f"nvidia/*/lib/{name}") for place in sys.path)
    for path in (*(str(file) for files in places for file in files), name):
        try:
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return True
    return False

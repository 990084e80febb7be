"""Use the llama.cpp that a wheel of duodec may bring, if none is installed.

It lies in a folder like an installed package, without its CPU backend, which comes in several
variants: a processor gets the first whose instruction sets it has. `scripts/bundle.py` makes the
folder. Only the standard library is used: that script needs `VARIANTS` before anything is
installed.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from duodec.backends.cpu import instruction_sets
from duodec.errors import BackendUnavailable

FOLDER = Path(__file__).parents[1] / "bundled"  # in a wheel that brings it
LIBRARIES = Path("llama_cpp", "lib")
CPU_BACKEND = "libggml-cpu.so.0"  # as the other libraries name it
FORCED = "DUODEC_CPU_VARIANT"  # environment variable with the variant to use
_AVX2 = "-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON"
_SSE42 = "-DGGML_NATIVE=OFF -DGGML_SSE42=ON " + " ".join(
    f"-DGGML_{name}=OFF" for name in ("AVX", "AVX2", "FMA", "F16C", "BMI2")
)
_SETS_OF_AVX2 = ("avx2", "fma", "f16c", "bmi2")
_SETS_OF_AVX512 = ("avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")


@dataclass(frozen=True)
class Variant:
    """Describe a build of the CPU backend: what /proc/cpuinfo must name, and options of CMake."""

    sets: tuple[str, ...]
    cmake_args: str


VARIANTS: Mapping[str, Mapping[str, Variant]] = {
    "x86_64": {
        "avx512": Variant(
            (*_SETS_OF_AVX2, *_SETS_OF_AVX512),
            f"{_AVX2} -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON",
        ),
        "avxvnni": Variant((*_SETS_OF_AVX2, "avx_vnni"), f"{_AVX2} -DGGML_AVX_VNNI=ON"),
        "avx2": Variant(_SETS_OF_AVX2, _AVX2),
        "sse42": Variant(("sse4_2",), _SSE42),  # llama.cpp's own kernels compute
    },
    "aarch64": {
        "dotprod": Variant(
            ("asimddp",), "-DGGML_NATIVE=OFF -DGGML_CPU_ARM_ARCH=armv8.2-a+dotprod+fp16"
        ),
    },
}
"""By architecture and name; the fastest comes first. The last one lies where the others' libraries
look for it, so the wheel also works without us."""


def place_of(name: str, variants: Mapping[str, Variant], folder: Path = FOLDER) -> Path:
    """Return where the CPU backend of a variant lies."""
    own = "" if name == list(variants)[-1] else name
    return folder / LIBRARIES / own / CPU_BACKEND


def variant_for(sets: Collection[str], variants: Mapping[str, Variant]) -> str | None:
    """Return the fastest variant for a processor with these instruction sets."""
    fits = (name for name, one in variants.items() if set(one.sets) <= set(sets))
    return next(fits, None)


def find() -> None:
    """Let Python find the bindings, behind any that are installed."""
    if FOLDER.is_dir() and str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))


def cpu_backend() -> Path | None:
    """Return the library of the variant for this processor, if the bindings that Python finds are
    ours. Raises BackendUnavailable if there is none."""
    find()
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None or FOLDER not in Path(spec.origin).parents:
        return None
    variants = VARIANTS.get(platform.machine(), {})
    return place_of(_chosen(variants), variants)


def load(library: Path) -> None:
    """Load a library: llama.cpp's other libraries use the one of its name that is loaded. Raises
    BackendUnavailable."""
    try:
        ctypes.CDLL(os.fspath(library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise BackendUnavailable(
            f"llama.cpp's CPU backend cannot be loaded ({error}); install duodec anew, or run "
            "`duodec setup --rebuild` to build llama.cpp here"
        ) from error


def _chosen(variants: Mapping[str, Variant]) -> str:
    """Choose a variant. Raises BackendUnavailable."""
    forced = os.environ.get(FORCED)
    if forced and forced in variants:
        return forced
    if forced:
        raise BackendUnavailable(
            f"{FORCED} is {forced}, and this wheel has {', '.join(variants)}; name one of them"
        )
    if name := variant_for(instruction_sets(), variants):
        return name
    least = list(variants.values())[-1].sets if variants else ()
    raise BackendUnavailable(
        f"the llama.cpp in this wheel needs a processor with {', '.join(least)}; run "
        "`duodec setup --rebuild` to build it for this one"
    )

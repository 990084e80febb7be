"""Load llama.cpp: environment first, then the library, silenced.

Settings that count only before the library loads are made here: OpenMP's waiting policy and the
choice of kernels. The package uses llama.cpp only through `load`.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from duodec.backends.allocator import keep_freed_memory
from duodec.backends.llamacpp.build import bundled, cuda_runtime
from duodec.backends.llamacpp.build.processor import check_build
from duodec.backends.llamacpp.checks import self_test
from duodec.errors import BackendUnavailable

_TILED = "GGML_CPU_TILED_MM"  # kernels of llama.cpp for many rows, which give other bits
_loaded: ModuleType | None = None


def load() -> Any:
    """Return the bindings of llama.cpp, loaded once per process. Raises BackendUnavailable."""
    global _loaded
    if _loaded is None:
        _prepare_environment()
        keep_freed_memory()
        _loaded = _import()
        if kernels(_loaded):  # weights that they do not pack also keep their bits at every width
            os.environ.setdefault(_TILED, "0")
        _silence(_loaded)
        _loaded.llama_backend_init()
    return _loaded


def kernels(library: Any) -> str:
    """Return the instruction set of our kernels for weights on the CPU. The text is empty if
    llama.cpp's own compute them: in a build that is not ours, or if those are faster."""
    try:
        named = library._lib.duodec_kernels
    except AttributeError:
        return ""
    named.restype, named.argtypes = ctypes.c_char_p, ()
    return str(named().decode())


def packs(library: Any, type_: int) -> bool:
    """Return whether our kernels compute weights of a type of ggml."""
    return packed_size(library, type_) > 0


def packed_size(library: Any, type_: int) -> float:
    """Return the bytes that our kernels keep for each byte of weights of a type of ggml; 0 where
    they do not compute it."""
    if not kernels(library):
        return 0.0
    function = getattr(library._lib, "duodec_packed_size", None)
    if function is None:  # a build of an earlier duodec, until `duodec setup` makes another
        return 1.0
    function.restype, function.argtypes = ctypes.c_double, (ctypes.c_int,)
    return float(function(type_))


@cache
def digest(folder: Path) -> str:
    """Return a name of the build whose libraries lie in a folder, by their whole content: options,
    compilers and changes to the sources count, and another installation of the same files is the
    same build."""
    own = [path for path in folder.iterdir() if "ggml" in path.name or "llama" in path.name]
    # Each counts once: a library is there under several versions of its name.
    files = {path.name.partition(".")[0]: path for path in sorted(own) if path.is_file()}
    parts = [hashlib.blake2b(path.read_bytes()).digest() for _, path in sorted(files.items())]
    return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()


def folder(library: Any) -> Path:
    """Return the folder of the libraries that the bindings have loaded."""
    return Path(library._lib._name).resolve().parent


def has_amx(library: Any) -> bool:
    """Return whether it was built with kernels for AMX. If GCC 12 or older compiled them, the
    process crashes in the first forward pass over weights that were laid out for them (llama.cpp's
    issue 20824)."""
    return b"AMX_INT8 = 1" in library.llama_print_system_info()


def _prepare_environment() -> None:
    # Idle workers must not occupy a core that the other model computes on, but within one forward
    # pass they meet hundreds of times: spin for some microseconds, then sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "active")
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    # Weights on the CPU go to the GPU for passes of this many rows. It pays only for a prompt: at
    # llama.cpp's own 32 it would also happen to requests that share a pass, each time.
    os.environ.setdefault("GGML_OP_OFFLOAD_MIN_BATCH", "128")


def _import() -> ModuleType:
    check_build()
    cuda_runtime.load()
    cpu_backend = bundled.cpu_backend()
    self_test.check()
    if cpu_backend:
        bundled.load(cpu_backend)
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendUnavailable(
            f"llama-cpp-python cannot be loaded ({error}); {self_test.REMEDY}"
        ) from error
    return llama_cpp.llama_cpp


def _silence(library: Any) -> None:
    """Send the library's log nowhere, or to stderr if DUODEC_LLAMA_LOG is set.

    The log never calls Python: a callback in Python would be where Ctrl-C is noticed, and
    swallowed. To discard it, a function of the library is used that reads none of its arguments.
    """
    if os.environ.get("DUODEC_LLAMA_LOG"):
        library.llama_log_set(library.llama_log_callback(), None)  # None: llama.cpp's default
        return
    nowhere = ctypes.cast(library._lib.llama_max_devices, library.llama_log_callback)
    library.llama_log_set(nowhere, None)

"""Loading llama.cpp: environment first, then the library, silenced.

What counts only before the library loads is set here: OpenMP's waiting policy and the switch
of the exact kernels. Everything of llama.cpp that the package uses goes through `load`.
"""

from __future__ import annotations

import ctypes
import os
from types import ModuleType
from typing import Any

from duodec.backends.allocator import keep_freed_memory
from duodec.backends.llamacpp import kernels
from duodec.backends.llamacpp.build import check_build
from duodec.errors import BackendUnavailable

EXACT_SWITCH = "GGML_CPU_TILED_MM"
_loaded: ModuleType | None = None


def load(*, is_exact: bool = False) -> Any:
    """The bindings of llama.cpp, loaded once a process.

    ``is_exact`` turns the tiled matrix kernels off, whose results depend on the number of rows.
    That is decided by the first call. Raises BackendUnavailable.
    """
    global _loaded
    if _loaded is None:
        _prepare_environment(is_exact)
        keep_freed_memory()
        _loaded = _import()
        _silence(_loaded)
        _loaded.llama_backend_init()
    elif is_exact and os.environ.get(EXACT_SWITCH) != "0":
        raise BackendUnavailable(
            "llama.cpp is loaded with its fast kernels already; ask for exact kernels in the "
            f"first LLM of the process, or set {EXACT_SWITCH}=0 before it starts"
        )
    return _loaded


def has_amx(library: Any) -> bool:
    """Whether it was built with kernels for AMX. Where GCC 12 or older compiled them, the process
    dies in the first forward over weights that were laid out for them (llama.cpp's issue 20824)."""
    return b"AMX_INT8 = 1" in library.llama_print_system_info()


def _prepare_environment(is_exact: bool) -> None:
    # Idle workers must not burn a core that the other model computes on, but within one
    # forward they meet hundreds of times: spin for some microseconds, then sleep.
    os.environ.setdefault("OMP_WAIT_POLICY", "active")
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    if is_exact:
        os.environ[EXACT_SWITCH] = "0"


def _import() -> ModuleType:
    check_build()
    kernels.check()
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise BackendUnavailable(
            f"llama-cpp-python cannot be loaded ({error}); {kernels.REMEDY}"
        ) from error
    return llama_cpp.llama_cpp


def _silence(library: Any) -> None:
    """Send the library's log nowhere, or to stderr when DUODEC_LLAMA_LOG is set.

    No Python hears it: a log in Python would be where Ctrl-C is noticed, and swallowed. Nowhere is
    a function of the library that looks at none of its arguments.
    """
    if os.environ.get("DUODEC_LLAMA_LOG"):
        library.llama_log_set(library.llama_log_callback(), None)  # none: its own way
        return
    nowhere = ctypes.cast(library._lib.llama_max_devices, library.llama_log_callback)
    library.llama_log_set(nowhere, None)

"""Check this machine: cores, what is compiled for it, its GPU, other programs."""

from __future__ import annotations

import ctypes
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duodec.backends.cpu import cpu_key
from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.gguf.header import Header, ggml
from duodec.cli.checks import Check
from duodec.cli.spelling import as_options
from duodec.errors import DuodecError
from duodec.loading import backends
from duodec.loading.config import LLAMA_CPP
from duodec.machine import plugins
from duodec.machine.core_plan import CorePlan

if TYPE_CHECKING:
    from duodec.backends.llamacpp.model import LlamaModel


def check_cores(plan: CorePlan, num_cores: int) -> Check:
    if plan.shares_cores:
        words = f"{num_cores}: target and draft take turns on {plan.target_alone}"
    else:
        words = f"{num_cores}: the draft computes on {len(plan.draft_cores)}, the target elsewhere"
    return Check("cores", "ok", words)


def check_llama(lib: Any, backend: str, *, has_gpu: bool) -> Check:
    """Check llama.cpp's build; one for another processor never gets this far."""
    from duodec.backends.llamacpp.load import GPU_BUILD

    info = lib.llama_print_system_info().decode("utf-8", "replace")
    parts = [part.split(":")[-1].partition("=") for part in info.split("|")]
    features = " ".join(name.strip() for name, _, value in parts if value.strip() == "1")
    can_offload = lib.llama_supports_gpu_offload()
    words = (
        f"llama-cpp-python {version('llama-cpp-python')} {'with' if can_offload else 'without'} "
        f"GPU offload, for this processor ({cpu_key()}): {features}"
    )
    if has_gpu and not can_offload and backend == LLAMA_CPP:
        return Check(LLAMA_CPP, "warn", f"{words}; the GPU of this machine stays idle", GPU_BUILD)
    return Check(LLAMA_CPP, "ok", words)


def check_kernels(model: LlamaModel) -> Check:
    """Check which kernels compute a model on the CPU, and what ours leave to llama.cpp's, as
    forward passes show. Raises ModelUnreadable and ComputeFailed."""
    from duodec.backends.llamacpp.checks.operations import left_to_llama_cpp

    lib = model.lib
    named = library.kernels(lib)
    if not named:
        words = "llama.cpp's own for weights on the CPU: near ties, texts of K-quants can differ"
        remedy = "`duodec setup --rebuild` builds ours, where the processor has AVX2 or NEON"
        return Check("kernels", "warn", words, remedy)
    words = f"ours for {named}: weights on the CPU give a row the same bits at any width"
    header, left = Header.read(lib, model.path), left_to_llama_cpp(model)
    sizes = header.tensors if header else {}
    if others := sorted({operation.name for operation in left if operation.source not in sizes}):
        words = f"{words}; llama.cpp's compute {', '.join(others)}"
    weights = {operation.source for operation in left} & set(sizes)
    if not header or not weights:
        return Check("kernels", "ok", words)
    type_name = ggml(lib, "ggml_type_name", ctypes.c_char_p, ctypes.c_int)
    types = {header.types[name] for name in weights}
    formats = sorted(type_name(type_).decode() for type_ in types)
    share = sum(sizes[name] for name in weights) / header.num_bytes
    return Check(
        "kernels",
        "warn",
        f"{words}; llama.cpp's compute {len(weights)} tensors in {', '.join(formats)}, "
        f"{share:.0%} of the weights, in which several tokens cost nearly as many times one",
        "leave out --no-repack, and free memory for a copy of the weights"
        if all(library.packs(lib, type_) for type_ in types)
        else "on a CPU take another quantisation, such as Q4_K_M",
    )


def check_backends(used: str, *, has_gpu: bool) -> list[Check]:
    """Check the other libraries that compute targets, if they report anything."""
    found: list[Check] = []
    for name in plugins.installed(plugins.BACKENDS):
        try:
            if state := backends.named(name).state(is_used=name == used, has_gpu=has_gpu):
                verdict, words, remedy = state
                found.append(Check(name, verdict, words, as_options(remedy)))
        except DuodecError as error:
            found.append(Check(name, "warn", as_options(str(error))))
    return found


def gpu_is_there() -> bool:
    """Return whether Linux lists an NVIDIA GPU, usable or not."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


IDLE = Check("idle", "ok", "no other program used the cores during the measurement")


def busy(words: str) -> Check:
    """Return a check that stands for times and estimates, which other programs would spoil."""
    remedy = "stop them, or let --wait 120 wait until they are done"
    return Check("idle", "warn", f"{words}; no speed is estimated", remedy)

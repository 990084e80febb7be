"""Run `duodec setup`: build llama.cpp for this processor and install it next to duodec."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Annotated

from duodec.cli.interrupts import ended_as_interrupted
from duodec.cli.options import option
from duodec.cli.output import say_dim, warn
from duodec.errors import BackendUnavailable

EPILOG = """
Examples:
duodec setup  # once after the installation; in uv's and pipx's environments, too
duodec setup --gpu cuda  # for an NVIDIA GPU; rocm: AMD, metal: Apple, vulkan: any of them
"""


def setup(
    rebuild: Annotated[bool, option("--rebuild", "Build again, even if a build works.")] = False,
    gpu: Annotated[
        str | None, option("--gpu NAME", "Build for a GPU: cuda, rocm, vulkan or metal.")
    ] = None,
) -> None:
    """Build llama.cpp for this processor, once, and check it.

    Only its library is built, with a bar that tells the time left; later environments of this
    machine take the same build. CMAKE_ARGS adds options.
    """
    from duodec.backends.cpu import cpu_key
    from duodec.backends.llamacpp.build import cuda_runtime, native, toolchains
    from duodec.backends.llamacpp.build import processor as build
    from duodec.backends.llamacpp.checks import self_test
    from duodec.machine.install import PipMissing, pip_command

    cmake_args = os.environ.get("CMAKE_ARGS", "").strip()
    if not (rebuild or cmake_args or gpu):
        try:
            build.check_build()
            self_test.check()
        except BackendUnavailable:
            pass  # it is missing, or does not work here
        else:
            say_dim(f"llama.cpp ({native.PACKAGE} {native.VERSION}) is installed and works")
            return
    try:
        with ended_as_interrupted(), pip_command() as pip:
            wheel = None
            if gpu == "cuda" and toolchains.find_nvcc() is None:
                wheel = native.fetch(pip, toolchains.cuda_wheels(), warn)
                if wheel is None and (nvcc := native.fetch_toolkit(pip, cmake_args, warn)):
                    os.environ["CUDACXX"] = str(nvcc)
            if wheel is None:
                if gpu:
                    headers = native.cache_folder() / toolchains.OWN_HEADERS
                    own = toolchains.cmake_args(gpu, cmake_args, headers=headers)
                    cmake_args = f"{own} {cmake_args}".strip()
                if rebuild:
                    native.check_compiler(cmake_args)
                    native.forget(cpu_key(), cmake_args)
                wheel = native.find_or_build(pip, cpu_key(), cmake_args, warn)
            native.install(wheel, pip)
            importlib.invalidate_caches()
            if lacks := cuda_runtime.missing(cuda_runtime.linked()):
                native.install_packages(cuda_runtime.packages(lacks), pip)
    except (PipMissing, native.BuildFailed, toolchains.ToolchainMissing) as error:
        raise BackendUnavailable(str(error)) from None
    (Path(sys.prefix) / build.NOTE).write_text(f"{cpu_key()}\n", encoding="utf-8")
    self_test.check()
    if gpu:
        say_dim(f"it computes on {seen_devices(gpu)}")
    say_dim(f"llama.cpp ({native.PACKAGE} {native.VERSION}) is installed and works")


def seen_devices(gpu: str) -> str:
    """Return the devices of a kind that the installed llama.cpp sees. Raises BackendUnavailable if
    there are none."""
    from duodec.backends.llamacpp import devices, library
    from duodec.backends.llamacpp.build import toolchains

    found = [device for device in devices.every(library.load()) if device.kind == gpu]
    if not found:
        raise BackendUnavailable(
            f"llama.cpp is built for {gpu} and sees no device of it; {toolchains.remedy(gpu)}"
        )
    return ", ".join(f"{device.name} ({device.description})" for device in found)

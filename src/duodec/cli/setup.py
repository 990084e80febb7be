"""`duodec setup`: build llama.cpp for this processor and install it beside duodec."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from duodec.cli.output import say_dim, warn
from duodec.errors import BackendUnavailable

EPILOG = """
[bold]Examples[/bold]

duodec setup     once after pip install duodec; uv and pipx environments, too

CMAKE_ARGS="-DGGML_CUDA=on" duodec setup     with CUDA (-DGGML_VULKAN=on: Vulkan)
"""


def setup(
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build again, even where a build works.")
    ] = False,
) -> None:
    """Build llama.cpp for this processor, once, and check that it computes faithfully.

    Only its library is built, with a bar that tells the time left; later environments of this
    machine take the same build. CMAKE_ARGS adds options, such as those of a GPU.
    """
    from duodec.backends.cpu import cpu_key
    from duodec.backends.llamacpp import build, kernels, native

    cmake_args = os.environ.get("CMAKE_ARGS", "").strip()
    if not (rebuild or cmake_args):
        try:
            build.check_build()
            kernels.check()
        except BackendUnavailable:
            pass  # it is missing, or does not work here
        else:
            say_dim(f"llama.cpp ({native.PACKAGE} {native.VERSION}) is installed and works")
            return
    try:
        if rebuild:
            native.check_compiler(cmake_args)
            native.forget(cpu_key(), cmake_args)
        with native.pip_command() as pip:
            wheel = native.find_or_build(pip, cpu_key(), cmake_args, warn)
            native.install(wheel, pip)
    except native.BuildFailed as error:
        raise BackendUnavailable(str(error)) from None
    (Path(sys.prefix) / build.NOTE).write_text(f"{cpu_key()}\n", encoding="utf-8")
    importlib.invalidate_caches()
    kernels.check()
    say_dim(f"llama.cpp ({native.PACKAGE} {native.VERSION}) is installed and works")

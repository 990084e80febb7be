"""`duodec setup`: build llama.cpp for this processor and install it beside duodec."""

from __future__ import annotations

import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
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
    if rebuild:
        native.forget(cpu_key(), cmake_args)
    try:
        with _pip() as pip:
            wheel = native.find_or_build(pip, cpu_key(), cmake_args, warn)
            native.install(wheel, pip)
    except native.BuildFailed as error:
        raise BackendUnavailable(str(error)) from None
    (Path(sys.prefix) / build.NOTE).write_text(f"{cpu_key()}\n", encoding="utf-8")
    importlib.invalidate_caches()
    kernels.check()
    say_dim(f"llama.cpp ({native.PACKAGE} {native.VERSION}) is installed and works")


@contextmanager
def _pip() -> Iterator[list[str]]:
    """A command that runs pip for this environment. One of uv or pipx has none of its own: pip
    runs in an environment made for that, and works on this one. Raises BuildFailed."""
    from duodec.backends.llamacpp.native import BuildFailed

    if importlib.util.find_spec("pip"):
        yield [sys.executable, "-m", "pip"]
        return
    with tempfile.TemporaryDirectory(prefix="duodec-pip-") as folder:
        command = [sys.executable, "-m", "venv", folder]
        made = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        if made.returncode:
            release = "python{}.{}".format(*sys.version_info[:2])
            raise BuildFailed(
                f"this environment has no pip, and {release} cannot make one; apt install "
                f"{release}-venv (Debian, Ubuntu), or put pip into it: uv pip install pip"
            )
        yield [str(Path(folder) / "bin" / "python"), "-m", "pip", "--python", sys.executable]

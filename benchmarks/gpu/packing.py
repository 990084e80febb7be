"""Collect in one folder what `benchmarks gpu` needs where there is only torch, and no network.

The folder is a place to import from: PYTHONPATH=FOLDER. Nothing is installed there. It travels as
an archive, FOLDER.tar.xz, in which a library for CUDA takes half of its bytes.
"""

from __future__ import annotations

import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path

from benchmarks.gpu.gpu_methods import record_texts
from duodec.backends.llamacpp.build import native
from duodec.errors import BadOption
from duodec.native.build import build as build_inner_loops

_MOST_BYTES, _PRESET = 64 << 20, 3
# beside what torch and transformers depend on: of typer a version that needs no more than this, and
# diskcache for llama.cpp's bindings
_WHEELS = ("click<8.2", "diskcache", "psutil", "shellingham", "typer<0.17")
_ROOT = Path(__file__).parents[2]
_OURS = ("__init__.py", "__main__.py", "made_models.py", "table.py", "gpu")
# a library by the names that it is loaded by: a wheel has each as a file of its own
_LLAMA = re.compile(
    r"llama_cpp/.*\.py|llama_cpp/lib/(lib(llama|ggml)\.so|lib\w[\w-]*\.so\.\d+)"
    r"|llama_cpp_python-[^/]*\.dist-info/.*"
)


def pack_into(folder: Path, llama_cpp: Path | None, python: str) -> None:
    """Collect everything and say how large each part is. ``llama_cpp`` is a wheel; without one the
    bindings that are installed here travel. Raises BadOption and OSError."""
    if folder.exists() and any(folder.iterdir()):
        raise BadOption(f"{folder} is not empty; name a new folder")
    build_inner_loops()
    parts: dict[str, Callable[[Path], object]] = {
        "duodec": lambda to: shutil.copytree(
            _ROOT / "src" / "duodec", to / "duodec", ignore=shutil.ignore_patterns("__pycache__")
        ),
        "benchmarks": _benchmarks,
        "llama.cpp": lambda to: _llama_cpp(to, llama_cpp),
        f"wheels for Python {python}": lambda to: _wheels(to, python),
    }
    total, whole = 0, []
    for name, collect in parts.items():
        collect(folder)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        whole.append(f"{(size - total) / 2**20:6.1f} MiB  {name}")
        total = size
    archive = folder.with_name(f"{folder.name}.tar.xz")
    with lzma.open(archive, "wb", preset=_PRESET) as file, tarfile.open(None, "w", file) as tar:
        tar.add(folder, folder.name)
    size = archive.stat().st_size
    print("\n".join(whole))
    print(f"{total / 2**20:6.1f} MiB  in all; {archive.name} takes {size / 2**20:.1f} of ", end="")
    print(f"{_MOST_BYTES >> 20}")
    if size > _MOST_BYTES:
        raise BadOption(f"{archive} is too large to travel; build llama.cpp for one architecture")
    print(f"there: tar xJf {archive.name}")
    print(f"       PYTHONPATH={folder.name} python -m benchmarks gpu --output RESULTS")


def _benchmarks(to: Path) -> None:
    ours = to / "benchmarks"
    ours.mkdir(parents=True)
    for name in _OURS:
        source = _ROOT / "benchmarks" / name
        if source.is_dir():
            shutil.copytree(source, ours / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, ours / name)
    record_texts(ours / "gpu" / "texts.json")


def _llama_cpp(to: Path, wheel: Path | None) -> None:
    if wheel is not None:
        _unpack(wheel, to, _LLAMA.fullmatch)
        return
    for file in distribution(native.PACKAGE).files or ():
        if _LLAMA.fullmatch(str(file)):
            target = to / str(file)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(file.locate()), target)


def _wheels(to: Path, python: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        tags = ("_2_28", "_2_17", "2014", "_2_12", "2010")
        platforms = [w for tag in tags for w in ("--platform", f"manylinux{tag}_x86_64")]
        command = [
            sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--only-binary", ":all:",
            "--python-version", python, *platforms, "--dest", name, *_WHEELS,
        ]  # fmt: skip
        subprocess.run(command, env=native.pip_environment(), check=True)
        for wheel in Path(name).glob("*.whl"):
            _unpack(wheel, to, lambda member: ".data/" not in member)


def _unpack(wheel: Path, to: Path, is_wanted: Callable[[str], object]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(to, [name for name in archive.namelist() if is_wanted(name)])

"""Collect in one folder what `benchmarks gpu` needs besides this tree, where there is only torch
and no network.

The tree brings duodec, its draft model and the benchmarks. The folder is a program, `start.py`,
with an archive: llama.cpp, its CPU backend in two variants of which one is taken there, duodec's
compiled part, and the two packages that neither torch nor transformers brings.
"""

from __future__ import annotations

import lzma
import platform
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

from benchmarks.gpu import start
from benchmarks.gpu.gpu_methods import record_texts
from duodec.backends.llamacpp.build import native
from duodec.errors import BadOption
from duodec.native.build import build as build_inner_loops

MOST_BYTES, PRESET = 26 << 20, 9
# of llama.cpp's bindings, and ours, for any Python 3; what our satellites in the tree are named by
_PACKAGES = ("diskcache", "psutil", "duodec-lab", "duodec-torch")
_COMMON = "-DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON"
BUILDS = {
    "avx2": f"{_COMMON} -DGGML_BMI2=ON",
    "avx512": f"{_COMMON} -DGGML_BMI2=ON -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON "
    "-DGGML_AVX512_BF16=ON",
}
# a library by the names that it is loaded by: a wheel has each as a file of its own
_LIBRARY = r"(lib(llama|ggml)\.so|lib\w[\w-]*\.so\.\d+)"
_BINDINGS = re.compile(
    r"llama_cpp/(?!server/).*\.py|llama_cpp_python-[^/]*\.dist-info/METADATA"
    rf"|(llama_cpp/)?lib/{_LIBRARY}"
)
_CPU = re.compile(r"(?:llama_cpp/)?lib/(libggml-cpu\.so(\.\d+)?)")
_CUDA = re.compile(r"(?:llama_cpp/)?lib/libggml-cuda\.so\.\d+")
_KEPT = re.compile(r".*\.(py|so|typed)|.*\.dist-info/(METADATA|entry_points\.txt)")


def pack_into(folder: Path, llama_cpp: Path | None) -> None:
    """Collect everything and say how large each part is. ``llama_cpp`` is a wheel for CUDA; without
    one the library computes on the CPU. Raises BadOption, BuildFailed and OSError."""
    if folder.exists() and any(folder.iterdir()):
        raise BadOption(f"{folder} is not empty; name a new folder")
    if llama_cpp is not None:
        _check(llama_cpp)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch)
        wheels = {variant: _wheel(variant) for variant in BUILDS}
        _unpack(llama_cpp or wheels["avx2"], whole / "site")
        for variant, wheel in wheels.items():
            _take_cpu_backend(wheel, whole / "variants" / variant)
        (whole / "inner-loops").mkdir()
        shutil.copy(build_inner_loops(), whole / "inner-loops")
        for package in _PACKAGES:
            _copy(distribution(package), whole / "site")
        for part in ("site", "variants", "inner-loops"):
            print(f"{_size(whole / part) / 2**20:6.1f} MiB  {part}, before it is compressed")
        archive = folder / "site.tar.xz"
        with lzma.open(archive, "wb", preset=PRESET) as file, tarfile.open(None, "w", file) as tar:
            for path in sorted(whole.iterdir()):
                tar.add(path, path.name)
    record_texts(folder / "texts.json")
    shutil.copy(start.__file__, folder / "__main__.py")
    size = _size(folder)
    print(f"{size / 2**20:6.1f} MiB  in all, of {MOST_BYTES >> 20}")
    if llama_cpp is None:
        print("without --llama-cpp its llama.cpp computes on the CPU: no card is measured by it")
    if size > MOST_BYTES:
        raise BadOption(f"{folder} is too large to travel; build llama.cpp for one architecture")
    print(f"there, in this tree: python {folder.name} --output RESULTS")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _check(wheel: Path) -> None:
    """A wheel for CUDA, of the version whose CPU backend is packed with it. Raises BadOption."""
    version = wheel.name.split("-")[1:2]
    if version != [native.VERSION]:
        raise BadOption(f"{wheel.name} is not version {native.VERSION} of llama-cpp-python")
    with zipfile.ZipFile(wheel) as archive:
        if not any(_CUDA.fullmatch(member) for member in archive.namelist()):
            raise BadOption(
                f"{wheel.name} holds no libggml-cuda.so with a version in its name; build it with "
                "`duodec setup --gpu cuda`"
            )


def _wheel(variant: str) -> Path:
    """llama.cpp for processors of a kind, from the cache or built into it."""
    pip = [sys.executable, "-m", "pip"]
    return native.find_or_build(pip, f"{platform.machine()}-{variant}", BUILDS[variant], print)


def _unpack(wheel: Path, to: Path) -> None:
    """The bindings and their libraries. Some wheels have these beside the package."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if _BINDINGS.fullmatch(member):
                place = f"llama_cpp/{member}" if member.startswith("lib/") else member
                (to / place).parent.mkdir(parents=True, exist_ok=True)
                (to / place).write_bytes(archive.read(member))


def _take_cpu_backend(wheel: Path, to: Path) -> None:
    to.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if (named := _CPU.fullmatch(member)) and named[2]:  # as the others name it
                (to / named[1]).write_bytes(archive.read(member))


def _copy(package: Distribution, to: Path) -> None:
    """A package's modules, as they are installed here."""
    for file in package.files or ():
        if _KEPT.fullmatch(str(file)) and not str(file).startswith(".."):
            place = to / str(file)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(file.locate()), place)

"""Obtain other programs: packages in environments of their own, sources built for this processor.

All of it lies in a folder of benchmarks/scratch and is made once. Whatever cannot be had raises
Unavailable, with the reason in a line.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from benchmarks import SCRATCH
from duodec.backends.llamacpp.build import native

FOLDER = SCRATCH / "cpu"
_ROWS = Path(__file__).with_name("rows.cpp")
SERVER = "llama-server"
_IK_LLAMA = "https://github.com/ikawrakow/ik_llama.cpp"
_LONGEST_WORDS = 300


class Unavailable(Exception):
    """Why a program cannot be had here: one line."""


def environment(name: str, packages: Sequence[str]) -> Path:
    """The Python of an environment that has these packages and what they need."""
    folder = FOLDER / name
    python, done = folder / "bin" / "python", folder / "packages.txt"
    wanted = "\n".join(packages)
    if done.is_file() and done.read_text() == wanted:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    print(f"installing {', '.join(packages)}", flush=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    _run([str(python), "-m", "pip", "install", "-q", "--only-binary", ":all:", *packages])
    done.write_text(wanted)
    return python


def version(python: Path, package: str) -> str:
    """Of a package in an environment."""
    words = f"from importlib.metadata import version; print(version({package!r}))"
    return _run([str(python), "-c", words]).strip()


def llama_cpp_source() -> Path:
    """The sources of llama.cpp that our own build is made of, without our kernels."""
    folder, vendored = FOLDER / "llama.cpp", "vendor/llama.cpp/"
    if folder.is_dir():
        return folder
    packages = FOLDER / "packages"
    print(f"fetching the sources of {native.PACKAGE} {native.VERSION}", flush=True)
    _run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:",
         "--dest", str(packages), f"{native.PACKAGE}=={native.VERSION}"],
    )  # fmt: skip
    partial = FOLDER / "llama.cpp.partial"
    shutil.rmtree(partial, ignore_errors=True)
    with tarfile.open(next(packages.glob("*.tar.gz"))) as archive:
        for member in archive.getmembers():
            _, _, name = member.name.partition(vendored)
            if name and member.isfile():
                member.name = name
                archive.extract(member, partial, filter="data")
    return partial.rename(folder)


def ik_llama_source(folder: Path | None) -> Path:
    """The sources of ik_llama.cpp: a folder that has them, or a clone."""
    if folder is not None:
        if not (folder / "include" / "llama.h").is_file():
            raise Unavailable(f"{folder} has no include/llama.h; name a tree of ik_llama.cpp")
        return folder.resolve()
    clone = FOLDER / "ik_llama.cpp"
    if not clone.is_dir():
        print(f"cloning {_IK_LLAMA}", flush=True)
        _run(["git", "clone", "-q", "--depth", "1", _IK_LLAMA, str(clone)])
    return clone


def commit(source: Path) -> str:
    """Of a clone; of other trees the day of their newest file."""
    if (source / ".git").exists():
        return _run(["git", "-C", str(source), "rev-parse", "--short=12", "HEAD"]).strip()
    newest = max(path.stat().st_mtime for path in (source / "src").iterdir())
    return f"tree of {datetime.fromtimestamp(newest, timezone.utc):%Y-%m-%d}"


def built(source: Path, options: Sequence[str] = ()) -> Path:
    """The folder of the program of rows.cpp, built for this processor, and of `llama-server`, if it
    can be built: its ways to decode tell that it is not there."""
    folder = FOLDER / f"build-{source.name}"
    server, rows = folder / "bin" / SERVER, folder / "bin" / "rows"
    if not server.is_file():
        print(f"building {source.name} for this processor, once; some minutes", flush=True)
        common = ("-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DGGML_NATIVE=ON",
                  "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF",
                  native_flags("C"), native_flags("CXX"))  # fmt: skip
        _run(["cmake", "-S", str(source), "-B", str(folder), *common, *options])
        _run(["cmake", "--build", str(folder), "--target", "llama", *_jobs()])
    if not rows.is_file() or rows.stat().st_mtime < _ROWS.stat().st_mtime:
        compile_rows(source, [folder], rows, is_ik=_is_ik(source))
    if not server.is_file():
        try:
            _run(["cmake", "--build", str(folder), "--target", SERVER, *_jobs()])
        except Unavailable as error:
            print(f"{source.name}: {error}", flush=True)
    return folder / "bin"


def native_flags(language: str) -> str:
    """What keeps GCC 12 from kernels that it miscompiles, as in our build."""
    return f"-DCMAKE_{language}_FLAGS=-U__AMX_INT8__"


def compile_rows(
    source: Path, libraries: Sequence[Path], program: Path, *, is_ik: bool = False
) -> None:
    """Compile rows.cpp against the headers of ``source`` and the libraries below some folders."""
    found = [path for folder in libraries for path in sorted(folder.rglob("lib*.so"))]
    needed = {path.name: path for path in found if path.name in ("libllama.so", "libggml.so")}
    if "libllama.so" not in needed:
        raise Unavailable(f"no libllama.so below {', '.join(map(str, libraries))}")
    folders = {path.parent for path in found}
    program.parent.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CXX", "c++")
    _run(
        [compiler, "-O2", "-std=c++17", *(["-DIK"] if is_ik else []), str(_ROWS),
         f"-I{source / 'include'}", f"-I{source / 'ggml' / 'include'}", "-o", str(program),
         *map(str, needed.values()), *(f"-Wl,-rpath,{folder}" for folder in sorted(folders)),
         *(f"-Wl,-rpath-link,{folder}" for folder in sorted(folders))],
    )  # fmt: skip


def run(command: Sequence[str], words: str = "", **variables: str) -> str:
    """What a program prints, given these words and variables. Raises Unavailable."""
    return _run(command, words, variables)


def last_line(words: str) -> str:
    """The last line of a log that says something of an error, else its last one."""
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    named = [line for line in lines if "error" in line.lower() and not line.endswith(":")]
    return (named or lines or ["no reason given"])[-1][:_LONGEST_WORDS]


def _is_ik(source: Path) -> bool:
    return "repack_tensors" in (source / "include" / "llama.h").read_text("utf-8", "replace")


def _jobs() -> list[str]:
    """As many compilers as cores, unless CMAKE_BUILD_PARALLEL_LEVEL says how many."""
    told = "CMAKE_BUILD_PARALLEL_LEVEL" in os.environ
    return [] if told else ["--parallel", str(os.cpu_count() or 1)]


def _run(
    command: Sequence[str], words: str = "", variables: Mapping[str, str] | None = None
) -> str:
    kept = {k: v for k, v in os.environ.items() if k not in {"PYTHONPATH", "PYTHONHOME"}}
    try:
        done = subprocess.run(
            command, env={**kept, **(variables or {})}, input=words, capture_output=True,
            text=True, errors="replace", check=False,
        )  # fmt: skip
    except OSError as error:
        raise Unavailable(f"{command[0]}: {error.strerror}") from error
    if done.returncode:
        told = last_line(done.stderr or done.stdout)
        raise Unavailable(f"{Path(command[0]).name} ended with {done.returncode}: {told}")
    return done.stdout

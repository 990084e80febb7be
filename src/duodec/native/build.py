"""Compile the inner loops, once for these sources: python -m duodec.native.build

It uses only the standard library: the package's build runs this file before anything is installed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
# Without contraction, a product and a sum have the bits that Python gives them.
_OPTIONS = ("-std=c++17", "-O3", "-ffp-contract=off", "-fPIC", "-shared")
_COMPILERS = ("c++", "g++", "clang++")
_LONGEST_S = 120


class BuildFailed(Exception):
    """Raised if there is no compiler, or it fails: one line, with the remedy."""


def library_path() -> Path:
    """Return where the library of these sources lies on this machine once it is built."""
    texts = [(file.name, file.read_bytes()) for file in _sources()]
    what = (texts, _OPTIONS, platform.system(), platform.machine())
    # It lies in a subfolder, because tools that look for modules beside the sources would take it
    # for one.
    return FOLDER / "lib" / f"inner-loops-{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}.so"


def build() -> Path:
    """Compile the library, unless that was already done. Raises BuildFailed."""
    path = library_path()
    if not path.exists():
        try:
            path.parent.mkdir(exist_ok=True)
            _compile([file for file in _sources() if file.suffix == ".cpp"], path)
        except OSError as error:
            raise BuildFailed(f"{path} cannot be written: {error}; make it yours") from error
    return path


def _sources() -> list[Path]:
    return sorted([*FOLDER.glob("*.cpp"), *FOLDER.glob("*.h")])


def _compiler() -> list[str]:
    """Return the environment's CXX, or one of the usual names."""
    named = [name for name in _COMPILERS if shutil.which(name)]
    compiler = shlex.split(os.environ.get("CXX", "")) or named[:1]
    if not compiler or not shutil.which(compiler[0]):
        what = f"the C++ compiler {compiler[0]} is not found" if compiler else "no C++ compiler"
        raise BuildFailed(
            f"{what}, which duodec is built with; install one: apt install g++ (Debian, Ubuntu), "
            "dnf install gcc-c++ (Fedora), xcode-select --install (macOS), or name yours in CXX"
        )
    return compiler


def _compile(files: list[Path], path: Path) -> None:
    """Compile the files. Raises BuildFailed and OSError."""
    compiler = _compiler()
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder, path.name)
        command = [*compiler, *_OPTIONS, "-o", str(made), "-x", "c++", *map(str, files)]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=_LONGEST_S, check=False, text=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise BuildFailed(f"{compiler[0]} took more than {_LONGEST_S} s; try again") from error
        if done.returncode or not made.exists():
            words = (line for line in done.stdout.splitlines() if "error" in line.lower())
            told = next(words, done.stdout.strip().partition("\n")[0]) or "it says nothing"
            raise BuildFailed(
                f"{compiler[0]} cannot compile duodec's inner loops: {told}; name a compiler of "
                "C++17 in CXX"
            )
        made.chmod(0o755)
        made.replace(path)  # in one step: other processes may be doing the same


if __name__ == "__main__":
    try:
        print(build())
    except BuildFailed as error:
        sys.exit(f"duodec: {error}")

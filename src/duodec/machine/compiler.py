"""Compile C++ files of ours into a library, once."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from duodec.machine.ownership import check_owned

# without contraction, so that a product and a sum have the bits that Python gives them
_OPTIONS = ("-std=c++17", "-O2", "-ffp-contract=off", "-fPIC", "-shared")
_COMPILERS = ("c++", "g++", "clang++")
_LONGEST_S = 120


def compiled(sources: Path, folder: Path, sizes: Mapping[str, int] | None = None) -> Path | None:
    """The library of the files in ``sources``, kept in ``folder``, with ``sizes`` as its macros.

    None where there is no compiler (the environment's ``CXX``, or one of the usual names), where it
    fails, and where nothing can be written. Raises Unsafe where others may write: what is there is
    run.
    """
    options = [*_OPTIONS, *(f"-D{name}={number}" for name, number in (sizes or {}).items())]
    files = sorted([*sources.glob("*.cpp"), *sources.glob("*.h")])
    texts = [(file.name, file.read_bytes()) for file in files]
    what = (texts, options, platform.system(), platform.machine())
    path = folder / f"duodec-{hashlib.sha256(repr(what).encode()).hexdigest()[:16]}.so"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_owned(folder)
        if not path.exists():
            _compile([file for file in files if file.suffix == ".cpp"], path, options)
        check_owned(path)
        return path
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _compile(files: Sequence[Path], path: Path, options: Sequence[str]) -> None:
    """Raises OSError and SubprocessError."""
    own = shlex.split(os.environ.get("CXX", ""))
    named = [name for name in _COMPILERS if shutil.which(name)]
    compiler = own or named[:1]
    if not compiler:
        raise FileNotFoundError("there is no C++ compiler")
    with tempfile.TemporaryDirectory(dir=path.parent) as part:
        made = Path(part, path.name)
        subprocess.run(
            [*compiler, *options, "-o", str(made), "-x", "c++", *map(str, files)],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=_LONGEST_S, check=True,
        )  # fmt: skip
        made.chmod(0o700)
        made.replace(path)

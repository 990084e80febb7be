"""Programs that run our kernels for the CPU, compiled for one instruction set."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes.instruction_sets import SETS

import duodec.backends.llamacpp

KERNELS = Path(duodec.backends.llamacpp.__file__).parent / "kernels"
OPTIONS = ("-std=c++17", "-ffp-contract=off", "-fno-math-errno", f"-I{KERNELS}")
# whatever is undefined ends the program, and with it the test
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")

Command = tuple[str, ...]


class Probes:
    """Compiles a program once for these sources, options and compiler."""

    def __init__(self, source: Path, folder: Path) -> None:
        self._source, self._folder = source, folder
        sources = [source, *sorted(path for path in KERNELS.rglob("*") if path.is_file())]
        self._contents = b"".join(path.read_bytes() for path in sources)
        self._made: dict[Command, Command] = {}

    def command(self, name: str, *options: str, compiler: Sequence[str] = ()) -> Command:
        """What runs it on an instruction set; skips the test where that cannot be tried here."""
        wanted = SETS[name]
        if why := wanted.missing():
            pytest.skip(why)
        how = (*(compiler or wanted.compiler()), *wanted.options, *OPTIONS, *options)
        if how not in self._made:
            self._made[how] = (*wanted.runner(), str(self._compiled(how)))
            said = subprocess.run(self._made[how], stdin=subprocess.DEVNULL, capture_output=True)
            assert said.stdout.decode().strip() == wanted.prints
        return self._made[how]

    def _compiled(self, how: Command) -> Path:
        version = subprocess.run([how[0], "--version"], capture_output=True).stdout
        key = hashlib.sha256(self._contents + version + repr(how).encode()).hexdigest()[:16]
        path = self._folder / f"{self._source.stem}-{key}"
        if not path.exists():
            part = self._folder / f"part-{key}-{os.getpid()}"
            command = [*how, "-o", str(part), str(self._source)]
            built = subprocess.run(command, capture_output=True, text=True, timeout=280)
            assert built.returncode == 0, built.stderr[-2000:]
            part.replace(path)
        return path

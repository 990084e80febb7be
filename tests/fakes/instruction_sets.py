"""The instruction sets that our kernels have code for."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

AVX2 = ("-mavx2", "-mfma", "-mf16c")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512vnni")


@dataclass(frozen=True)
class InstructionSet:
    """A compiler's options for one, and what a machine needs for programs that use it."""

    prints: str  # what the kernels call it
    options: tuple[str, ...]
    needs: tuple[str, ...] = ()  # of an x86 processor, as Linux names them
    is_arm: bool = False

    def compiler(self) -> list[str]:
        if self._is_foreign:
            return ["aarch64-linux-gnu-g++", "-static"]
        return shlex.split(os.environ.get("CXX", "")) or _first_of("c++", "g++", "clang++")

    def runner(self) -> list[str]:
        return _first_of("qemu-aarch64", "qemu-aarch64-static") if self._is_foreign else []

    def missing(self) -> str:
        """Why it cannot be tried here; empty where it can."""
        for program in (self.compiler()[0], *self.runner()):
            if not shutil.which(program):
                return f"{self.prints}: there is no {program}"
        lacks = set(self.needs) - _processor_flags()
        return f"{self.prints}: the processor has no {', '.join(sorted(lacks))}" if lacks else ""

    @property
    def _is_foreign(self) -> bool:
        return self.is_arm and platform.machine() not in {"aarch64", "arm64"}


def _first_of(*programs: str) -> list[str]:
    return [next(filter(shutil.which, programs), programs[0])]


def _processor_flags() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    lines = [line for line in text.splitlines() if line.startswith("flags")]
    return set(lines[0].split(":")[1].split()) if lines else set()


# an instruction set's products have their bits at any level: what runs in an emulator is made fast,
# and what does not is compiled in a third of the time
SETS = {
    "plain": InstructionSet("plain C++", ("-O0", "-DDUODEC_PLAIN")),
    "avx2": InstructionSet("AVX2", ("-O0", *AVX2), ("avx2", "fma", "f16c")),
    "avx-vnni": InstructionSet("AVX-VNNI", ("-O0", *AVX2, "-mavxvnni"), ("avx_vnni",)),
    "avx512": InstructionSet("AVX-512 VNNI", ("-O0", *AVX512), ("avx512bw", "avx512_vnni")),
    "neon": InstructionSet("NEON dot products", ("-O1", "-march=armv8.2-a+dotprod"), is_arm=True),
}
FAST = tuple(name for name in SETS if name != "plain")

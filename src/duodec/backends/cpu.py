"""Identify the processor that a native build belongs to.

It uses only the standard library and imports nothing of ours: `scripts/setup.py` loads it by path
before anything is installed.
"""

import hashlib
import platform
import re
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# A compiler or a kernel may choose these instruction sets. The kernel's other flags (mitigations,
# power states) change with an update and would force needless builds.
_X86_SETS = re.compile(
    r"(mmx|sse|ssse|pni|avx|amx|fma|f16c|bmi|abm|lzcnt|popcnt|movbe|adx|v?aes|sha|v?pclmul|gfni"
    r"|xop|tbm|3dnow|cx16|lahf)"
)
_FLAG_NAMES = {"flags", "Features", "isa"}  # x86, Arm, RISC-V
_MODEL_NAMES = {"vendor_id", "model name", "CPU implementer", "CPU part", "uarch"}
_SYSCTL_NAMES = ("machdep.cpu.brand_string", "machdep.cpu.features", "machdep.cpu.leaf7_features")


def cpu_key() -> str:
    """Return a name of this machine's processor: machines of one key can run each other's native
    builds.

    It is made of the architecture, the model and the instruction sets, such as
    `x86_64-3f9a0c1b22d4`. It never raises: what cannot be read is left out.
    """
    machine = platform.machine() or "unknown"
    parts = [machine, *_description()]
    return "{}-{}".format(machine, hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12])


def instruction_sets() -> "list[str]":
    """Return the sorted instruction sets of this processor, as `/proc/cpuinfo` names them; none if
    they cannot be read."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return _parsed(file)[1]
    except OSError:
        return []


def _description() -> "list[str]":
    if sys.platform == "darwin":
        return [_sysctl(name) for name in _SYSCTL_NAMES]
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return parse_cpuinfo(file)
    except OSError:
        return [platform.processor()]


def parse_cpuinfo(lines: "Iterable[str]") -> "list[str]":
    """Return the model and the sorted instruction sets of the first processor in
    `/proc/cpuinfo`."""
    model, sets = _parsed(lines)
    return model + sets


def _parsed(lines: "Iterable[str]") -> "tuple[list[str], list[str]]":
    model: list[str] = []
    sets: set[str] = set()
    for line in lines:
        name, _, value = (part.strip() for part in line.partition(":"))
        if not name and (model or sets):
            break  # the other processors are the same, and reading them all is slow
        if name in _FLAG_NAMES:
            x86 = name == "flags"
            sets.update(flag for flag in value.split() if not x86 or _X86_SETS.match(flag))
        elif name in _MODEL_NAMES:
            model.append(value)
    return model, sorted(sets)


def _sysctl(name: str) -> str:
    done = subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True, check=False)
    return done.stdout.decode(errors="replace").strip()

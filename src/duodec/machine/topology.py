"""Read which logical processors are whole, fast cores, and which memory is near them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from duodec.machine.cores import Cores, available_cores, listed_cores

_SYSTEM = Path("/sys/devices")  # Linux describes the processors here
# Share of the fastest core's capacity; little cores of phones and boards have 0.2 to 0.5.
_FAST = 0.7
_SIBLINGS = ("core_cpus_list", "thread_siblings_list")  # names since Linux 5.3, and before


@dataclass(frozen=True)
class Topology:
    """List the logical processors that this process may use.

    ``fast`` holds one of each fast core. A second thread of a core adds little to a computation
    that waits for memory, and slows the first. A slow core delays those that wait for its part.
    """

    cores: Cores  # all of them
    fast: Cores
    nodes: tuple[Cores, ...]  # by the memory near them
    # Processors of the same core, itself included.
    siblings: Mapping[int, Cores] = field(default_factory=dict)

    @classmethod
    def flat(cls, cores: Cores) -> Topology:
        """Return a topology of cores that are all alike."""
        return cls(cores, cores, (cores,))

    @classmethod
    def read(cls, cores: Cores | None = None, system: Path = _SYSTEM) -> Topology:
        """Return the topology that this system reports; flat if it reports none."""
        cores = available_cores() if cores is None else cores
        siblings = {core: _siblings_of(core, system) for core in cores}
        fast = [core for core in cores if core in _fast_cores(cores, system)] or list(cores)
        whole = tuple(core for core in fast if core == min(set(siblings[core]) & set(fast)))
        if sys.platform == "darwin":  # it pins no threads: only their number counts
            whole = whole[: num_performance_cores() or len(whole)]
        return cls(cores, whole, memory_nodes(cores, system / "system" / "node"), siblings)

    def with_siblings(self, cores: Cores) -> frozenset[int]:
        """Return these processors, and all others of the same cores."""
        return frozenset(own for core in cores for own in self.siblings.get(core, (core,)))


def memory_nodes(cores: Cores, folder: Path) -> tuple[Cores, ...]:
    """Return the cores by the memory near them; all together if the system does not report it."""
    lists = [file.read_text() for file in sorted(folder.glob("node[0-9]*/cpulist"))]
    nodes = (tuple(sorted(listed_cores(text) & set(cores))) for text in lists)
    return tuple(node for node in nodes if node) or (cores,)


def _siblings_of(core: int, system: Path) -> Cores:
    folder = system / "system" / "cpu" / f"cpu{core}" / "topology"
    text = next(filter(None, (_text(folder / name) for name in _SIBLINGS)), str(core))
    return tuple(sorted(listed_cores(text) | {core}))


def _fast_cores(cores: Cores, system: Path) -> set[int]:
    """Return the fast cores. Intel's hybrids list their performance cores; elsewhere each core has
    a capacity."""
    if performance := _text(system / "cpu_core" / "cpus"):
        return listed_cores(performance)
    cpus = system / "system" / "cpu"
    capacities = {core: int(_text(cpus / f"cpu{core}" / "cpu_capacity") or 0) for core in cores}
    least = _FAST * max(capacities.values(), default=0)
    return {core for core, capacity in capacities.items() if capacity >= least}


def num_performance_cores() -> int:
    """Return the performance cores of an Apple processor; 0 if it has no levels."""
    command = ["/usr/sbin/sysctl", "-n", "hw.perflevel0.physicalcpu"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(found.stdout) if found.stdout.strip().isdigit() else 0


def _text(file: Path) -> str:
    """Return the file's content; empty where there is no such file."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""

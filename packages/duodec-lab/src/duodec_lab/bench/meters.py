"""Measure memory, energy and bandwidth; None where the machine does not report them."""

from __future__ import annotations

import resource
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter

import numpy as np
import psutil

_RAPL = Path("/sys/class/powercap")
_SWEEP_BYTES = 1 << 28  # per thread: more than any cache holds
_KIB_OR_BYTES = 1 if sys.platform == "darwin" else 1024  # unit of ru_maxrss


def resident_bytes() -> int:
    """Memory that this process and its children hold now."""
    here = psutil.Process()
    total = 0
    for process in (here, *here.children(recursive=True)):
        try:
            total += process.memory_info().rss
        except psutil.Error:  # it has ended meanwhile
            continue
    return total


def peak_bytes() -> int:
    """The most memory that this process has held, without its children's."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIB_OR_BYTES


class EnergyMeter:
    """The processors' own energy counters (RAPL)."""

    def __init__(self, root: Path = _RAPL) -> None:
        self._domains: list[tuple[Path, int]] = []  # counter, the value at which it wraps
        self.absence: str | None = "the machine exposes no energy counter"
        for folder in sorted(root.glob("intel-rapl:*")):
            if folder.name.count(":") != 1:
                continue  # part of a package that is already counted
            try:
                (folder / "energy_uj").read_text()
                span = int((folder / "max_energy_range_uj").read_text())
            except (OSError, ValueError) as error:
                self.absence = f"the energy counter cannot be read ({error})"
                continue
            self._domains.append((folder / "energy_uj", span))
        if self._domains:
            self.absence = None

    def read(self) -> list[int] | None:
        """The counters, in microjoules."""
        try:
            return [int(path.read_text()) for path, _ in self._domains] or None
        except (OSError, ValueError):
            return None

    def joules_since(self, before: list[int] | None) -> float | None:
        """Energy used since `read` returned ``before``."""
        now = self.read()
        if before is None or now is None:
            return None
        spans = (span for _, span in self._domains)
        return sum((b - a) % span for a, b, span in zip(before, now, spans, strict=True)) / 1e6


def bandwidth(num_threads: int) -> float:
    """Bytes per second that ``num_threads`` threads read from memory together: the best of
    three."""
    sweeps = [np.ones(_SWEEP_BYTES // 8, dtype=np.int64) for _ in range(num_threads)]
    best_s = float("inf")
    with ThreadPoolExecutor(num_threads) as pool:
        for _ in range(3):
            start = perf_counter()
            list(pool.map(np.ndarray.max, sweeps))
            best_s = min(best_s, perf_counter() - start)
    return num_threads * _SWEEP_BYTES / best_s

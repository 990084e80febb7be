"""Keep what fuzzers find, add up what they did over several runs, and wait for their processes.

An input that found something is kept in a folder with the number it was made from, so that it can
be run again. Time in which a process was stopped (SIGSTOP) counts for no hang.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
from benchmarks import RESULTS

from duodec_lab.bench.card import environment

FOUND = Path(__file__).parent / "found"
_TICK_S = 0.005
LONGEST_TICK_S = 0.5  # who wakes up later was stopped, or had no processor


def keep(kind: str, number: int | str, problem: str, recipe: Any, folder: Path = FOUND) -> Path:
    """Write down an input that found something."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{kind}-{number}.json"
    record = {"kind": kind, "number": number, "problem": problem, "input": recipe}
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def kept(kind: str, folder: Path = FOUND) -> list[dict[str, Any]]:
    """The inputs of a kind that found something once."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{kind}-*.json"))]


def published(section: str) -> dict[str, Any]:
    """What the results say of a section so far."""
    path = RESULTS / "fuzz.json"
    found: dict[str, Any] = json.loads(path.read_text()).get(section, {}) if path.exists() else {}
    return found


def publish(section: str, facts: dict[str, Any]) -> None:
    """Write a section of the results; the others stay."""
    path = RESULTS / "fuzz.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    found.update({"environment": environment(), section: facts})
    path.write_text(json.dumps(found, indent=1) + "\n")


class Stops:
    """Counts how often this process went on after it was stopped. For the main thread."""

    def __init__(self) -> None:
        self.num = 0
        signal.signal(signal.SIGCONT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.num += 1

    def timed(self, call: Callable[[], Any]) -> tuple[Any, float]:
        """What a call returns, and its seconds; one that was stopped on its way is made again."""
        while True:
            num, begin_s = self.num, time.perf_counter()
            try:
                found = call()
            except (TimeoutError, OSError):
                if num == self.num:
                    raise
                continue
            if num == self.num:
                return found, time.perf_counter() - begin_s


def ended(child: int, limit_s: float) -> tuple[int, float] | None:
    """The exit status of a child, negative for a signal, and its processor seconds. None for one
    that was still running after so many seconds; it is killed."""
    process = psutil.Process(child)
    left_s, now_s = limit_s, time.monotonic()
    while not (found := os.wait4(child, os.WNOHANG))[0]:
        if left_s <= 0:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(_TICK_S)
        before_s, now_s = now_s, time.monotonic()
        if process.status() != psutil.STATUS_STOPPED:
            left_s -= min(now_s - before_s, LONGEST_TICK_S)
    _, status, used = found
    return os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime

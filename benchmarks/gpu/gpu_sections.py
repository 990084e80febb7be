"""Run the sections of `gpu.py` in separate processes, so that one that hangs or breaks the GPU's
context loses only its own later results."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WARNINGS: list[str] = []  # so that an unused graph or kernel does not go unnoticed
CURVES = "curves"  # the beginning of the name of a part that holds curves
Note = Callable[[str, Any], None]  # a part of a section, as soon as it is known
_PARTING_S = 5.0
_LEAST_S = 5.0  # with less time left, none is started
_SHOWN = 1200  # characters of a result on the terminal


@dataclass
class Report:
    """gpu.json so far; rewritten after every section."""

    folder: Path
    end_s: float  # on the clock of `time.monotonic`: no section runs longer
    only: tuple[str, ...] = ()  # words; if any, sections with none of them are left out
    found: dict[str, Any] = field(default_factory=dict)
    begin_s: float = field(default_factory=time.monotonic)

    def section(self, name: str, work: Callable[[Note], Any], budget_s: float) -> None:
        """Run ``work`` in a process that is forked before the GPU is used."""
        if self.only and not any(word in name for word in self.only):
            return
        left_s = self.end_s - time.monotonic()
        budget_s = min(budget_s, left_s)
        begin_s = time.monotonic()
        if budget_s < _LEAST_S:
            self.found[name] = {"error": "no time was left"}
        else:
            print(f"[{begin_s - self.begin_s:4.0f} s] {name}, at most {budget_s:.0f} s", flush=True)
            self.found[name] = self._run(work, budget_s)
        self.found[name]["seconds"] = round(time.monotonic() - begin_s, 1)
        self._write()
        told = {key: part for key, part in self.found[name].items() if key != "parts"}
        print(f"    {_short(told)}", flush=True)

    def _run(self, work: Callable[[Note], Any], budget_s: float) -> dict[str, Any]:
        outcome = self.folder / "section.json"
        outcome.unlink(missing_ok=True)
        process = multiprocessing.get_context("fork").Process(target=_child, args=(work, outcome))
        process.start()
        process.join(budget_s)
        is_late = process.is_alive()
        if is_late:
            process.terminate()  # it writes its results so far
            process.join(_PARTING_S)
            process.kill()
            process.join()
        try:
            found: dict[str, Any] = json.loads(outcome.read_text())
        except (OSError, ValueError):
            found = {}
        outcome.unlink(missing_ok=True)
        if is_late:
            found.setdefault("error", f"stopped after {budget_s:.0f} s")
        elif process.exitcode and "error" not in found:
            found["error"] = f"its process ended with status {process.exitcode}"
        return found

    def _write(self) -> None:
        """All results; curves, which `duodec bench` reads, in a file of their own, too."""
        curves: dict[str, Any] = {}
        for section in self.found.values():
            for name, part in section.get("parts", {}).items():
                curves |= part if name.startswith(CURVES) else {}
        for name, content in (("gpu.json", self.found), ("curves.json", curves)):
            path = self.folder / name
            path.with_suffix(".new").write_text(json.dumps(content, indent=1))
            path.with_suffix(".new").replace(path)


def _child(work: Callable[[Note], Any], outcome: Path) -> None:
    faulthandler.enable()
    signal.signal(signal.SIGTERM, _out_of_time)
    found: dict[str, Any] = {}

    def save() -> None:
        if WARNINGS:
            found["warnings"] = list(WARNINGS)
        new = outcome.with_suffix(".new")
        new.write_text(json.dumps(found))
        new.replace(outcome)

    def note(name: str, part: Any) -> None:
        found.setdefault("parts", {})[name] = part
        print(f"    {name}: {_short(part)}", flush=True)
        save()

    try:
        result = work(note)
        if result is not None:
            found["found"] = result
    except BaseException as error:  # noqa: BLE001  the other sections continue
        found["error"] = f"{type(error).__name__}: {error}"
        found["where"] = traceback.format_exc().splitlines()[-7:]
    save()
    os._exit(0)  # a broken context may hang or abort during cleanup


class OutOfTime(BaseException):
    """A section's budget was spent. Not an Exception, which the interrupted code might handle."""


def _out_of_time(*_: object) -> None:
    raise OutOfTime("its budget was spent")


def attempt(note: Note, parts: Mapping[str, Callable[[], Any]]) -> None:
    """Note the result of each part, or its error."""
    for name, work in parts.items():
        begin_s = time.monotonic()
        try:
            found = work()
        except Exception as error:  # noqa: BLE001
            found = {"error": f"{type(error).__name__}: {error}"}
        note(name, found)
        print(f"    {name}: {time.monotonic() - begin_s:.1f} s", flush=True)


def _short(found: Any) -> str:
    text = json.dumps(found)
    return text if len(text) < _SHOWN else f"{text[:_SHOWN]} ..."

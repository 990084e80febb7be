"""Keep a run's folder: every record is on the disk before the next one is measured.

``generations.jsonl`` grows by a line a generation, after a first line with the run's settings;
``results.json`` is made from it when the run ends or is interrupted, ``report.html`` when it ends.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duodec.errors import BadOption, ResultsUnreadable
from duodec_lab.bench.results import JOURNAL, RESULTS, SCHEMA_VERSION, Generation

_ROOM_BYTES = 4 << 20  # more than any record takes


class Journal:
    """The records of a run, in memory and on the disk."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Start a run. Raises BadOption if the folder cannot be used, or holds another run."""
        self.folder = folder
        self.generations: list[Generation] = []
        if (folder / JOURNAL).exists() or (folder / RESULTS).exists():
            raise BadOption(
                f"{folder} holds a benchmark already; continue it with --resume, or name another "
                "folder with --output"
            )
        _make(folder)
        head = {"schema_version": SCHEMA_VERSION, "settings": settings}
        self._append(head)

    @classmethod
    def resume(cls, folder: Path, settings: Mapping[str, Any]) -> Journal:
        """Continue the run in ``folder``. Raises BadOption if its settings differ,
        ResultsUnreadable if its journal is broken."""
        path = folder / JOURNAL
        if not path.exists():
            raise BadOption(f"{folder} holds no benchmark to continue; leave out --resume")
        journal = cls.__new__(cls)
        journal.folder = folder
        head, journal.generations = _read(path)
        differing = sorted(
            name
            for name in {*head, *settings}
            if name not in _MAY_DIFFER and _plain(settings.get(name)) != head.get(name)
        )
        if differing:
            raise BadOption(
                f"{folder} was measured with other settings ({', '.join(differing)}); use the "
                "same, or name another folder with --output"
            )
        return journal

    def keep(self, generation: Generation) -> None:
        """Append a record. Raises OSError; earlier records stay."""
        self._append(generation.as_json())
        self.generations.append(generation)

    def discard(self) -> None:
        """Remove the folder of a run that measured nothing."""
        (self.folder / JOURNAL).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it holds other files
            self.folder.rmdir()

    def check_room(self) -> None:
        """Raises OSError if the disk is too full to keep another record."""
        if shutil.disk_usage(self.folder).free < _ROOM_BYTES:
            raise OSError(28, "No space left on device", str(self.folder))

    def _append(self, record: Mapping[str, Any]) -> None:
        with (self.folder / JOURNAL).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


_MAY_DIFFER = {"command", "started", "is_complete"}


def _read(path: Path) -> tuple[dict[str, Any], list[Generation]]:
    """The settings and the records; a truncated last line is removed from the file."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        path.write_text("".join(lines[:-1]), encoding="utf-8")
        lines.pop()
    try:
        head, *records = [json.loads(line) for line in lines]
        if head["schema_version"] != SCHEMA_VERSION:
            raise ResultsUnreadable(
                f"{path} has schema version {head['schema_version']}, and this duodec writes "
                f"{SCHEMA_VERSION}; measure anew into another folder"
            )
        return head["settings"], [Generation.from_json(record) for record in records]
    except (KeyError, TypeError, ValueError) as error:
        raise ResultsUnreadable(
            f"{path} is broken ({error}); measure anew into another folder"
        ) from error


def _plain(value: Any) -> Any:
    """A value after a round trip through JSON."""
    return json.loads(json.dumps(value))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadOption(
            f"{folder} cannot be made ({error.strerror}); name another folder with --output"
        ) from error

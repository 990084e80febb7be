"""Keep a distillation's files: a folder beside the result, in which every write is whole."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duodec.errors import BadOption
from duodec.machine.files import replacing


@dataclass(frozen=True)
class Folder:
    """Where one distillation keeps its recording, its checkpoint and its candidate."""

    path: Path

    @classmethod
    def beside(cls, output: Path) -> Folder:
        """The folder of this result, made if needed. Raises BadOption where that cannot be."""
        folder = cls(output.with_name(f"{output.name}.distill"))
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(folder.path, error) from error
        if not os.access(folder.path, os.W_OK | os.X_OK):
            raise BadOption(f"cannot write in {folder.path}; name another place with --output")
        return folder

    def leave_if_empty(self) -> None:
        """Remove a folder that was made for nothing."""
        with suppress(OSError):
            self.path.rmdir()

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.json"

    @property
    def written_prompts(self) -> Path:
        return self.path / "prompts.json"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.pt"

    @property
    def candidate(self) -> Path:
        return self.path / "candidate.gguf"

    @property
    def result(self) -> Path:
        return self.path / "result.json"

    def shard(self, number: int) -> Path:
        return self.path / f"shard-{number:05}.npz"

    def states(self, number: int) -> Path:
        """The target's hidden states of a shard's tokens."""
        return self.path / f"states-{number:05}.npy"


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write an object as JSON, whole or not at all."""
    with replacing(path) as part:
        part.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any] | None:
    """An object of our own; None if the file is not there. Raises BadOption if it is damaged."""
    try:
        record = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise BadOption(
            f"{path} cannot be read ({error}); delete its folder to begin again"
        ) from error
    if not isinstance(record, dict):
        raise BadOption(f"{path} is not ours; name another --output")
    return record


def _unwritable(path: Path, error: OSError) -> BadOption:
    return BadOption(f"cannot write {path} ({error.strerror}); name another place with --output")

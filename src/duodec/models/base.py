"""Define what the models' modules share: model files, aliases and their sources."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Progress = Callable[[int, int], None]  # (bytes done, bytes in all)


WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")


@dataclass(frozen=True)
class ModelFile:
    """Hold a model that is on this machine: a GGUF file, or a folder of safetensors."""

    path: Path
    reference: str  # as the user wrote it
    source: str  # for people: "file", "hub owner/repo@commit", "package x 1.0", "bundled"
    license: str | None  # an SPDX name, if known
    sha256: str | None  # set only if it is pinned; then it was checked

    @property
    def num_bytes(self) -> int:
        """Return the size of its files on the disk."""
        if not self.path.is_dir():
            return self.path.stat().st_size
        return sum(file.stat().st_size for file in weight_files(self.path))


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a model's folder."""
    return sorted(item for item in folder.iterdir() if WEIGHTS.fullmatch(item.name))


@dataclass(frozen=True)
class CachedModel:
    """Describe a model that `duodec list` lists: an alias, or a file in the hub's cache."""

    name: str
    path: Path | None  # None if it is not on this machine
    num_bytes: int
    license: str | None
    source: str

    @property
    def is_present(self) -> bool:
        return self.path is not None


class Source(Protocol):
    """Define a place that an alias comes from."""

    @property
    def description(self) -> str:
        """Return the place, in words for people."""

    def cached(self, alias: Alias) -> Path | None:
        """Return the file if it is on the disk, checked or not; never uses the network."""

    def fetch(self, alias: Alias, on_progress: Progress | None) -> Path:
        """Put the file on the disk. Without ``on_progress``, show the progress on stderr, if that
        is a terminal. Raises a DuodecError."""


@dataclass(frozen=True)
class Alias:
    """Name a model that we know, with its content pinned."""

    name: str
    num_bytes: int
    sha256: str
    license: str
    sources: tuple[Source, ...]  # in the order they are tried
    draft: str | None = None  # alias of its default draft

    @property
    def key(self) -> str:
        """Return the name of its files in our cache."""
        return f"{self.name}-{self.sha256[:8]}"

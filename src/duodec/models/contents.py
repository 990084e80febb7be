"""Check a file's content: whether it is a GGUF model, and the one that an alias pins."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from duodec.errors import ChecksumMismatch, ModelUnreadable
from duodec.machine.files import cache_folder
from duodec.models.base import Alias

CHUNK_BYTES = 1 << 20
_GGUF_MAGIC = b"GGUF"


def check_gguf(path: Path) -> Path:
    """Return the path, if it is a GGUF file. Raises ModelUnreadable."""
    if path.is_dir():
        inside = sorted(path.glob("*.gguf"))
        hint = f"name a file in it, such as {inside[0]}" if inside else "name a .gguf file"
        raise ModelUnreadable(f"{path} is a folder; {hint}")
    try:
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except OSError as error:
        raise ModelUnreadable(f"cannot read {path}: {error.strerror}; check its owner") from error
    if magic != _GGUF_MAGIC:
        raise ModelUnreadable(f"{path} is not a GGUF file; give one, or a hub repository of one")
    return path


def check_content(path: Path, alias: Alias) -> Path:
    """Return the path, if its content is the pinned one.

    Its size is checked each time, its SHA-256 only if this file was not found correct before, or
    has changed since: see `Note`. Raises ChecksumMismatch.
    """
    status = path.stat()
    if status.st_size == alias.num_bytes:
        note = CachedCheck("checked", path, alias.sha256)
        if note.holds():
            return path
        with path.open("rb") as file:
            found = hash_rest(file).hexdigest()
        if found == alias.sha256:
            note.write()
            return path
        fault = f"SHA-256 {found}, expected {alias.sha256}"
    else:
        fault = f"{status.st_size} bytes, expected {alias.num_bytes} of SHA-256 {alias.sha256}"
    raise ChecksumMismatch(f"{path} has {fault}; delete it to have {alias.name} fetched again")


@dataclass(frozen=True)
class CachedCheck:
    """Record in our cache a finding on a file, or on files, in their present state.

    The record holds for the same files, by device and inode, with unchanged sizes and times. Only
    the system sets the inode's change time, at each write and rename: restoring size and
    modification time does not restore the record. It cannot detect a disk that returns other bytes
    than were written, or a clock that was turned back.
    """

    kind: str
    path: Path
    finding: str
    others: tuple[Path, ...] = ()

    def holds(self) -> bool:
        """Return whether the note was written and nothing has changed since."""
        try:
            memo = json.loads(self._file.read_text(encoding="utf-8"))
            return bool(memo == [self._states(), self.finding])
        except (OSError, ValueError):
            return False

    def write(self) -> None:
        """Write the note; if that fails, the next run checks again."""
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            words = json.dumps([self._states(), self.finding])
            self._file.write_text(words, encoding="utf-8")

    def _states(self) -> list[list[int]]:
        found = [path.stat() for path in (self.path, *self.others)]
        return [[s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns] for s in found]

    @property
    def _file(self) -> Path:
        name = hashlib.sha256(str(self.path.absolute()).encode()).hexdigest()[:16]
        return cache_folder() / self.kind / f"{name}.json"


def hash_rest(file: BinaryIO) -> hashlib._Hash:
    """Return the SHA-256 of a file from its current position."""
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
    return digest

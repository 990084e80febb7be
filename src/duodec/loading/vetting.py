"""Vet model files that are not pinned: their header first, then a trial in a limited process.

llama.cpp aborts the process on some damaged files. So a child process first loads a file and
computes a little; a failure is reported as ModelUnreadable. Each file is tried once: see `Note`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import IO

from duodec import errors
from duodec.backends.llamacpp.checks.load_probe import (
    MODEL,
    PROJECTOR,
    REFUSED,
    VOCABULARY,
)
from duodec.backends.llamacpp.checks.self_test import installed_version
from duodec.backends.llamacpp.gguf.checks import check_header
from duodec.backends.llamacpp.model import refuse_encoder
from duodec.errors import DuodecError, ModelUnreadable
from duodec.loading.backends import TargetFiles
from duodec.loading.resolve import ResolvedTarget
from duodec.machine.processes import NO_GPU
from duodec.models import ModelFile
from duodec.models.contents import CachedCheck
from duodec.models.downloads.hub import parts_of

LEAST_S, BYTES_PER_S = 15.0, 10e6  # the limit of a trial
BOOT = """\
import sys
arguments, sys.path[:] = sys.argv[1:4], sys.argv[4:]
from duodec.backends.llamacpp.checks.load_probe import main
main(*arguments)
"""
# These appear in llama.cpp's log.
_OF_HEADER, _REFUSAL = "gguf_init_from_reader: ", "error loading model: "
_BY_LLAMA = "cannot be loaded by llama.cpp"  # this appears in our message
_LONGEST = 160  # longest message of llama.cpp, in characters


def vetted_files(target: ResolvedTarget) -> TargetFiles:
    """Return a target's files to load: those that its backend has llama.cpp read are tried. A bad
    projector that was found for the target is left out. Raises ModelUnreadable, or what a trial
    raised."""
    files, reads = target.files, target.backend.llama_reads
    if reads is None:
        return files
    if files.file.path.is_file():
        refuse_encoder(files.file.path)
    vetted(files.file, vocabulary_only=reads == "vocabulary")
    if reads == "vocabulary":
        return files
    if files.heads:
        vetted_head(files.heads, files.file)
    try:
        if files.mmproj:
            vetted_projector(files.mmproj, files.file)
    except DuodecError as error:
        if target.config.mmproj != "auto":
            raise
        return replace(files, mmproj=None, no_pictures=error)
    return files


def vetted(file: ModelFile, *, vocabulary_only: bool = False) -> ModelFile:
    """Return the file, if llama.cpp can load it. Raises ModelUnreadable, or what the trial raised.

    A file whose content is pinned is trusted.
    """
    if file.sha256 is not None or not file.path.is_file():
        return file
    parts = [path for path in parts_of(file.path) if path.is_file()]
    finding = VOCABULARY if vocabulary_only else MODEL
    note = CachedCheck(f"tried-{finding}", file.path, f"survived {_versions()}", tuple(parts))
    if note.holds():
        return file
    for path in parts:
        check_header(path)
    try_file(file.path, _bytes(parts), finding)
    note.write()
    return file


def vetted_head(path: Path, target: ModelFile) -> Path:
    """Return a file, if llama.cpp can compute it as a head of this vetted target. Raises
    ModelUnreadable, or what the trial raised."""
    return _vetted_with("tried-head", path, target, str(path.absolute()))


def vetted_projector(path: Path, target: ModelFile) -> Path:
    """Return a file, if this vetted target sees pictures with it. Raises ModelUnreadable, or what
    the trial raised."""
    return _vetted_with("tried-mmproj", path, target, f"{PROJECTOR}{path.absolute()}")


def _vetted_with(kind: str, path: Path, target: ModelFile, part: str) -> Path:
    """Return a file that was tried with its target."""
    parts = [own for own in parts_of(target.path) if own.is_file()]
    note = CachedCheck(kind, path, f"survived {_versions()}", tuple(parts))
    if note.holds():
        return path
    check_header(path)
    try_file(target.path, _bytes([path, *parts]), part, tried=path)
    note.write()
    return path


def _bytes(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def _versions() -> str:
    """Return the versions: others may crash where these do not, or detect more errors. Raises
    BackendUnavailable."""
    return f"llama-cpp-python {installed_version()}, duodec {version('duodec')}"


def try_file(path: Path, num_bytes: int, part: str, *, tried: Path | None = None) -> None:
    """Try a part of a model's file, or a head for it; then the head is to blame."""
    arguments, path = [str(path), str(num_bytes), part], tried or path
    most_s = LEAST_S + num_bytes / BYTES_PER_S
    with tempfile.TemporaryFile() as log:
        try:
            status, said = _tried(arguments, log, most_s)
        except subprocess.TimeoutExpired as error:
            raise ModelUnreadable(
                f"{path} was not loaded within {most_s:.0f} s; it is damaged, or on a disk that "
                "is too slow: copy it to a faster one, or download it again"
            ) from error
        log.seek(0)
        words = log.read().decode("utf-8", "replace")
    if status == REFUSED:
        raise _child_error(said.decode("utf-8", "replace"), words)
    if status:
        raise ModelUnreadable(
            f"llama.cpp crashed on {path} ({_reason(words, status)}); it is damaged, or "
            "llama.cpp has a fault: download it again, or update llama-cpp-python"
        )


def _tried(arguments: Sequence[str], log: IO[bytes], most_s: float) -> tuple[int, bytes]:
    """Return how the child ended, and what it printed. Raises subprocess.TimeoutExpired."""
    child = subprocess.run(
        [sys.executable, "-c", BOOT, *arguments, *sys.path],
        env={**os.environ, **NO_GPU, "DUODEC_LLAMA_LOG": "1", "GGML_NO_BACKTRACE": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,  # we pass on the terminal's Ctrl-C
        timeout=most_s,
        check=False,
    )
    return child.returncode, child.stdout


def _child_error(words: str, log: str) -> DuodecError:
    """Return the child's error, with the library's message."""
    name, message = json.loads(words.strip().splitlines()[-1])
    kind = getattr(errors, name)
    assert issubclass(kind, DuodecError), name
    for telling in (_OF_HEADER, _REFUSAL):
        if said := _line_with(log, telling).rpartition(telling)[2]:
            message = message.replace(_BY_LLAMA, f"{_BY_LLAMA} ({said})", 1)
            break
    found: DuodecError = kind(message)
    return found


def _reason(log: str, code: int) -> str:
    """Return why a child died, from its log or the signal."""
    for telling in ("GGML_ASSERT", _REFUSAL, "error"):
        if line := _line_with(log, telling):
            return line
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def _line_with(log: str, words: str) -> str:
    """Return the first line of a log that contains these words, from there on, safe for a
    terminal."""
    line = next((line for line in log.splitlines() if words in line), "")
    shown = "".join(c if c.isprintable() else " " for c in line[line.find(words) :])
    return " ".join(shown[:_LONGEST].split())

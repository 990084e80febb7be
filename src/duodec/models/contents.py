"""What is in a file: a GGUF model or not, and the one that an alias pins or not."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import BinaryIO

from duodec.errors import ChecksumMismatch, ModelUnreadable
from duodec.models.base import Alias
from duodec.models.cache import cache_folder

CHUNK_BYTES = 1 << 20
_GGUF_MAGIC = b"GGUF"


def check_gguf(path: Path) -> Path:
    """The path, if a GGUF file is there. Raises ModelUnreadable."""
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
        raise ModelUnreadable(f"{path} is no GGUF file; give one, or a hub repository of one")
    return path


def check_content(path: Path, alias: Alias) -> Path:
    """The path, if its content is the pinned one.

    Its size is read each time, its SHA-256 only when size or time of change are not
    those of an earlier check. Raises ChecksumMismatch.
    """
    status = path.stat()
    if status.st_size == alias.num_bytes:
        if _was_checked(path, status, alias.sha256):
            return path
        with path.open("rb") as file:
            found = hash_rest(file).hexdigest()
        if found == alias.sha256:
            remember_check(path, alias.sha256)
            return path
        fault = f"SHA-256 {found}, expected {alias.sha256}"
    else:
        fault = f"{status.st_size} bytes, expected {alias.num_bytes} of SHA-256 {alias.sha256}"
    raise ChecksumMismatch(f"{path} has {fault}; delete it to have {alias.name} fetched again")


def _was_checked(path: Path, status: os.stat_result, sha256: str) -> bool:
    try:
        memo = json.loads(_memo_file(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(memo == [status.st_size, status.st_mtime_ns, sha256])


def remember_check(path: Path, sha256: str) -> None:
    """Note that the file was found to have this content."""
    status = path.stat()
    memo = _memo_file(path)
    # only a memo: without it the next run reads the file once more
    with contextlib.suppress(OSError):
        memo.parent.mkdir(parents=True, exist_ok=True)
        memo.write_text(json.dumps([status.st_size, status.st_mtime_ns, sha256]), encoding="utf-8")


def _memo_file(path: Path) -> Path:
    name = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:16]
    return cache_folder() / "checked" / f"{name}.json"


def hash_rest(file: BinaryIO) -> hashlib._Hash:
    """The SHA-256 of a file from where it stands."""
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
    return digest

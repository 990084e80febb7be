"""Build a datastore from the user's files: their tokens, and the order of all suffixes."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

import numpy as np
from numpy.typing import NDArray

from duodec.datastores.places import fingerprint
from duodec.drafting.datastore_file import MAGIC, Header, file_parts
from duodec.errors import BackendUnavailable, BadOption
from duodec.machine.files import is_full, replacing
from duodec.machine.install import install_command
from duodec_lab.datastores.corpus import Corpus
from duodec_lab.datastores.documents import sources

if TYPE_CHECKING:
    from duodec.core.tokenizers import Tokenizer

Stage = Literal["reading", "sorting", "writing"]
Progress = Callable[[Stage, int, int], None]  # bytes done and bytes in all; none while sorting
Sort = Callable[[NDArray[np.uint8]], NDArray[np.int32]]  # bytes to sorted suffixes' offsets

_CHUNK = 1 << 22  # offsets


@dataclass(frozen=True)
class Built:
    """What `build` built."""

    header: Header
    num_bytes: int  # of its file
    num_skipped: int  # files in a folder that are hidden, binary or unreadable
    num_plain_chats: int  # stored without the chat template, which refuses them


def build(
    files: Sequence[Path],
    tokenizer: Tokenizer,
    path: Path,
    *,
    on_progress: Progress = lambda stage, done, total: None,
    today: Callable[[], date] = date.today,
) -> Built:
    """Build a datastore from the text and the chats in files and folders.

    The file at ``path`` is replaced only when all is written: an error or an interruption leaves it
    as it was, and no other file. Raises BadOption for files that cannot be read or hold no text and
    for a place that cannot hold the result, BackendUnavailable if the library that sorts is
    missing, OSError when the disk fills up.
    """
    _check_place(path)
    sort = _divsufsort()
    found, num_skipped = sources(files)
    num_bytes = sum(source.num_bytes for source in found)
    corpus = Corpus(tokenizer, lambda num_read: on_progress("reading", num_read, num_bytes))
    was_read = [corpus.read(source) for source in found]
    if not corpus.num_tokens:
        raise BadOption(f"no text in {_listed(files)}; name files of text or of chats")
    header = Header(
        num_tokens=corpus.num_tokens,
        num_documents=corpus.num_documents,
        num_vocab=tokenizer.num_vocab,
        vocabulary=fingerprint(tokenizer),
        num_files=sum(was_read),
        num_bytes=sum(s.num_bytes for s, is_in in zip(found, was_read, strict=True) if is_in),
        built=today().isoformat(),
    )
    _check_room(path, header)
    on_progress("sorting", 0, len(corpus.tokens))
    positions = _sorted_positions(corpus.tokens, header.token_width, sort)
    with _written(path) as file:
        total = header.numbers(0).stop
        for part in file_parts(header, corpus.tokens, positions):
            on_progress("writing", min(file.tell(), total), total)
            file.write(part)
    return Built(
        header, path.stat().st_size, num_skipped + was_read.count(False), corpus.num_plain_chats
    )


def _listed(files: Sequence[Path]) -> str:
    names = ", ".join(map(str, files[:3]))
    return f"{names} and {len(files) - 3} more" if len(files) > 3 else names


# Sorting and writing


def _divsufsort() -> Sort:
    """Raises BackendUnavailable."""
    try:
        from pydivsufsort import divsufsort
    except (ImportError, OSError) as error:
        raise BackendUnavailable(
            f"a datastore cannot be sorted without the library pydivsufsort ({error}); "
            f"run: {install_command('pydivsufsort')}"
        ) from error
    return cast(Sort, divsufsort)


def _sorted_positions(tokens: bytearray, width: int, sort: Sort) -> NDArray[np.uint32]:
    """The positions of encoded tokens, sorted by the text that begins there.

    All bytes are sorted, and those that begin a token are kept: tokens are big-endian, so texts
    compare as their bytes do. Raises BadOption when memory is short.
    """
    try:
        offsets = sort(np.frombuffer(tokens, dtype=np.uint8))
    except MemoryError as error:
        raise BadOption(
            f"no memory to sort {len(tokens) // width} tokens ({5 * len(tokens) / 1e9:.1f} GB); "
            "name fewer files"
        ) from error
    num_kept = 0
    for begin in range(0, len(offsets), _CHUNK):  # in place: it is the largest array of all
        chunk = offsets[begin : begin + _CHUNK]
        kept = chunk[chunk % width == 0] // width
        offsets[num_kept : num_kept + len(kept)] = kept
        num_kept += len(kept)
    positions: NDArray[np.uint32] = offsets[:num_kept].view(np.uint32)
    return positions


def _check_place(path: Path) -> None:
    """Make the folder of the result. Raises BadOption if we cannot write there, or must not."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            with path.open("rb") as file:
                if file.read(len(MAGIC)) != MAGIC:
                    raise BadOption(f"{path} exists and is not a datastore; name another --output")
    except OSError as error:
        raise _unwritable(path, error) from error
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise _unwritable(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


def _check_room(path: Path, header: Header) -> None:
    needed, free = header.numbers(0).stop, shutil.disk_usage(path.parent).free
    if free < needed:
        raise BadOption(
            f"the disk of {path.parent} has {free / 1e6:.0f} MB free and the datastore needs "
            f"{needed / 1e6:.0f} MB; free space or name another place with --output"
        )


@contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """A file that replaces ``path`` when it is complete, and is removed otherwise."""
    try:
        with replacing(path) as part, part.open("wb") as file:
            yield file
    except OSError as error:
        if is_full(error):
            raise
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> BadOption:
    return BadOption(f"cannot write {path} ({error.strerror}); name another place with --output")

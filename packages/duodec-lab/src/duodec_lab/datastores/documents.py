"""Read files of text and of chats as documents for a datastore.

Only these shapes are interpreted: a `.jsonl` line or a `.json` item with ``messages``, ShareGPT's
``conversations``, Spec-Bench's ``turns``, ``text`` or ``content``. Any other UTF-8 is plain text.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from duodec.chat.template import Message
from duodec.errors import BadOption

_PIECE = 1 << 16  # characters; a tokenizer is slow on much longer strings
_HEAD_BYTES = 1 << 13
_CHAT_KEYS = ("messages", "conversations", "turns")
_TEXT_KEYS = ("text", "content")
_ROLES = {"human": "user", "gpt": "assistant"}  # ShareGPT's names


class NoText(BadOption):
    """A file that cannot be read, or not as UTF-8 text."""


@dataclass(frozen=True)
class Source:
    """A file to read; one found in a folder may turn out not to be text."""

    path: Path
    num_bytes: int
    is_named: bool


@dataclass(frozen=True)
class Text:
    """A plain document, in pieces of about 64 KiB that end at line ends; read once."""

    pieces: Iterable[str]


@dataclass(frozen=True)
class Chat:
    """A document of messages."""

    messages: Sequence[Message]


def sources(paths: Iterable[Path]) -> tuple[list[Source], int]:
    """The files of ``paths``, each once, and how many were skipped. A folder stands for all files
    below it that are not hidden, binary or unreadable.

    Raises NoText for a path that is missing, unreadable or binary itself.
    """
    found: dict[Path, Source] = {}
    num_skipped = 0
    for path in paths:
        with _reading(path):
            is_folder = path.is_dir()
        for file in _below(path) if is_folder else [path]:
            is_named = file is path
            try:
                source = _source(file, is_named)
            except NoText:
                if is_named:
                    raise
                source = None
            if source:
                found.setdefault(file.resolve(), source)
            else:
                num_skipped += 1
    return list(found.values()), num_skipped


def documents(path: Path) -> Iterator[Text | Chat]:
    """The documents of a file, in order.

    Raises NoText, there or while a document is read, and BadOption for a line of a `.jsonl` that
    is not JSON.
    """
    kind = path.suffix.lower()
    # drop a byte order mark, and use the line ends that models write
    with _reading(path), path.open(encoding="utf-8-sig") as file:
        if kind == ".jsonl":
            yield from _lines(path, file)
        elif kind == ".json":
            yield from _items(file.read())
        else:
            yield Text(_file_pieces(path, file))


def pieces(text: str) -> Iterator[str]:
    """A long text in pieces of about 64 KiB."""
    return _pieces(io.StringIO(text))


def _below(folder: Path) -> Iterator[Path]:
    """All files, and the folders that are hidden or unreadable."""
    closed: list[OSError] = []
    for name, folders, files in os.walk(folder, onerror=closed.append):
        hidden = [inner for inner in folders if inner.startswith(".")]
        yield from (Path(name, inner) for inner in hidden)
        folders[:] = sorted(set(folders) - set(hidden))
        yield from (Path(name, file) for file in sorted(files))
    yield from (Path(error.filename) for error in closed)


def _source(path: Path, is_named: bool) -> Source | None:
    """A file as a source; None for a hidden one found in a folder. Raises NoText."""
    if path.name.startswith(".") and not is_named:
        return None
    with _reading(path):
        if path.exists() and not path.is_file():  # a pipe cannot be read twice
            raise NoText(f"{path} is not a regular file; name files or folders of text")
        with path.open("rb") as file:
            if b"\0" in file.read(_HEAD_BYTES):
                raise _binary(path)
            return Source(path, os.fstat(file.fileno()).st_size, is_named)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raises NoText."""
    try:
        yield
    except OSError as error:
        raise NoText(
            f"cannot read {path} ({error.strerror}); name files or folders of text"
        ) from error
    except UnicodeDecodeError as error:
        raise _binary(path) from error


def _binary(path: Path) -> NoText:
    return NoText(f"{path} is not UTF-8 text; leave it out (in a folder such files are skipped)")


def _file_pieces(path: Path, file: TextIO) -> Iterator[str]:
    with _reading(path):
        yield from _pieces(file)


def _pieces(file: TextIO) -> Iterator[str]:
    while piece := file.read(_PIECE) + file.readline(_PIECE):
        yield piece


def _lines(path: Path, file: TextIO) -> Iterator[Text | Chat]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadOption(
                f"{path}, line {number}: broken JSON ({error}); correct or remove the line"
            ) from error
        yield _document(item) or Text(pieces(line))


def _items(text: str) -> Iterator[Text | Chat]:
    """The items of an array, or a single item; any other file is plain text."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        whole = None
    items = whole if isinstance(whole, list) else [whole]
    if not any(map(_document, items)):
        yield Text(pieces(text))
        return
    for item in items:
        yield _document(item) or Text(pieces(json.dumps(item, ensure_ascii=False)))


def _document(item: Any) -> Text | Chat | None:
    """A document in one of the known shapes."""
    if isinstance(item, str):
        return Text(pieces(item))
    if not isinstance(item, dict):
        return None
    for key in _CHAT_KEYS:
        if isinstance(item.get(key), list):
            return Chat([_message(turn) for turn in item[key]])
    for key in _TEXT_KEYS:
        if isinstance(item.get(key), str):
            return Text(pieces(item[key]))
    return None


def _message(turn: Any) -> Message:
    if not isinstance(turn, dict):
        return {"role": "user", "content": _words(turn)}
    role = str(turn.get("role") or turn.get("from") or "user")
    content = _words(turn.get("content", turn.get("value")))
    return {"role": _ROLES.get(role, role), "content": content}


def _words(content: Any) -> str:
    """A message's text; the texts of a list of parts, as in chat interfaces."""
    if isinstance(content, list):
        return "\n".join(_words(part.get("text")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""

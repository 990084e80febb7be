"""Keep the messages of chats in a file, for `duodec distill`, where the operator wants that."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from duodec.chat.template import Message
from duodec.errors import BadOption
from duodec.server.logs import log

MOST_BYTES = 1 << 30  # of a file: clients decide what is written


def _words(content: Any) -> Any:
    """A content without its pictures."""
    if not isinstance(content, list):
        return content
    return "".join(part.get("text", "") for part in content)


class PromptLog:
    """A file with one chat a line, ``{"messages": [...]}``, that only its owner can read.

    ``most_bytes``, or a disk that fills up, end the log, with one warning, and no request. Raises
    BadOption for a file that cannot be written.
    """

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        self._path, self._most_bytes = path, most_bytes
        self._lock, self._is_open = Lock(), True
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
        except OSError as error:
            raise BadOption(
                f"cannot write {path} ({error.strerror}); name another file with --prompt-log"
            ) from error

    def write(self, messages: Sequence[Message]) -> None:
        """Add a chat. From any thread."""
        spoken = [{"role": m.get("role"), "content": _words(m.get("content"))} for m in messages]
        line = json.dumps({"messages": spoken}, ensure_ascii=False) + "\n"
        data = line.encode("utf-8", "replace")
        with self._lock:
            if not self._is_open:
                return
            try:
                with self._path.open("ab") as file:
                    if file.tell() + len(data) > self._most_bytes:
                        self._end(f"it has {self._most_bytes >> 20} MB; move it away, start anew")
                    else:
                        file.write(data)
            except OSError as error:
                self._end(error.strerror)

    def _end(self, why: str | None) -> None:
        self._is_open = False
        log.warning("prompts are no longer kept in %s: %s", self._path, why)

"""Keep what clients say in a file, for `duodec distill`, where the operator asks for that."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from duodec.chat.template import Message
from duodec.errors import BadOption
from duodec.server.logs import log


class PromptLog:
    """A file with one chat a line, ``{"messages": [...]}``, that only its owner can read.

    A disk that fills up ends the log, with one warning, and no request. Raises BadOption for a file
    that cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock, self._is_open = path, Lock(), True
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
        except OSError as error:
            raise BadOption(
                f"cannot write {path} ({error.strerror}); name another file with --prompt-log"
            ) from error

    def write(self, messages: Sequence[Message]) -> None:
        """Add a chat. From any thread."""
        spoken = [{"role": m.get("role"), "content": m.get("content")} for m in messages]
        line = json.dumps({"messages": spoken}, ensure_ascii=False) + "\n"
        with self._lock:
            if not self._is_open:
                return
            try:
                with self._path.open("ab") as file:
                    file.write(line.encode("utf-8", "replace"))
            except OSError as error:
                self._is_open = False
                log.warning("prompts are no longer kept in %s: %s", self._path, error.strerror)

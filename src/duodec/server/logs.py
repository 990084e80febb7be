"""Structured logs on stderr: one line an event, as text for people or as JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any, Literal

LogFormat = Literal["text", "json"]

log = logging.getLogger("duodec.server")

facts: ContextVar[dict[str, Any]] = ContextVar("facts")
"""What the log shall say of the request in work."""


def note(**found: Any) -> None:
    """Add to what the log will say of the request in work, if there is one."""
    facts.get({}).update(found)


class _Lines(logging.Formatter):
    """``time level message key=value ...``"""

    def format(self, record: logging.LogRecord) -> str:
        facts = getattr(record, "facts", {})
        words = [_time(record), record.levelname.lower(), *record.getMessage().splitlines()]
        words += [f"{name}={_shown(value)}" for name, value in facts.items()]
        line = " ".join(words)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _Objects(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            facts["trace"] = self.formatException(record.exc_info)
        return json.dumps(facts, ensure_ascii=False, default=str)


def set_up(form: LogFormat) -> None:
    """Our log and uvicorn's go to stderr, in this form."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Objects() if form == "json" else _Lines())
    ours = logging.getLogger("duodec").level or logging.INFO
    for name, level in (("duodec.server", ours), ("uvicorn", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _shown(value: object) -> str:
    text = str(value)
    is_plain = text.isprintable() and not any(c in text for c in ' "=')
    return text if is_plain else json.dumps(text, ensure_ascii=not text.isprintable())

"""Write completions to stdout, everything else to stderr; no ANSI codes off a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from duodec.core.events import Segment

_RESET = "\x1b[0m"
_DIM, _UNDERLINE, _GREEN_UNDERLINE = "\x1b[2m", "\x1b[4m", "\x1b[4;32m"
_COLOURS = {"ok": "\x1b[32m", "warn": "\x1b[33m", "fail": "\x1b[31m"}


class OutputClosed(Exception):
    """Our stdout was closed by its reader (`| head`)."""


def is_terminal(stream: TextIO) -> bool:
    """Whether this stream is a terminal that supports ANSI codes."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colour(stream: TextIO) -> bool:
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def say(line: str) -> None:
    """One plain line on stderr."""
    print(line, file=sys.stderr, flush=True)


def warn(line: str) -> None:
    """One line about a problem on stderr; line breaks become spaces."""
    say(f"duodec: {' '.join(line.split())}")


def say_dim(line: str) -> None:
    """One line of secondary interest on stderr."""
    say(f"{_DIM}{line}{_RESET}" if has_colour(sys.stderr) else line)


def coloured(verdict: str, width: int) -> str:
    """A verdict (ok, warn, fail) for stdout, padded to ``width``."""
    padded = f"{verdict:<{width}}"
    return f"{_COLOURS[verdict]}{padded}{_RESET}" if has_colour(sys.stdout) else padded


def put(text: str) -> None:
    """Text to stdout, at once. Raises OutputClosed."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise OutputClosed from error


def put_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Aligned columns to stdout; the last one is not padded."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head) - 1)]
    for line in lines:
        cells = [f"{cell:<{width}}" for cell, width in zip(line, widths, strict=False)]
        put("  ".join([*cells, line[-1]]).rstrip() + "\n")


@contextmanager
def status(words: str, *, is_quiet: bool = False) -> Iterator[None]:
    """A spinner on stderr during a wait; nothing off a terminal."""
    if is_quiet or not is_terminal(sys.stderr):
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(words):
        yield


class AnswerWriter:
    """Streams a completion to stdout; with ``show_draft`` accepted drafts are tinted."""

    def __init__(self, *, show_draft: bool = False) -> None:
        self.text = ""  # the text of the current completion so far
        self._tint = ""
        if show_draft and is_terminal(sys.stdout):
            self._tint = _GREEN_UNDERLINE if has_colour(sys.stdout) else _UNDERLINE

    def write(self, segments: Iterable[Segment]) -> None:
        """Raises OutputClosed."""
        painted = []
        for segment in segments:
            self.text += segment.text
            is_tinted = self._tint and segment.is_drafted
            painted.append(f"{self._tint}{segment.text}{_RESET}" if is_tinted else segment.text)
        put("".join(painted))

    def end(self) -> None:
        """End the completion with a line break."""
        put("\n")
        self.text = ""

    def close(self) -> None:
        """Leave the terminal as it was; can be called twice."""

    def warn(self, line: str) -> None:
        """A warning in the middle of a completion, on its own line."""
        is_inside_line = self.text and not self.text.endswith("\n")
        if is_inside_line and is_terminal(sys.stdout) and is_terminal(sys.stderr):
            say("")
        warn(line)

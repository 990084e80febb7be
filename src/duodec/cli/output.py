"""Write results to stdout, everything else to stderr; no ANSI codes off a terminal."""

from __future__ import annotations

import os
import shutil
import sys
import termios
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from duodec.cli.spelling import as_options
from duodec.core.events import Segment

_RESET = "\x1b[0m"
_DIM, _UNDERLINE, _GREEN_UNDERLINE = "\x1b[2m", "\x1b[4m", "\x1b[4;32m"
_COLOURS = {"ok": "\x1b[32m", "warn": "\x1b[33m", "fail": "\x1b[31m"}


_LEAST_BESIDE = 20  # columns; in fewer the terminal breaks the lines


class OutputClosed(Exception):
    """Raised if the reader of our stdout closed it (`| head`)."""


def is_terminal(stream: TextIO) -> bool:
    """Return whether this stream is a terminal that supports ANSI codes."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colour(stream: TextIO) -> bool:
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def say(line: str, *, hang: int | None = None, is_copied: bool = False) -> None:
    """Print one plain line on stderr. On a terminal it is wrapped at words: further lines begin at
    column ``hang``, by default where the first does. A line that is to be copied stays whole."""
    print(line if is_copied else _wrapped(line, hang), file=sys.stderr, flush=True)


def warn(line: str) -> None:
    """Print one line about a problem on stderr, with options for the library's parameters; line
    breaks become spaces. It often ends in a command, and stays whole."""
    say(f"duodec: {as_options(' '.join(line.split()))}", is_copied=True)


def say_dim(line: str, *, is_copied: bool = False) -> None:
    """Print one line of secondary interest on stderr, wrapped as in `say`."""
    shown = line if is_copied else _wrapped(line)
    say(f"{_DIM}{shown}{_RESET}" if has_colour(sys.stderr) else shown, is_copied=True)


def _wrapped(line: str, hang: int | None = None) -> str:
    """Return a line for stderr, broken into lines if it is too long for the terminal."""
    columns = shutil.get_terminal_size().columns
    if not is_terminal(sys.stderr) or len(line) <= columns:
        return line
    indent = " " * (len(line) - len(line.lstrip()) if hang is None else hang)
    if columns - len(indent) <= _LEAST_BESIDE:
        return line
    return "\n".join(
        textwrap.wrap(
            line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
    )


def coloured(verdict: str, width: int) -> str:
    """Return a verdict (ok, warn, fail) for stdout, padded to ``width``."""
    padded = f"{verdict:<{width}}"
    return f"{_COLOURS[verdict]}{padded}{_RESET}" if has_colour(sys.stdout) else padded


def put_beside(head: str, width: int, text: str) -> None:
    """Print text to stdout to the right of a head that takes ``width`` columns; on a terminal its
    lines stay to the right of it. Raises OutputClosed."""
    left = shutil.get_terminal_size().columns - width
    lines = [text]
    if is_terminal(sys.stdout) and left > _LEAST_BESIDE:
        lines = textwrap.wrap(text, left, break_long_words=False, break_on_hyphens=False)
    put(head + f"\n{'':{width}}".join(lines) + "\n")


def put(text: str) -> None:
    """Print text to stdout at once. Raises OutputClosed."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise OutputClosed from error


def put_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns to stdout; the last one is not padded. If a terminal is too narrow, the
    first cell of a row gets its own line."""
    lines = [head, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head) - 1)]
    longest = max(sum(widths) + 2 * len(widths) + len(line[-1]) for line in lines)
    is_folded = is_terminal(sys.stdout) and longest > shutil.get_terminal_size().columns
    if is_folded:
        widths[0] = 2
    for line in lines:
        cells = [f"{cell:<{width}}" for cell, width in zip(line, widths, strict=False)]
        if is_folded:
            put(f"{line[0]}\n")
            cells[0] = " " * widths[0]
        put("  ".join([*cells, line[-1]]).rstrip() + "\n")


@contextmanager
def status(words: str, *, is_quiet: bool = False) -> Iterator[None]:
    """Show a spinner on stderr during a wait, on a terminal only."""
    if is_quiet or not is_terminal(sys.stderr):
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(words):
        yield


class CompletionWriter:
    """Stream a completion to stdout; with ``show_draft`` accepted drafts are tinted."""

    def __init__(self, *, show_draft: bool = False) -> None:
        self.text = ""  # text of the current completion so far
        self._tint = ""
        if show_draft and is_terminal(sys.stdout):
            self._tint = _GREEN_UNDERLINE if has_colour(sys.stdout) else _UNDERLINE

    def write(self, segments: Iterable[Segment]) -> None:
        """Write segments. Raises OutputClosed."""
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
        """Restore the terminal. It can be called twice."""

    def warn(self, line: str) -> None:
        """Print a warning in the middle of a completion, on its own line."""
        is_inside_line = self.text and not self.text.endswith("\n")
        if is_inside_line and is_terminal(sys.stdout) and is_terminal(sys.stderr):
            say("")
        warn(line)


def size(num_bytes: int) -> str:
    """Format bytes for people."""
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"


def one_line(text: str) -> str:
    """Return text from a file without characters that move a terminal's cursor."""
    return "".join(c if c.isprintable() else " " for c in text)


@contextmanager
def unechoed_keys() -> Iterator[None]:
    """While entered, do not show typed keys among the output; the next reader of the terminal gets
    them. Ctrl-C works as always."""
    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
    except (AttributeError, OSError, ValueError, termios.error):
        yield  # no terminal
        return
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(terminal, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)


# Progress

OnProgress = Callable[[str, int, int], None]
"""A callback with what is being done, the amount done, and the total."""


# These are the beginnings of their words.
_STAGES = ("loading", "recording plain", "recording", "training", "reading", "sorting", "writing")


@contextmanager
def progress_bar(*, is_quiet: bool) -> Iterator[OnProgress]:
    """Show progress on stderr: a bar with the time left, or off a terminal a line now and then."""
    if is_quiet:
        yield lambda words, done, total: None
    elif not is_terminal(sys.stderr):
        yield _Lines()
    else:
        from rich import progress
        from rich.console import Console

        with progress.Progress(
            progress.TextColumn("{task.description:<28}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TextColumn("left"),
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        ) as bar:
            stages: dict[str, progress.TaskID] = {}

            def show(words: str, done: int, total: int) -> None:
                stage = next((word for word in _STAGES if words.startswith(word)), "")
                if stage not in stages:  # each stage has its own speed
                    for task in stages.values():
                        bar.update(task, visible=False)
                    stages[stage] = bar.add_task(words, total=total)
                bar.update(stages[stage], description=words, completed=done, total=total)

            yield show


class _Lines:
    """Print a line whenever another prompt begins."""

    def __init__(self) -> None:
        self._last = (-1, -1)

    def __call__(self, words: str, done: int, total: int) -> None:
        if (done, total) != self._last:
            self._last = (done, total)
            say(f"{done}/{total}  {words}")

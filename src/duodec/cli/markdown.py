"""Show a completion's Markdown on a terminal while it streams: rendered, and wrapped at words."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from time import perf_counter
from typing import TYPE_CHECKING, TextIO

from duodec.cli.output import CompletionWriter, is_terminal, put
from duodec.core.events import Segment

if TYPE_CHECKING:
    from rich.live import Live
    from rich.markdown import Markdown

REFRESH_S = 0.06  # seconds between two drawings of the block that is being written
_MARGIN = 2  # lines of the terminal that stay free


def writer_for(*, show_draft: bool, is_plain: bool) -> CompletionWriter:
    """Return a writer that renders on a terminal. In a pipe, on request, and where drafts are
    tinted, it writes the text as it is."""
    if is_plain or show_draft or not is_terminal(sys.stdout):
        return CompletionWriter(show_draft=show_draft)
    return MarkdownWriter(sys.stdout)


def num_finished(text: str) -> int:
    """Return the length of the leading blocks that further text cannot change: up to the last empty
    line that is not in a fence of code."""
    at, found, fence = 0, 0, ""
    for line in text.splitlines(keepends=True):
        at += len(line)
        bare = line.strip()
        if fence:
            fence = "" if bare == fence else fence
        elif bare.startswith(("```", "~~~")):
            fence = bare[:3]
        elif not bare and line.endswith("\n"):
            found = at
    return found


def markdown(text: str) -> Markdown:
    """Parse text as Markdown. Tags such as <b> are text; rich would leave them out."""
    from markdown_it import MarkdownIt
    from rich.markdown import Markdown

    found = Markdown("")
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])
    found.parsed = parser.parse(text)
    return found


class MarkdownWriter(CompletionWriter):
    """Print each block once it is complete, and redraw the one that is being written."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        super().__init__()
        self._console = Console(file=stream, highlight=False)
        self._live: Live | None = None
        self._num_printed = 0  # characters of the text
        self._drawn_s = -REFRESH_S

    def write(self, segments: Iterable[Segment]) -> None:
        self.text += "".join(segment.text for segment in segments)
        rest = self.text[self._num_printed :]
        if size := num_finished(rest):
            self._clear()
            self._print(rest[:size])
            self._num_printed += size
        elif perf_counter() - self._drawn_s < REFRESH_S:
            return
        self._draw(rest[size:])

    def end(self) -> None:
        self._clear()
        rest = self.text[self._num_printed :]
        if rest.strip() or not self.text:
            self._print(rest)
        self.text, self._num_printed = "", 0

    def warn(self, line: str) -> None:
        self._clear()
        super().warn(line)

    def _print(self, block: str) -> None:
        """Print a whole block and an empty line. Raises OutputClosed."""
        with self._console.capture() as capture:
            self._console.print(markdown(block))
        put(f"{capture.get().rstrip()}\n\n" if block.strip() else "")

    def _draw(self, block: str) -> None:
        """Draw the end of an unfinished block, as much of it as the terminal shows."""
        from rich.live import Live
        from rich.text import Text

        self._drawn_s = perf_counter()
        lines = self._console.render_lines(markdown(block), pad=False)
        shown = Text("\n").join(
            Text.assemble(*((part.text, part.style or "") for part in line))
            for line in lines[-max(1, self._console.height - _MARGIN) :]
        )
        if self._live is None:
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True, redirect_stderr=False
            )
            self._live.start()
        self._live.update(shown, refresh=True)

    def _clear(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def close(self) -> None:
        self._clear()

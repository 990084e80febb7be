"""Show the progress of long work on stderr: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from duodec.cli.output import is_terminal, say

OnProgress = Callable[[str, int, int], None]
"""What is being done, the amount done, and the total."""


_STAGES = ("recording plain", "recording", "training")  # beginnings of their words


@contextmanager
def progress_bar(*, is_quiet: bool) -> Iterator[OnProgress]:
    """Progress on stderr: a bar with the time left, or off a terminal a line now and then."""
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
    """A line whenever another prompt begins."""

    def __init__(self) -> None:
        self._last = (-1, -1)

    def __call__(self, words: str, done: int, total: int) -> None:
        if (done, total) != self._last:
            self._last = (done, total)
            say(f"{done}/{total}  {words}")

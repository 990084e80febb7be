"""Report a download's progress to the caller, or draw it on a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from duodec.models.base import Alias, Progress


@contextlib.contextmanager
def download_progress(alias: Alias, on_progress: Progress | None) -> Iterator[Progress]:
    """The receiver of a download's progress: the caller, or stderr if it is a terminal."""
    if on_progress is not None:
        yield on_progress
    elif sys.stderr.isatty():
        with _bar(alias) as progress:
            yield progress
    else:
        yield lambda done, total: None


@contextlib.contextmanager
def _bar(alias: Alias) -> Iterator[Progress]:
    from rich import progress as rich_progress
    from rich.console import Console

    with rich_progress.Progress(
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(),
        rich_progress.TransferSpeedColumn(),
        rich_progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(f"{alias.name} ({alias.license})", total=alias.num_bytes)
        yield lambda done, total: bar.update(task, completed=done, total=total)

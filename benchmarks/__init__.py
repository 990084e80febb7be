"""Measure what `duodec bench` does not; `python -m benchmarks` lists the experiments.

`table.py` names them, `__main__.py` runs one and writes its result, all in one format.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
SCRATCH = Path(__file__).parent / "scratch"

Figures = Mapping[str, Any]
"""What an experiment found, as JSON."""


class Refuted(Exception):
    """What an experiment must show, it does not show: in a line. Its figures are written."""

    def __init__(self, words: str, figures: Figures) -> None:
        super().__init__(words)
        self.figures = figures


def figures_of(result: str) -> dict[str, Any]:
    """What an earlier run found, for one that goes on from it. Raises OSError."""
    figures: dict[str, Any] = json.loads((RESULTS / f"{result}.json").read_text("utf-8"))["figures"]
    return figures


def in_process(*command: str, **variables: str) -> Any:
    """What Python prints last, as JSON, when it runs this in a process of its own, with these
    variables in its environment."""
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def markdown(rows: Iterable[Iterable[object]]) -> str:
    """A table, its head first."""
    head, *others = ([str(cell) for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *others))

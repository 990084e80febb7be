"""Measure what `duodec bench` does not; `python -m benchmarks` lists the experiments.

`table.py` names them, `__main__.py` runs one and writes its result, all in one format.
"""

from collections.abc import Mapping
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

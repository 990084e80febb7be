"""Make the documentation's figures that `duodec bench` does not."""

from pathlib import Path

RESULTS = Path(__file__).parent / "results"
SCRATCH = Path(__file__).parent / "scratch"

"""Measurements: what the documentation's figures are made by, beside `duodec bench`."""

from pathlib import Path

RESULTS = Path(__file__).parent / "results"
SCRATCH = Path(__file__).parent / "scratch"

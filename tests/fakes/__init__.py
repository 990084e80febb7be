"""Stand-ins that tests share, and where the repository is."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent

"""The checks of `duodec doctor`, one `Check` each."""

from duodec.cli.checks.check import Check, failed

__all__ = ["Check", "failed"]

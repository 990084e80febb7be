"""Was llama.cpp built for this processor? Asked before the library is touched."""

from __future__ import annotations


def check_build() -> None:
    """Raises BackendUnavailable when the installed build was made for another processor."""

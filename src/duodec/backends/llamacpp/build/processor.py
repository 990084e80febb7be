"""Check whether llama.cpp was built for this processor, before the library is loaded.

A native build dies with an illegal instruction on a processor that lacks what the builder's had, so
it is never loaded blindly: `make setup` and `duodec setup` leave a note of the processor.
"""

from __future__ import annotations

import sys
from pathlib import Path

from duodec.backends.cpu import cpu_key
from duodec.errors import BackendUnavailable

NOTE = "duodec-cpu-key"


def check_build() -> None:
    """Raise BackendUnavailable when the installed build was made for another processor."""
    note = Path(sys.prefix) / NOTE
    if not note.is_file():
        return  # not installed by us: a package index's build, or the user's own
    built_for = note.read_text().strip()
    if built_for != cpu_key():
        raise BackendUnavailable(
            f"llama.cpp was built for another processor ({built_for}, this one is {cpu_key()}); "
            "run `make setup` (in a checkout) or `duodec setup` to build it for this one"
        )

"""Compile the inner loops in `native/` and use them, where they can be."""

from __future__ import annotations

from contextlib import suppress

from duodec.errors import warn
from duodec.machine.compiler import compiled
from duodec.machine.ownership import Unsafe
from duodec.models.cache import cache_folder
from duodec.native import library as native


def use_native() -> bool:
    """Use the compiled inner loops from now on, if they can be: they are compiled once, in a
    second or two. Otherwise Python does the same, slower."""
    path = None
    try:
        with suppress(RuntimeError):  # the user has no home
            path = compiled(native.SOURCES, cache_folder() / "native", native.SIZES)
    except Unsafe as error:
        warn(str(error))
    try:
        native.use(path)
    except OSError:  # it is no library, or not whole: it is compiled anew next time
        with suppress(OSError):
            path.unlink() if path else None
    return native.library() is not None

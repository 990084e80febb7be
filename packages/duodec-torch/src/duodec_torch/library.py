"""Import torch and transformers in one place, and shorten their errors to one line.

Importing this module loads them; it raises BackendUnavailable if they are missing. So nothing
outside this package imports one of its modules before a torch target is requested.
"""

from __future__ import annotations

from duodec.errors import BackendUnavailable
from duodec.machine.install import needs_command

try:
    import torch as torch
    import transformers as transformers
except (ImportError, OSError) as error:
    raise BackendUnavailable(
        f"torch and transformers cannot be loaded ({error}); run: {needs_command('duodec-torch')}"
    ) from error


def first_line(error: Exception) -> str:
    """The first line of a driver's or compiler's error; the others are advice for the library's
    authors."""
    return (str(error) or type(error).__name__).split("\n", 1)[0]

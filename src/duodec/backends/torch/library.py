"""torch and transformers, imported once and in one place; and what they complain of, in a line.

Importing this module is what loads them; it raises BackendUnavailable where they are missing. So
nothing outside of this package imports one of its modules before a torch target is asked for.
"""

from __future__ import annotations

from duodec.errors import BackendUnavailable

try:
    import torch as torch
    import transformers as transformers
except (ImportError, OSError) as error:
    raise BackendUnavailable(
        f"torch and transformers cannot be loaded ({error}); run `make setup-torch`"
    ) from error


def first_line(error: Exception) -> str:
    """What a driver or a compiler reported; its other lines are advice to who wrote the library."""
    return (str(error) or type(error).__name__).split("\n", 1)[0]

"""torch and transformers, imported once and in one place.

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

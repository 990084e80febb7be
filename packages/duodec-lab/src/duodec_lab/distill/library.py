"""Import torch and gguf for training, or say what is missing in one line."""

from __future__ import annotations

from importlib.util import find_spec

from duodec.errors import BackendUnavailable
from duodec.machine.install import needs_command
from duodec_torch.library import torch as torch

try:
    import gguf as gguf
except ImportError as error:
    raise BackendUnavailable(
        f"gguf cannot be loaded ({error}); run: {needs_command('duodec-torch')}"
    ) from error

# transformers asks for it when it opens a GGUF file: after the recording
if find_spec("accelerate") is None:
    raise BackendUnavailable(f"accelerate is not installed; run: {needs_command('duodec-torch')}")

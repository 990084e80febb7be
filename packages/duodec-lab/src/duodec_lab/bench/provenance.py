"""Say what exactly was measured: models by hash and quantisation, the commit, the build."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import duodec
from duodec.errors import DuodecError
from duodec.loading.config import EngineConfig
from duodec.loading.resolve import resolve_pair
from duodec.models.base import ModelFile
from duodec.models.metadata import ModelMetadata

_PATIENCE_S = 20.0


def models_of(config: EngineConfig) -> dict[str, dict[str, Any]]:
    """A pair's models by name: hash, quantisation, parameters, bytes, source. They are on this
    machine by now; one that is no file, as in tests, is left out."""
    with suppress(DuodecError):
        pair = resolve_pair(replace(config, offline=True))
        files = {
            config.target: pair.file,
            **({pair.draft.reference: pair.draft} if pair.draft else {}),
        }
        return {name: _model(file) for name, file in files.items()}
    return {}


def _model(file: ModelFile) -> dict[str, Any]:
    summary = ModelMetadata.of(file.path)
    return {
        "sha256": file.sha256 or digest(file.path),
        "quantisation": summary.quantisation or "?",
        "parameters": summary.num_params,
        "num_bytes": summary.num_bytes,
        "architecture": summary.architecture,
        "source": file.source,
        "licence": file.license,
    }


def digest(path: Path) -> str:
    """SHA-256 of a file; of a folder, of its weights' and configuration's digests by name."""
    if path.is_dir():
        names = sorted([*path.glob("*.safetensors"), *path.glob("*.json")])
        whole = "".join(f"{name.name} {digest(name)}\n" for name in names)
        return hashlib.sha256(whole.encode()).hexdigest()
    found = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()


def commit() -> str | None:
    """The checkout's commit, with a + after it where files differ; None outside of a checkout."""
    folder = Path(duodec.__file__).parent
    is_checkout = (folder.parents[1] / ".git").exists()
    if not is_checkout or (git := shutil.which("git")) is None:
        return None

    def told(*arguments: str) -> str:
        command = [git, "-C", str(folder.parents[1]), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_PATIENCE_S, check=True
        )
        return done.stdout.strip()

    try:
        return told("rev-parse", "HEAD") + ("+" if told("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def build() -> str | None:
    """How the loaded llama.cpp was built, in its own words; None if none is loaded."""
    if "llama_cpp" not in sys.modules:
        return None
    from duodec.backends.llamacpp.library import load

    words: bytes = load().llama_print_system_info()
    return " ".join(words.decode("utf-8", "replace").split())

"""Find Ollama's models by their names, through the manifests that Ollama writes.

`manifests/<host>/<namespace>/<model>/<tag>` lists a model's layers by digest. The layer of the
weights is the GGUF file `blobs/sha256-<digest>`. Files are only read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from duodec.errors import ModelUnreadable
from duodec.models.metadata import ModelMetadata

_HOST, _NAMESPACE, _TAG = "registry.ollama.ai", "library", "latest"
_KIND = "application/vnd.ollama.image."
FOLDERS = (  # Ollama run by a user, as its installer's service, and as a distribution's
    "~/.ollama/models", "/usr/share/ollama/.ollama/models", "/var/lib/ollama/.ollama/models",
    "/var/lib/ollama",
)  # fmt: skip
_NAME = re.compile(r"(?:[\w.:-]+/)?(?:[\w-]+/)?[\w.-]+(?::[\w.-]+)?")
_DIGEST = re.compile(r"(sha256-)?[0-9a-f]{40,64}")
_MOST_MODELS = 400


@dataclass(frozen=True)
class OllamaModel:
    """Name a model (`qwen2.5-coder:1.5b`) with the layers of its manifest."""

    name: str
    folder: Path
    digests: tuple[tuple[str, str], ...]  # kind of each layer, such as "model", and its digest

    @property
    def blob(self) -> Path | None:
        """Return the file of its weights; None if there is none, or it is not on this machine
        yet."""
        return self._layer("model")

    @property
    def projector(self) -> Path | None:
        """Return its projector for pictures; None if there is none, or it is not on this
        machine."""
        return self._layer("projector")

    def _layer(self, kind: str) -> Path | None:
        found = (self.folder / "blobs" / d.replace(":", "-") for k, d in self.digests if k == kind)
        return next((path for path in found if path.is_file()), None)

    @property
    def file(self) -> Path:
        """Return the file of its weights. Raises ModelUnreadable, with the remedy, if it is not one
        whole GGUF file."""
        kinds = {kind for kind, _ in self.digests}
        if "adapter" in kinds:
            raise ModelUnreadable(
                f"{self.name} applies an adapter, which is not read; merge it into the model's file"
            )
        if "model" not in kinds:
            raise ModelUnreadable(
                f"{self.name} has no GGUF file in Ollama (it computes in the cloud, or has "
                "safetensors); choose another model"
            )
        if self.blob is None:
            raise ModelUnreadable(
                f"the weights of {self.name} are missing in {self.folder}; run: ollama pull "
                f"{self.name}"
            )
        return self.blob


def installed() -> list[OllamaModel]:
    """Return Ollama's models on this machine, by name."""
    found: dict[str, OllamaModel] = {}
    for folder in _folders():
        for manifest in _manifests(folder):
            if model := _read(folder, manifest):
                found.setdefault(model.name, model)
    return [found[name] for name in sorted(found)]


def find(reference: str) -> OllamaModel | None:
    """Return the model that a name means, as `ollama run` reads it: without a tag it is `latest`,
    and capital letters do not matter. None if Ollama has no such model."""
    if not _NAME.fullmatch(reference) or reference in (".", ".."):
        return None
    name = _in_full(reference)
    return next((m for m in installed() if _in_full(m.name) == name), None)


def name_of(reference: str) -> str:
    """Return a model's name for people: the reference as it was written. For a path that is named
    by a digest it is Ollama's name, or else the file's own (`general.name`)."""
    path = Path(reference)
    if not _DIGEST.fullmatch(path.name):
        return reference
    with suppress(OSError, RuntimeError, ModelUnreadable):
        path = path.expanduser().resolve()
        if found := next((m.name for m in installed() if m.blob and m.blob.resolve() == path), ""):
            return found
        own = ModelMetadata.of(path).name
        return reference if own == path.stem else own
    return reference


def unreadable_folder() -> Path | None:
    """Return a folder of Ollama's that this user may not read."""
    return next((f for f in _folders() if not os.access(f, os.R_OK | os.X_OK)), None)


def _folders() -> list[Path]:
    named = os.environ.get("OLLAMA_MODELS")
    folders = [Path(one).expanduser() for one in ([named] if named else FOLDERS)]
    return [folder for folder in folders if _exists(folder)]


def _exists(folder: Path) -> bool:
    try:
        return (folder / "manifests").is_dir()
    except PermissionError:
        return True


def _manifests(folder: Path) -> Iterator[Path]:
    try:
        found = sorted((folder / "manifests").glob("*/*/*/*"))
    except OSError:
        return
    yield from [path for path in found if not path.name.startswith(".")][:_MOST_MODELS]


def _read(folder: Path, manifest: Path) -> OllamaModel | None:
    try:
        layers = json.loads(manifest.read_text("utf-8"))["layers"]
        digests = tuple(
            (str(layer["mediaType"]).removeprefix(_KIND), str(layer["digest"])) for layer in layers
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return OllamaModel(_shortest(manifest), folder, digests)


def _shortest(manifest: Path) -> str:
    """Return the name as `ollama list` writes it: without the host and the namespace of its own
    library."""
    host, namespace, model, tag = manifest.parts[-4:]
    parts = [model]
    if (host, namespace) != (_HOST, _NAMESPACE):
        parts = [namespace, model] if host == _HOST else [host, namespace, model]
    return f"{'/'.join(parts)}:{tag}"


def _in_full(name: str) -> str:
    """Return a name with all its parts, for comparison."""
    path, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", _TAG)
    parts = path.split("/")
    parts = [*(_HOST, _NAMESPACE)[: 3 - len(parts)], *parts]
    return f"{'/'.join(parts)}:{tag}".lower()

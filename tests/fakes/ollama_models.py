"""A folder of models as Ollama lays it out: manifests by name, blobs by digest."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from fakes.gguf_files import write_model

KIND = "application/vnd.ollama.image."
LIBRARY = "registry.ollama.ai/library"


def pulled(
    models: Path, full: str, *, where: str = LIBRARY, adapter: bool = False, **model: object
) -> Path:
    """What `ollama pull NAME` leaves: returns the blob of the weights."""
    name, _, tag = full.partition(":")
    written = write_model(models / "partial", **model)  # type: ignore[arg-type]
    digest = hashlib.sha256(written.read_bytes() + f"{where}{name}{tag}".encode()).hexdigest()
    blob = models / "blobs" / f"sha256-{digest}"
    blob.parent.mkdir(parents=True, exist_ok=True)
    written.rename(blob)
    return tagged(models, f"{name}:{tag or 'latest'}", blob, where=where, adapter=adapter)


def tagged(
    models: Path, name: str, blob: Path, *, where: str = LIBRARY, adapter: bool = False
) -> Path:
    """A manifest that names a blob of weights, and layers of other kinds."""
    model, _, tag = name.partition(":")
    kinds = {"template": "0" * 64, "license": "1" * 64, "model": blob.name.removeprefix("sha256-")}
    if adapter:
        kinds["adapter"] = "2" * 64
    layers = [
        {"mediaType": KIND + kind, "digest": f"sha256:{digest}", "size": 1}
        for kind, digest in kinds.items()
    ]
    manifest = models / "manifests" / where / model / tag
    manifest.parent.mkdir(parents=True, exist_ok=True)
    media = "application/vnd.docker.distribution.manifest.v2+json"
    config = {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": "sha256:3"}
    manifest.write_text(
        json.dumps({"schemaVersion": 2, "mediaType": media, "config": config, "layers": layers})
    )
    return blob

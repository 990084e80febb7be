"""Load a model that makes embeddings or ranks texts: no target, no draft, one forward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from duodec.backends.loaded import Embedder
from duodec.errors import BadOption, ModelUnreadable, warn
from duodec.loading.resolve import ResolvedTarget
from duodec.loading.vetting import vetted
from duodec.models.metadata import ModelMetadata, Use


def use_of(target: ResolvedTarget) -> Use:
    """Return what a model is for. Raises ModelUnreadable for a damaged file."""
    return ModelMetadata.of(target.file.path).use if target.backend.embeds else "completion"


@dataclass(frozen=True)
class EmbedderUse:
    """Estimate the bytes of memory that a loaded embedder takes."""

    weight_bytes: int
    work_bytes: int
    num_context: int


def load_embedder(
    target: ResolvedTarget, on_warning: Callable[[str], None] = warn, *, taken_bytes: int = 0
) -> tuple[Embedder, EmbedderUse]:
    """Load a model, of which llama.cpp has computed a text in a process of its own. Raises an error
    if something is wrong with its file, or with the options."""
    config = target.config
    if use_of(target) == "completion":
        raise ModelUnreadable(
            f"{target.name} makes no embeddings: its file names no pooling, as those of models for "
            "embeddings and of rerankers do; name such a model"
        )
    if config.draft not in ("auto", "none", None):
        raise BadOption(
            f"draft is {config.draft}, and {target.name} generates no text to draft; leave it out"
        )
    from duodec.backends.llamacpp.embedding.load import load, work_bytes

    path: Path = vetted(target.file).path
    found = load(
        path, config, on_warning, parse_special=config.parse_special, taken_bytes=taken_bytes
    )
    work = work_bytes(found.model, found.num_context)
    return found, EmbedderUse(found.model.num_bytes, work, found.num_context)


def fits(target: ResolvedTarget, taken_bytes: int) -> bool:
    """Estimate whether memory holds the model. ``taken_bytes`` of what looks free are other models'
    weights. Raises an error if something is wrong with its file."""
    from duodec.backends.llamacpp.embedding.load import fits

    return fits(vetted(target.file).path, taken_bytes)

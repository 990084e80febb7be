"""Resolve the names of a pair to files, once: whatever is loaded or measured is passed the result.

EngineConfig -> ResolvedPair -> Loaded -> LLM
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from duodec.backends.cpu import cpu_key
from duodec.backends.llamacpp.model import LlamaModel, refuse_encoder
from duodec.backends.loaded import OpenVocabulary
from duodec.errors import BadOption, DuodecError
from duodec.loading.config import LLAMA_CPP, TORCH, EngineConfig
from duodec.loading.profile import Profile
from duodec.loading.vetting import vetted
from duodec.machine.cores import available_cores
from duodec.models import (
    ALIASES,
    Format,
    ModelFile,
    find_projector,
    format_of,
    resolve,
    resolve_folder,
    resolve_heads,
)
from duodec.models.discovery import best_for
from duodec.models.ollama import name_of

_OF_LLAMA_CPP = {  # options that torch lacks, and their remedies
    "rows": "leave it out",
    "gpu_layers": "use `device`",
    "cpu_moe": "leave it out",
    "n_cpu_moe": "leave it out",
    "no_repack": "leave it out",
    "override_tensor": "leave it out",
    "cache_type_k": "leave it out",
    "cache_type_v": "leave it out",
    "mtp": "leave it out",
    "mmproj": "leave it out",
}


@dataclass(frozen=True)
class ResolvedTarget:
    """A target's files, which are on this machine, and the library that computes them."""

    config: EngineConfig
    backend: str
    file: ModelFile
    heads: Path | None = None  # those that were trained for it: a folder, or a GGUF file
    mmproj: Path | None = field(default=None, kw_only=True)  # what it sees pictures with

    @property
    def name(self) -> str:
        """The target's name, for people."""
        return name_of(self.config.target)

    def vetted(self) -> ModelFile:
        """Its file, of which llama.cpp has read in a process of its own what the backend needs.
        Raises ModelUnreadable."""
        if self.file.path.is_file():
            refuse_encoder(self.file.path)
        return vetted(self.file, vocabulary_only=self.backend == TORCH)

    def open_vocabulary(self) -> OpenVocabulary:
        """Its vocabulary without its weights; the caller closes it. Raises ModelUnreadable."""
        if self.file.path.is_dir():
            from duodec.backends.torch.checkpoint.model import vocabulary_of

            return vocabulary_of(self.file.path)
        path = vetted(self.file, vocabulary_only=True).path
        return LlamaModel(path, vocabulary_only=True, num_gpu_layers=0)


@dataclass(frozen=True)
class ResolvedPair(ResolvedTarget):
    """A target and its draft. ``no_draft`` is why a draft that nobody named is left out."""

    draft: ModelFile | None = None
    no_draft: DuodecError | None = None

    @property
    def draft_name(self) -> str | None:
        """The draft's name, for people."""
        return name_of(self.draft.reference) if self.draft else None

    def without_draft(self) -> ResolvedPair:
        """The target alone."""
        return replace(self, draft=None, no_draft=None)

    def refuse_draft(self, error: DuodecError) -> ResolvedPair:
        """The target alone, as its default draft failed. Raises the error of a draft that the user
        named."""
        if self.config.draft != "auto":
            raise error
        return replace(self, draft=None, no_draft=error)

    @cached_property
    def profile_key(self) -> str:
        """The key of this pair's costs on this machine: see `duodec.loading.profile`."""
        config = self.config
        settings = (
            config.threads, config.draft_threads, config.gpu_layers, config.rows, config.fast,
            config.no_repack, config.cpu_moe, config.n_cpu_moe, config.override_tensor,
            config.cache_type_k, config.cache_type_v, config.mtp,
            self.backend, config.dtype_name, config.device, self.file.num_bytes,
            config.heads, config.draft_head, config.draft_weights, config.draft_device,
            *([self.mmproj.name] if self.mmproj else []),
        )  # fmt: skip
        return key_of(self.file.path, self.draft.path if self.draft else None, settings)

    @cached_property
    def profile(self) -> Profile | None:
        """What this pair was measured to cost on this machine, if it was."""
        return Profile.read(self.profile_key)


def resolve_target(config: EngineConfig) -> ResolvedTarget:
    """The target's file or folder, downloaded if needed. Raises what is wrong with it, and
    BackendUnavailable before downloading a model that cannot be loaded here."""
    backend, is_gguf = config.target_backend, True
    if backend != LLAMA_CPP:
        prefer: Format = "safetensors" if backend == TORCH else "gguf"
        is_gguf = format_of(config.target, prefer=prefer, offline=config.offline) == "gguf"
    if backend == "auto":
        backend = LLAMA_CPP if is_gguf else TORCH
    heads = None
    if config.heads is not None and backend == LLAMA_CPP:
        if Path(config.heads).is_dir():
            raise BadOption(
                f"heads is {config.heads}, a folder, which only targets on torch read; with "
                "llama.cpp name the GGUF file of a head, or set target_backend=torch"
            )
        heads = resolve(config.heads, offline=config.offline).path
    elif config.heads is not None:
        heads = resolve_heads(config.heads, offline=config.offline)
    if is_gguf:
        file = resolve(config.target, offline=config.offline)
        mmproj = _projector(config, backend, file)
        return ResolvedTarget(config, backend, file, heads, mmproj=mmproj)
    check_torch(config)
    from duodec.backends.torch.load import blueprint

    file = resolve_folder(
        config.target, offline=config.offline, check=lambda folder: blueprint(folder, config, heads)
    )
    return ResolvedTarget(config, backend, file, heads)


def _projector(config: EngineConfig, backend: str, file: ModelFile) -> Path | None:
    """What a GGUF target sees pictures with. Raises what is wrong with a file that is named."""
    if config.mmproj in (None, "none") or backend != LLAMA_CPP:
        return None
    if config.mmproj != "auto":
        if config.heads is not None:
            raise BadOption(
                f"mmproj is {config.mmproj} and heads is {config.heads}: a head does not draft "
                "behind pictures; leave one out"
            )
        return resolve(str(config.mmproj), offline=config.offline).path
    if config.heads is not None:
        return None
    return find_projector(config.target, file.path, offline=config.offline)


def resolve_pair(config: EngineConfig) -> ResolvedPair:
    """The files of a pair, downloaded if needed. Raises what is wrong with the target, or with a
    draft that the user names."""
    target = resolve_target(config)
    pair = ResolvedPair(config, target.backend, target.file, target.heads, mmproj=target.mmproj)
    name = draft_for(config, target)
    if name is None:
        return pair
    try:
        return replace(pair, draft=resolve(name, offline=config.offline))
    except DuodecError as error:
        return pair.refuse_draft(error)


def draft_for(config: EngineConfig, target: ResolvedTarget | None = None) -> str | None:
    """The name of a target's draft: the one that the user names, the one known to suit it, or the
    smallest of its vocabulary that is on this machine. None if there is none, or if the target is
    not on this machine yet; ``target`` if it is."""
    if config.draft != "auto":
        return None if config.draft in (None, "none") else config.draft
    alias = ALIASES.get(config.target.lower())
    if alias:
        return alias.draft
    with suppress(DuodecError):
        target = target or resolve_target(replace(config, offline=True))
        return best_for(target.file.path)
    return None


def check_torch(config: EngineConfig) -> None:
    """Raises BadOption for options that only llama.cpp has, and BackendUnavailable, which names the
    remedy."""
    values, defaults = vars(config), vars(EngineConfig())
    for name, remedy in _OF_LLAMA_CPP.items():
        if (value := values[name]) != defaults[name]:
            shown = ",".join(value) if isinstance(value, tuple) else value
            raise BadOption(f"{name} is {shown}, which only llama.cpp can serve; {remedy}")
    import duodec.backends.torch.library  # noqa: F401


def key_of(target: Path, draft: Path | None, settings: Sequence[object] = ()) -> str:
    """A key of this machine, these files and the other settings that affect speed."""
    files = [(path.name, path.stat().st_size) for path in (target, draft) if path]
    parts = [cpu_key(), len(available_cores()), files, list(settings)]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]

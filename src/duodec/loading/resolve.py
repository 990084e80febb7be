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
from duodec.backends.loaded import OpenVocabulary
from duodec.errors import DuodecError
from duodec.loading import backends
from duodec.loading.backends import TargetFiles
from duodec.loading.config import AUTO, EngineConfig
from duodec.loading.profile import Profile
from duodec.machine.cores import available_cores
from duodec.models import ALIASES, ModelFile, format_of, resolve
from duodec.models.discovery import best_for
from duodec.models.ollama import name_of


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

    @property
    def files(self) -> TargetFiles:
        """As its backend loads them."""
        return TargetFiles(self.file, self.heads, self.mmproj)

    def vetted(self) -> ModelFile:
        """Its file, if it may be loaded in this process. Raises ModelUnreadable."""
        return backends.named(self.backend).vetted(self.file)

    def open_vocabulary(self) -> OpenVocabulary:
        """Its vocabulary without its weights; the caller closes it. Raises ModelUnreadable."""
        return backends.named(self.backend).open_vocabulary(self.file)


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
    """The target's file or folder, downloaded if needed. Raises what is wrong with it, and before
    anything is downloaded BadOption for what the backend does not serve, and BackendUnavailable for
    a model that cannot be loaded here."""
    name = config.target_backend
    if name == AUTO:
        format_ = format_of(config.target, offline=config.offline)
        name = backends.name_for(format_)
        backend = backends.named(name)
    else:
        backend = backends.named(name)
        format_ = backend.format_of(config)
    backend.check(config)
    found = backend.find(config, format_)
    return ResolvedTarget(config, name, found.file, found.heads, mmproj=found.mmproj)


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


def key_of(target: Path, draft: Path | None, settings: Sequence[object] = ()) -> str:
    """A key of this machine, these files and the other settings that affect speed."""
    files = [(path.name, path.stat().st_size) for path in (target, draft) if path]
    parts = [cpu_key(), len(available_cores()), files, list(settings)]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]

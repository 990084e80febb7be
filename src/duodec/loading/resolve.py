"""Resolve the names of a pair to files, once: the result is passed to whatever loads or measures
it.

EngineConfig -> ResolvedPair -> Loaded -> LLM
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from duodec.backends.cpu import cpu_key
from duodec.backends.loaded import OpenVocabulary
from duodec.errors import DuodecError
from duodec.loading.backends import Backend, TargetFiles, chosen_for
from duodec.loading.config import EngineConfig
from duodec.loading.profile import Profile
from duodec.machine.cores import available_cores
from duodec.models import ALIASES, ModelFile, resolve
from duodec.models.discovery import best_for
from duodec.models.ollama import name_of


@dataclass(frozen=True)
class ResolvedTarget:
    """Hold a target's files, which are on this machine, and the library that computes them."""

    config: EngineConfig
    backend: Backend
    files: TargetFiles  # as they were found: `duodec.loading.vetting` has those to load

    @property
    def name(self) -> str:
        """Return the target's name, for people."""
        return name_of(self.config.target)

    @property
    def file(self) -> ModelFile:
        """Return the target's own file or folder."""
        return self.files.file

    def open_vocabulary(self) -> OpenVocabulary:
        """Return the vocabulary without the weights; the caller closes it. Raises
        ModelUnreadable."""
        return self.backend.open_vocabulary(self.file)


@dataclass(frozen=True)
class ResolvedPair(ResolvedTarget):
    """Hold a target and its draft. ``no_draft`` says why an automatically chosen draft is left
    out."""

    draft: ModelFile | None = None
    no_draft: DuodecError | None = None

    @property
    def draft_name(self) -> str | None:
        """Return the draft's name, for people."""
        return name_of(self.draft.reference) if self.draft else None

    def without_draft(self) -> ResolvedPair:
        """Return the target alone."""
        return replace(self, draft=None, no_draft=None)

    def refuse_draft(self, error: DuodecError) -> ResolvedPair:
        """Return the target alone, because its default draft failed. Raises the error if the user
        named the draft."""
        if self.config.draft != "auto":
            raise error
        return replace(self, draft=None, no_draft=error)

    @cached_property
    def profile_key(self) -> str:
        """Return the key of this pair's costs on this machine: see `duodec.loading.profile`."""
        config = self.config
        settings = (
            config.threads, config.draft_threads, config.gpu_layers, config.rows, config.fast,
            config.no_repack, config.cpu_moe, config.n_cpu_moe, config.override_tensor,
            config.cache_type_k, config.cache_type_v, config.mtp,
            self.backend.name, config.dtype_name, config.device, self.file.num_bytes,
            config.heads, config.draft_head, config.draft_weights, config.draft_device,
            *([self.files.mmproj.name] if self.files.mmproj else []),
        )  # fmt: skip
        return key_of(self.file.path, self.draft.path if self.draft else None, settings)

    @cached_property
    def profile(self) -> Profile | None:
        """Return what this pair was measured to cost on this machine, or None."""
        return Profile.read(self.profile_key)


def resolve_target(config: EngineConfig) -> ResolvedTarget:
    """Return the target's file or folder, downloaded if needed. Raises an error if something is
    wrong with it. Before anything is downloaded it raises BadOption for what the backend does not
    serve, and BackendUnavailable for a model that cannot be loaded here."""
    backend, format_ = chosen_for(config)
    backend.check(config)
    return ResolvedTarget(config, backend, backend.find(config, format_))


def resolve_pair(config: EngineConfig) -> ResolvedPair:
    """Return the files of a pair, downloaded if needed. Raises an error if something is wrong with
    the target, or with a draft that the user names."""
    target = resolve_target(config)
    pair = ResolvedPair(config, target.backend, target.files)
    name = draft_for(config, target)
    if name is None:
        return pair
    try:
        return replace(pair, draft=resolve(name, offline=config.offline))
    except DuodecError as error:
        return pair.refuse_draft(error)


def draft_for(config: EngineConfig, target: ResolvedTarget | None = None) -> str | None:
    """Return the name of a target's draft: the one that the user names, the one known to suit it,
    or the smallest of its vocabulary on this machine. None if there is none, or if the target is
    not on this machine yet. ``target`` is given if it is."""
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
    """Return a key of this machine, these files and the other settings that affect speed."""
    files = [(path.name, path.stat().st_size) for path in (target, draft) if path]
    parts = [cpu_key(), len(available_cores()), files, list(settings)]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]

"""Look up the libraries that compute targets by their names; other packages add theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar, Literal

from duodec.backends.llamacpp.options import LlamaOptions
from duodec.backends.loaded import LoadedTarget, OpenVocabulary
from duodec.errors import BadOption, DuodecError
from duodec.loading.config import AUTO, LLAMA_CPP, EngineConfig
from duodec.machine import plugins
from duodec.models import Format, ModelFile, format_of, resolve, resolve_folder

State = tuple[Literal["ok", "warn", "fail"], str, str]
"""A line of `duodec doctor`: the verdict, its words, and a remedy or ""."""

_NEEDLESS = {"no_mmap"}  # the other libraries always do what this asks of llama.cpp
_REMEDIES = {"gpu_layers": "use `device`"}
_OWN = {LLAMA_CPP: "duodec.loading.llamacpp:LlamaBackend"}


@dataclass(frozen=True)
class TargetFiles:
    """Hold the files of a target on this machine. ``no_pictures`` says why a projector that was
    found for it is left out."""

    file: ModelFile
    heads: Path | None = None  # heads that were trained for it: a folder, or a GGUF file
    mmproj: Path | None = None  # its projector for pictures
    no_pictures: DuodecError | None = None


@dataclass(frozen=True)
class Backend:
    """Define a library that computes targets. Derive from it, and name the class as an entry point
    of ``duodec.backends``: ``name`` is the entry's name, and the value of ``target_backend``.

    Options are checked, then a target is found, vetted (`duodec.loading.vetting`) and loaded. See
    docs/extending.md.
    """

    name: str
    format: ClassVar[Format | None] = None  # the format it is chosen for if no backend is named
    reads_heads: ClassVar[bool] = False
    embeds: ClassVar[bool] = False  # whether `duodec.loading.embedding` loads its embedders
    llama_reads: ClassVar[Literal["model", "vocabulary"] | None] = None
    """What llama.cpp reads of a GGUF target in this process: it is tried in another one first."""

    def format_of(self, config: EngineConfig) -> Format:
        """Return the format of a target whose user has chosen this backend."""
        return self.format or "gguf"

    def check(self, config: EngineConfig) -> None:
        """Raise BadOption for options that it does not serve: by default llama.cpp's own."""
        if config.heads is not None and not self.reads_heads:
            raise BadOption(f"heads is {config.heads}, and {self.name} reads none; leave it out")
        for name in LlamaOptions.own():
            value, default = getattr(config, name), getattr(LlamaOptions, name)
            if value != default and name not in _NEEDLESS:
                shown = ",".join(value) if isinstance(value, tuple) else value
                remedy = _REMEDIES.get(name, "leave it out")
                raise BadOption(f"{name} is {shown}, which only llama.cpp can serve; {remedy}")

    def find(self, config: EngineConfig, format_: Format) -> TargetFiles:
        """Return the files that the user names, downloaded if needed. Raises an error if something
        is wrong with them, and BackendUnavailable, which names the remedy, if they could not be
        loaded."""
        find = resolve if format_ == "gguf" else resolve_folder
        return TargetFiles(find(config.target, offline=config.offline))

    def open_vocabulary(self, file: ModelFile) -> OpenVocabulary:
        """Return a target's vocabulary without its weights; the caller closes it. Raises
        ModelUnreadable."""
        raise BadOption(f"{self.name} opens no vocabulary without its model; use another backend")

    def load(
        self,
        files: TargetFiles,
        config: EngineConfig,
        on_warning: Callable[[str], None],
        *,
        taken_bytes: int = 0,
    ) -> LoadedTarget:
        """Load a target of vetted files; ``taken_bytes`` of the memory that looks free are in use.
        Raises an error if something is wrong with its files or the options."""
        raise NotImplementedError

    def fits(
        self, file: ModelFile, config: EngineConfig, *, taken_bytes: int, draft_bytes: int
    ) -> bool:
        """Estimate whether memory holds the target of a vetted file and its draft, with caches of a
        short context. Raises an error if something is wrong with the file."""
        return True

    def state(self, *, is_used: bool, has_gpu: bool) -> State | None:
        """Return what `duodec doctor` says about the library, or None. ``is_used``: a target uses
        it."""
        return None


@cache
def named(name: str) -> Backend:
    """Return the backend with a name. Raises BackendUnavailable if it is not installed, and
    BadOption if there is no such backend."""
    if name in _OWN:
        kind = EntryPoint(name, _OWN[name], plugins.BACKENDS).load()
    else:
        kind = plugins.load(plugins.BACKENDS, name, f"target_backend {name}")
    if not (isinstance(kind, type) and issubclass(kind, Backend)):
        raise BadOption(
            f"target_backend {name} is no subclass of duodec.loading.backends.Backend; update or "
            "remove its package"
        )
    found: Backend = kind(name)
    return found


def chosen_for(config: EngineConfig) -> tuple[Backend, Format]:
    """Return the backend that is named, or else the one for the target's format, and that format.
    Raises BackendUnavailable, and an error if the target's name leads to no model."""
    if config.target_backend != AUTO:
        backend = named(config.target_backend)
        return backend, backend.format_of(config)
    format_ = format_of(config.target, offline=config.offline)
    return next(one for one in map(named, _names()) if one.format == format_), format_


def _names() -> Iterator[str]:
    """Yield the names: ours first, without a look at what is installed; those that are missing come
    last."""
    yield from _OWN
    yield from plugins.installed(plugins.BACKENDS)
    yield from plugins.missing(plugins.BACKENDS)

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
from duodec.errors import BadOption
from duodec.loading.config import LLAMA_CPP, EngineConfig
from duodec.machine import plugins
from duodec.models import Format, ModelFile, resolve, resolve_folder

State = tuple[Literal["ok", "warn", "fail"], str, str]
"""A line of `duodec doctor`: the verdict, its words, and a remedy or nothing."""

_NEEDLESS = {"no_mmap"}  # what it asks of llama.cpp the others do anyway
_REMEDIES = {"gpu_layers": "use `device`"}
_OWN = {LLAMA_CPP: "duodec.loading.llamacpp:LlamaBackend"}


@dataclass(frozen=True)
class TargetFiles:
    """What a target is made of, on this machine."""

    file: ModelFile
    heads: Path | None = None  # those that were trained for it: a folder, or a GGUF file
    mmproj: Path | None = None  # what it sees pictures with


@dataclass(frozen=True)
class Backend:
    """A library that computes targets. Derive from it, and name the class as an entry point of
    ``duodec.backends``: ``name`` is the entry's, and what ``target_backend`` says.

    Options are checked, then a target is found, vetted and loaded. See docs/extending.md.
    """

    name: str
    format: ClassVar[Format | None] = None  # that it is chosen for where nobody names a backend
    reads_heads: ClassVar[bool] = False
    embeds: ClassVar[bool] = False  # whether `duodec.loading.embedding` loads its embedders

    def format_of(self, config: EngineConfig) -> Format:
        """The format of a target whose user has chosen this backend."""
        return self.format or "gguf"

    def check(self, config: EngineConfig) -> None:
        """Raises BadOption for options that it does not serve: by default llama.cpp's own."""
        if config.heads is not None and not self.reads_heads:
            raise BadOption(f"heads is {config.heads}, and {self.name} reads none; leave it out")
        for name in LlamaOptions.own():
            value, default = getattr(config, name), getattr(LlamaOptions, name)
            if value != default and name not in _NEEDLESS:
                shown = ",".join(value) if isinstance(value, tuple) else value
                remedy = _REMEDIES.get(name, "leave it out")
                raise BadOption(f"{name} is {shown}, which only llama.cpp can serve; {remedy}")

    def find(self, config: EngineConfig, format_: Format) -> TargetFiles:
        """The files that the user names, downloaded if needed. Raises what is wrong with them, and
        BackendUnavailable, which names the remedy, where they could not be loaded."""
        find = resolve if format_ == "gguf" else resolve_folder
        return TargetFiles(find(config.target, offline=config.offline))

    def vetted(self, file: ModelFile) -> ModelFile:
        """The same, if it may be loaded in this process: a library may crash on a damaged file.
        Raises ModelUnreadable."""
        return file

    def open_vocabulary(self, file: ModelFile) -> OpenVocabulary:
        """A target's vocabulary without its weights; the caller closes it. Raises
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
        """Load a target that is vetted; ``taken_bytes`` of the memory that looks free are not.
        Raises what is wrong with its files or the options."""
        raise NotImplementedError

    def fits(
        self, file: ModelFile, config: EngineConfig, *, taken_bytes: int, draft_bytes: int
    ) -> bool:
        """Whether memory holds a target beside its draft with caches of a short context: an
        estimate. Raises what is wrong with its files."""
        return True

    def state(self, *, is_used: bool, has_gpu: bool) -> State | None:
        """What `duodec doctor` says of the library, if anything, where a target uses it or not."""
        return None


@cache
def named(name: str) -> Backend:
    """The backend of a name. Raises BackendUnavailable for one that is not installed, and BadOption
    for one that is none."""
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


def name_for(format_: Format) -> str:
    """The backend of models of a format, where nobody names one. Raises BackendUnavailable."""
    return next(name for name in _names() if named(name).format == format_)


def _names() -> Iterator[str]:
    """Ours first, without a look at what is installed; those that are missing last."""
    yield from _OWN
    yield from plugins.installed(plugins.BACKENDS)
    yield from plugins.missing(plugins.BACKENDS)

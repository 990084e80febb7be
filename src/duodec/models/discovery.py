"""Find drafts for a target on this machine: next to it, and in the caches of other programs.

Files are only read. Each is judged by its vocabulary, size and kind. A file that does not suit
stays in the list with the reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from duodec.errors import ModelUnreadable
from duodec.machine.files import cache_folder
from duodec.models import ollama
from duodec.models.aliases import ALIASES
from duodec.models.metadata import ModelMetadata

_MOST_PART = 0.5  # share of the target's parameters above which a draft cannot pay
_MOST_FILES = 400  # most files of one place that are read
_OLLAMA = "Ollama's models"
_NO_DRAFT = re.compile(r"embed|rerank|mmproj")


@dataclass(frozen=True)
class Candidate:
    """Describe a file that may be a draft. ``fault`` says why it cannot draft. ``is_same``: it has
    the target's vocabulary, so its tokens need not be translated."""

    path: Path
    name: str
    place: str  # for people
    num_params: int = 0
    num_bytes: int = 0
    is_same: bool = False
    fault: str = ""
    is_recurrent: bool = False  # it drafts chains, no trees

    @property
    def reference(self) -> str:
        """Return its name in a command: its path, or Ollama's name, because no reader would
        recognise the file's."""
        return self.name if self.place == _OLLAMA else str(self.path)


def candidates(target: Path) -> list[Candidate]:
    """Return the candidates for a target, best first. Those of its own vocabulary come first:
    drafts of trees before recurrent ones, and smaller before larger. Then come other vocabularies,
    and last what does not suit. Raises ModelUnreadable for the target."""
    summary = ModelMetadata.of(target)
    found: dict[Path, Candidate] = {}
    for path, name, place in places(target):
        real = path.resolve()
        if real not in found and real != target.resolve():
            found[real] = _judged(path, name, place, summary)
    return sorted(
        found.values(),
        key=lambda one: (
            bool(one.fault), not one.is_same, one.is_recurrent, one.num_params, one.name,
        ),
    )  # fmt: skip


@cache
def best_for(target: Path) -> str | None:
    """Return a reference to the draft that `--draft auto` takes: the smallest of the target's own
    vocabulary."""
    try:
        first = next(iter(candidates(target)), None)
    except ModelUnreadable:  # loading reports why
        return None
    return first.reference if first and first.is_same and not first.fault else None


def _judged(path: Path, name: str, place: str, target: ModelMetadata) -> Candidate:
    num_bytes = path.stat().st_size
    if num_bytes > target.num_bytes:
        return Candidate(path, name, place, 0, num_bytes, fault="larger than the target")
    if _NO_DRAFT.search(name.lower()):
        return Candidate(path, name, place, 0, num_bytes, fault="its name says that it embeds")
    try:
        found = ModelMetadata.of(path)
    except ModelUnreadable as error:
        fault = str(error).partition("; ")[0]
        return Candidate(path, name, place, 0, num_bytes, fault=fault)
    is_same = found.has_vocabulary_of(target)
    fault = ""
    if found.use != "completion":
        fault = "it makes embeddings or ranks texts, and no text"
    elif not found.tokens:
        fault = "it has no vocabulary: it is no language model, or a part of one"
    elif found.num_params > _MOST_PART * target.num_params:
        size = f"{found.num_params / 1e6:.0f} M parameters"
        fault = f"it is too large: {size}, the target has {target.num_params / 1e6:.0f} M"
    return Candidate(
        path, name, place, found.num_params, found.num_bytes, is_same, fault, found.is_recurrent
    )


# --- the places of models: (file, its name there, the place in words)

Found = Iterator[tuple[Path, str, str]]


def places(target: Path) -> Found:
    """Return every GGUF file that may be a draft, nearest first."""
    yield from _in_folder(target if target.is_dir() else target.parent, "next to the target")
    yield from _ours()
    yield from _in_folder(hub_folder(), "the hub's cache")
    yield from _in_folder(_llama_folder(), "llama.cpp's cache")
    yield from _ollama()
    for folder in (Path("~/.lmstudio/models"), Path("~/.cache/lm-studio/models")):
        yield from _in_folder(folder.expanduser(), "LM Studio's models")


def _in_folder(folder: Path, place: str) -> Found:
    """Return the GGUF files in a folder, and in its subfolders if the place is a cache."""
    pattern = "*.gguf" if place == "next to the target" else "**/*.gguf"
    try:
        paths = sorted(folder.glob(pattern))[:_MOST_FILES]
    except OSError:
        return
    for path in paths:
        yield path, path.stem, place


def _ours() -> Found:
    for alias in ALIASES.values():
        for source in alias.sources:
            path = source.cached(alias)
            if path is not None:
                yield path, alias.name, "duodec's models"
    yield from _in_folder(cache_folder() / "models", "duodec's models")


def hub_folder() -> Path:
    """Return the folder of the hub's cache without importing the hub's library."""
    environ = os.environ
    home = environ.get("HF_HOME") or _user_cache() / "huggingface"
    named = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expandvars(named or f"{home}/hub")).expanduser()


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()


def _llama_folder() -> Path:
    return Path(os.environ.get("LLAMA_CACHE") or _user_cache() / "llama.cpp").expanduser()


def _ollama() -> Found:
    for model in ollama.installed():
        if model.blob:
            yield model.blob, model.name, _OLLAMA

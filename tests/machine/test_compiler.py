"""Compile once; where that cannot be, there is no library, and nothing is left behind."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from duodec.machine import ownership
from duodec.machine.compiler import compiled
from duodec.machine.ownership import Unsafe


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "one.cpp").write_text('#include "one.h"\nextern "C" int one() { return ONE; }\n')
    (folder / "one.h").write_text("#define ONE 1\n")
    (folder / "two.cpp").write_text('extern "C" int two() { return 2; }\n')
    return folder


def test_files_are_compiled_once(sources: Path, tmp_path: Path) -> None:
    path = compiled(sources, tmp_path / "new" / "folder")
    assert path is not None
    made = path.stat().st_mtime_ns
    assert compiled(sources, path.parent) == path
    assert path.stat().st_mtime_ns == made
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_another_source_is_another_library(sources: Path, tmp_path: Path) -> None:
    made = [compiled(sources, tmp_path), compiled(sources, tmp_path, {"A": 1})]
    (sources / "one.h").write_text("#define ONE 3\n")  # a file that is included counts, too
    made.append(compiled(sources, tmp_path))
    assert None not in made
    assert len(set(made)) == len(made)
    library = ctypes.CDLL(str(made[-1]))
    assert (library.one(), library.two()) == (3, 2)


def test_without_a_compiler_there_is_no_library(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert compiled(sources, tmp_path) is None


def test_a_compiler_that_fails_leaves_nothing(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "false")
    folder = tmp_path / "native"
    assert compiled(sources, folder) is None
    assert not list(folder.iterdir())


def test_a_folder_that_cannot_be_made_is_no_library(sources: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert compiled(sources, tmp_path / "file" / "folder") is None


def test_a_compiler_may_have_options(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "c++ -w")
    assert compiled(sources, tmp_path) is not None


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_others_may_write_is_not_run(sources: Path, tmp_path: Path, what: str) -> None:
    folder = tmp_path / "native"
    path = compiled(sources, folder)
    assert path is not None
    (folder if what == "folder" else path).chmod(0o777)
    with pytest.raises(Unsafe, match="is not run: others may change") as caught:
        compiled(sources, folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
@pytest.mark.parametrize("link", ["file", "folder", "ancestor", "chain", "relative"])
def test_no_link_leads_to_what_others_may_write(
    sources: Path, tmp_path: Path, link: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that is ours, in a folder where another may put his own in its place."""
    monkeypatch.setattr(ownership, "_is_own_group", lambda status: False)
    shared = tmp_path / "shared"
    inner = shared / "inner"
    inner.mkdir(parents=True, mode=0o700)
    made = compiled(sources, inner)
    assert made is not None
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    if link == "file":
        made.rename(shared / made.name)
        (own / made.name).symlink_to(shared / made.name)
        folder = own
    elif link == "chain":
        (shared / "next").symlink_to(tmp_path / "end")
        (tmp_path / "end").symlink_to(inner)
        inner.rename(tmp_path / "real")
        inner.symlink_to(tmp_path / "real")
        (own / "first").symlink_to(shared / "next")
        folder = own / "first"
    elif link == "relative":
        (own / "up").symlink_to("../shared/inner")
        folder = own / "up"
    elif link == "folder":
        (own / "native").symlink_to(shared)
        made.rename(shared / made.name)
        folder = own / "native"
    else:
        folder = inner
    assert compiled(sources, folder) is not None
    shared.chmod(mode)
    if mode == 0o1777 and link != "folder":  # there, others cannot touch what is ours
        assert compiled(sources, folder) is not None
    else:
        with pytest.raises(Unsafe, match=r"others may change .*shared"):
            compiled(sources, folder)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("what", ["file", "folder", "link"])
def test_what_another_owns_is_not_run(sources: Path, tmp_path: Path, what: str) -> None:
    folder = tmp_path / "native"
    path = compiled(sources, folder)
    assert path is not None
    (tmp_path / "link").symlink_to(folder)
    os.lchown({"file": path, "folder": folder, "link": tmp_path / "link"}[what], 12345, 12345)
    with pytest.raises(Unsafe, match="others may change"):
        compiled(sources, tmp_path / "link")


def test_a_folder_that_a_users_own_group_may_write_is_the_users() -> None:
    import grp
    import pwd

    name = pwd.getpwuid(os.getuid()).pw_name
    group = next((one for one in grp.getgrall() if one.gr_name == name and not one.gr_mem), None)
    if group is None:
        pytest.skip("the user has no group of his own")
    status = list(Path("/").stat())
    for mode, is_own in ((0o40775, True), (0o40777, False)):
        status[0], status[5] = mode, group.gr_gid
        assert ownership._is_own_group(os.stat_result(status)) == is_own


def test_a_strict_or_a_loose_umask_is_no_obstacle(sources: Path, tmp_path: Path) -> None:
    for mask in (0o077, 0o002):
        before = os.umask(mask)
        try:
            assert compiled(sources, tmp_path / str(mask)) is not None
        finally:
            os.umask(before)

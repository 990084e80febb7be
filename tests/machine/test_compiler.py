"""Compile once; where that cannot be, there is no library, and nothing is left behind."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from duodec.machine.compiler import compiled


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
    assert compiled(sources, folder) is None


def test_a_strict_or_a_loose_umask_is_no_obstacle(sources: Path, tmp_path: Path) -> None:
    for mask in (0o077, 0o002):
        before = os.umask(mask)
        try:
            assert compiled(sources, tmp_path / str(mask)) is not None
        finally:
            os.umask(before)

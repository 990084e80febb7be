"""Compile once; where that cannot be, there is no library, and nothing is left behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from duodec.machine.compiler import compiled
from duodec.native.library import SIZES, SOURCES


def test_files_are_compiled_once(tmp_path: Path) -> None:
    path = compiled(SOURCES, tmp_path / "new" / "folder", SIZES)
    assert path is not None
    made = path.stat().st_mtime_ns
    assert compiled(SOURCES, path.parent, SIZES) == path
    assert path.stat().st_mtime_ns == made
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_another_source_is_another_library(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "one.cpp").write_text('#include "one.h"\nextern "C" int one() { return ONE; }\n')
    made = []
    for number in "12":  # a file that is included counts, too
        (other / "one.h").write_text(f"#define ONE {number}\n")
        made.append(compiled(other, tmp_path))
    made += [compiled(SOURCES, tmp_path, SIZES), compiled(other, tmp_path, {"A": 1})]
    assert None not in made
    assert len(set(made)) == len(made)


def test_without_a_compiler_there_is_no_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert compiled(SOURCES, tmp_path, SIZES) is None


def test_a_compiler_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "false")
    assert compiled(SOURCES, tmp_path, SIZES) is None
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert compiled(SOURCES, tmp_path / "file" / "folder", SIZES) is None


def test_a_compiler_may_have_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "c++ -w")
    assert compiled(SOURCES, tmp_path, SIZES) is not None


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_others_may_write_is_not_run(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "native"
    path = compiled(SOURCES, folder, SIZES)
    assert path is not None
    (folder if what == "folder" else path).chmod(0o777)
    assert compiled(SOURCES, folder, SIZES) is None


def test_a_strict_or_a_loose_umask_is_no_obstacle(tmp_path: Path) -> None:
    for mask in (0o077, 0o002):
        before = os.umask(mask)
        try:
            assert compiled(SOURCES, tmp_path / str(mask), SIZES) is not None
        finally:
            os.umask(before)

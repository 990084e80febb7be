"""The inner loops are compiled once for their sources, and what is missing is said."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from duodec.errors import BackendUnavailable
from duodec.native import build, library
from duodec.native.build import BuildFailed


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Other sources, in a folder of their own."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "one.cpp").write_text('#include "one.h"\nextern "C" int one() { return ONE; }\n')
    (folder / "one.h").write_text("#define ONE 1\n")
    (folder / "two.cpp").write_text('extern "C" int two() { return 2; }\n')
    monkeypatch.setattr(build, "FOLDER", folder)
    return folder


def test_files_are_compiled_once(folder: Path) -> None:
    path = build.build()
    made = path.stat().st_mtime_ns
    assert build.build() == path == build.library_path()
    assert path.stat().st_mtime_ns == made
    assert list(path.parent.iterdir()) == [path], "nothing is left behind"


def test_another_source_is_another_library(folder: Path) -> None:
    made = [build.build()]
    (folder / "one.h").write_text("#define ONE 3\n")  # a file that is included counts, too
    made.append(build.build())
    assert made[0] != made[1]
    loaded = ctypes.CDLL(str(made[1]))
    assert (loaded.one(), loaded.two()) == (3, 2)


@pytest.mark.usefixtures("folder")
def test_a_compiler_may_have_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "c++ -w")
    assert build.build().exists()


@pytest.mark.parametrize(
    ("compiler", "words"),
    [
        ("", "no C\\+\\+ compiler, which duodec is built with; install one: apt install g"),
        ("nothing++", "the C\\+\\+ compiler nothing\\+\\+ is not found"),
        (shutil.which("false"), "false cannot compile duodec's inner loops: it says nothing"),
    ],
)
def test_what_is_missing_is_said_in_a_line(
    compiler: str, words: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(BuildFailed, match=words) as error:
        build.build()
    assert "\n" not in str(error.value)
    assert not list(folder.rglob("*.so"))


def test_what_does_not_compile_is_named(folder: Path) -> None:
    (folder / "two.cpp").write_text("int two() { return three; }\n")
    with pytest.raises(BuildFailed, match=r"cannot compile .*two\.cpp.*error: .*three") as error:
        build.build()
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("folder")
def test_a_library_that_was_not_built_is_an_error_of_one_line() -> None:
    library.library.cache_clear()
    try:
        with pytest.raises(
            BackendUnavailable, match=r"run python -m duodec\.native\.build"
        ) as error:
            library.library()
        build.build().write_bytes(b"no library")
        with pytest.raises(BackendUnavailable, match="cannot be loaded"):
            library.library()
        assert "\n" not in str(error.value)
    finally:
        library.library.cache_clear()


def test_a_checkout_is_built_by_a_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "duodec.native.build"],
        capture_output=True, text=True, check=False, env=os.environ,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, f"{build.library_path()}\n")


def test_what_is_imported_is_not_loaded_yet() -> None:
    """An error that a user can mend is no traceback of an import."""
    code = (
        "from duodec.native import build; from pathlib import Path; "
        "build.FOLDER = Path('/nowhere'); import duodec.llm, duodec.cli.app; "
        "from duodec.native.library import library; print(library.cache_info().currsize)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.stdout == "0\n", done.stderr

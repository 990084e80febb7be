"""The engine where no satellite is installed: what is missing is one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from test_structure import ENGINE, as_source, satellite_of

IMPORT_ALL = """
import importlib, pkgutil, duodec
assert duodec.__file__.startswith({tree!r}), duodec.__file__
for found in pkgutil.walk_packages(duodec.__path__, "duodec."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
"""
LIBRARIES = ("purelib", "platlib")
MISSING = {
    ("bench",): ("duodec bench", "duodec-lab"),
    ("report", "x"): ("duodec report", "duodec-lab"),
    ("verify",): ("duodec verify", "duodec-lab"),
    ("plan", "--target-ms", "20"): ("duodec plan", "duodec-lab"),
    ("distill",): ("duodec distill", "duodec-lab"),
    ("datastore", "build", "x"): ("duodec datastore build", "duodec-lab"),
    ("vllm", "x"): ("duodec vllm", "duodec-vllm"),
    ("doctor", "--vllm"): ("duodec doctor --vllm", "duodec-vllm"),
    ("generate", "hi", "--target-backend", "torch"): ("target_backend torch", "duodec-torch"),
    ("generate", "hi", "--offline", "-m", "{folder}"): ("target_backend torch", "duodec-torch"),
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the engine lies, with all libraries of this environment and nothing else of ours."""
    place = tmp_path_factory.mktemp("engine")
    (place / "duodec").symlink_to(ENGINE)
    for folder in map(Path, dict.fromkeys(sysconfig.get_paths()[key] for key in LIBRARIES)):
        for path in folder.iterdir():
            if not re.match(r"_*(editable_impl_)?duodec", path.name, re.IGNORECASE):
                (place / path.name).symlink_to(path)
    folder = place / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model.safetensors").write_bytes(bytes(8))
    return place


def python(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-S", *arguments],  # without what editable packages add to the path
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdin=subprocess.DEVNULL,
    )


def test_all_of_it_is_imported(tree: Path) -> None:
    done = python(tree, "-c", IMPORT_ALL.format(tree=str(tree)))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", MISSING, ids=" ".join)
def test_what_is_missing_is_one_line(tree: Path, words: tuple[str, ...]) -> None:
    what, distribution = MISSING[words]
    done = python(tree, "-m", "duodec", *(word.format(folder=tree / "model") for word in words))
    assert done.returncode == 2
    assert done.stdout == ""
    begin = f"duodec: {what} is part of {distribution}, which is not installed; run: "
    assert done.stderr.startswith(begin.replace("target_backend", "target-backend")), done.stderr
    assert done.stderr.endswith(f"/packages/{distribution}\n")
    assert done.stderr.count("\n") == 1


def test_its_help_lists_what_is_there(tree: Path) -> None:
    done = python(tree, "-m", "duodec", "--help")
    assert done.returncode == 0, done.stderr
    names = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert {"run", "serve", "datastore"} <= names
    assert not {words[0] for words in MISSING} - {"generate", "doctor", "datastore"} & names


STARTED = """
import sys
from duodec.cli.app import run
from duodec.machine import plugins
assert run(sys.argv[1:]) == 0
num_read = plugins.installed.cache_info().currsize  # groups; one help lists methods of packages
assert num_read == sys.argv.count("--help-all"), "metadata of packages was read"
print("\\n".join(name for name in sys.modules if name.startswith("duodec")))
"""


@pytest.mark.parametrize("words", [["--version"], ["run", "--help"], ["generate", "--help-all"]])
def test_no_command_of_the_engine_imports_a_satellite(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARTED, *words],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "XDG_CONFIG_HOME": "/nowhere"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    places = {as_source(name) for name in done.stdout.split("\n")}
    assert "cli/app" in places
    assert not {place for place in places if satellite_of(place)}
    assert sum(place.startswith("cli/commands/") for place in places) <= 3  # `run` uses two more

"""`duodec distill` on the command line: what it refuses, in one line, before any work."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.disks import full_beyond
from fakes.tiny_models import write_hybrid

from duodec.cli import app
from duodec_lab.distill.settings import DistillSettings

RUN = "import sys; sys.modules[sys.argv[1]] = None; from duodec.cli.app import run; \
sys.exit(run(sys.argv[2:]))"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = app.run(["distill", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def needs_torch() -> None:
    for library in ("torch", "transformers", "gguf"):
        pytest.importorskip(library, reason=f"{library} is missing: make test-torch runs this")


@pytest.fixture
def pair(models: dict[str, Path], tmp_path: Path) -> list[str]:
    """The arguments of a distillation that would work."""
    needs_torch()
    return [str(models["target"]), "--from", str(models["draft"]), "-o", str(tmp_path / "new.gguf")]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of an error of the user's."""
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    (line,) = err.strip().splitlines()
    assert line.startswith("duodec: ")
    return line


@pytest.mark.parametrize(
    ("layers", "kept"),
    [(None, range(9)), ("1", [0]), ("2", [0, 8]), ("6", [0, 1, 5, 6, 7, 8]), ("9", range(9)),
     ("0,4", [0, 4])],
)  # fmt: skip
def test_layers_are_left_out_in_the_middle(layers: str | None, kept: Sequence[int]) -> None:
    assert DistillSettings(layers=layers).layers_of(9) == tuple(kept)


@pytest.mark.parametrize("library", ["torch", "gguf", "accelerate"])
def test_without_a_library_one_line_says_what_to_install(library: str) -> None:
    needs_torch()  # one of them is hidden from the process
    command = [sys.executable, "-c", RUN, library, "distill", "smollm2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert library in line
    assert "-m pip install" in line


@pytest.mark.parametrize("options", [(), ("--heads", "eagle3"), ("--heads", "medusa")])
def test_without_our_package_for_torch_one_line_says_what_to_install(options: list[str]) -> None:
    command = [sys.executable, "-c", RUN, "duodec_torch", "distill", "smollm2", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 2
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith(
        "duodec: duodec distill trains with duodec-torch, which is not installed"
    )
    assert line.endswith("/packages/duodec-torch")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--layers", "x"), "layers is 'x'; give how many to keep"),
        (("--layers", "9"), "layers is 9, and the draft has 1"),
        (("--layers", "0,4"), "layers is 0,4; name layers from 0 to 0"),
        (("--loss", "mse"), "unknown loss 'mse'; choose from: kl, lk, acceptance"),
        (("--quantize", "q2_k"), "unknown quantize 'q2_k'; choose from"),
        (("--minutes", "0"), "minutes is 0.0; use minutes, more than 0"),
        (("--prompts", "/nowhere"), "cannot read /nowhere"),
        (("--from", "/nowhere.gguf"), "no such file: /nowhere.gguf"),
        (("-o", "/proc/none/new.gguf"), "name another place with --output"),
    ],
)
def test_bad_options_are_one_line(
    capsys: pytest.CaptureFixture[str],
    pair: list[str],
    tmp_path: Path,
    options: tuple[str, str],
    words: str,
) -> None:
    assert words in refused(capsys, *pair, *options)
    assert not list(tmp_path.iterdir()), "nothing was begun"


def test_a_target_that_cannot_be_opened(
    capsys: pytest.CaptureFixture[str], pair: list[str], tmp_path: Path
) -> None:
    assert "no such file: nowhere.gguf" in refused(capsys, "nowhere.gguf", *pair[1:])
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(100))
    assert "broken.gguf" in refused(capsys, str(broken), *pair[1:])


def test_a_draft_that_cannot_be_written_back(
    capsys: pytest.CaptureFixture[str], pair: list[str], tmp_path: Path
) -> None:
    hybrid = write_hybrid(tmp_path / "hybrid.gguf")
    line = refused(capsys, *pair, "--from", str(hybrid))
    assert "of the architecture 'qwen35'" in line
    assert "name another with --from" in line


def test_too_little_memory_or_disk_is_told_before_any_work(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    pair: list[str],
    tmp_path: Path,
) -> None:
    from duodec_lab.distill import needs, recipe

    with monkeypatch.context() as patch:
        patch.setattr(recipe, "available_bytes", lambda: 300_000_000)
        line = refused(capsys, *pair)
    assert "of memory and 300 MB are free; use a smaller draft" in line
    with monkeypatch.context() as patch:
        patch.setattr(needs, "free_disk", lambda path: 1_000_000)
        line = refused(capsys, *pair)
    assert "has 1 MB free; free space" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("few_judged")
def test_a_disk_that_fills_up_is_one_line_and_loses_nothing(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    pair: list[str],
    tmp_path: Path,
) -> None:
    from duodec_lab.distill import files

    def full_after_two(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) > 3:  # the manifest and two shards
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    written: list[int] = []
    few = ("--limit", "28", "--max-tokens", "8", "--steps", "4", "--quantize", "f16",
           "--judge-ms", "5")  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fsync", full_after_two)
        status, _, err = run(capsys, *pair, *few, "--quiet")
    assert status == 1
    assert err.strip().splitlines()[-1].endswith("free space on its disk")
    folder = tmp_path / "new.gguf.distill"
    assert sorted(path.name for path in folder.iterdir()) == [
        "manifest.json", "shard-00000.npz", "shard-00001.npz",
    ]  # fmt: skip
    before = (folder / "shard-00001.npz").stat().st_mtime_ns
    status, out, err = run(capsys, *pair, *few, "--json", "--quiet")
    record = json.loads(out)
    assert status == (0 if record["is_better"] else 1)
    assert record["num_steps"] == 4
    assert (folder / "shard-00001.npz").stat().st_mtime_ns == before, "it was not recorded again"
    assert refused_again(capsys, pair).endswith("or delete that folder")


@pytest.mark.usefixtures("few_judged")
@pytest.mark.parametrize("name", ["checkpoint", "candidate"])
def test_a_disk_that_fills_up_while_weights_are_written(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    pair: list[str],
    tmp_path: Path,
    name: str,
) -> None:
    """torch and gguf say something else of it."""
    from duodec_lab.distill import library, recipe
    from duodec_lab.distill.training import loop as training

    begin = library.gguf.GGUFReader(pair[2]).data_offset

    def full(write: Callable[..., None]) -> Callable[..., None]:
        def writing(*args: Any, **kwargs: Any) -> None:
            with full_beyond(begin + 4096):
                write(*args, **kwargs)

        return writing

    few = ("--limit", "28", "--max-tokens", "8", "--steps", "2", "--quantize", "f16",
           "--judge-ms", "5", "--quiet")  # fmt: skip
    with monkeypatch.context() as patch:
        if name == "checkpoint":
            patch.setattr(training.Training, "save", full(training.Training.save))
        else:
            patch.setattr(recipe, "write_gguf", full(recipe.write_gguf))
        status, out, err = run(capsys, *pair, *few)
    assert (status, out) == (1, "")
    line = err.strip().splitlines()[-1]
    assert line.startswith("duodec: cannot write the output: File too large; ")
    assert not list(tmp_path.rglob(".*.part"))
    folder = tmp_path / "new.gguf.distill"
    assert (folder / "checkpoint.pt").exists() == (name == "candidate")
    status, out, _ = run(capsys, *pair, *few, "--json")
    assert status == (0 if json.loads(out)["is_better"] else 1)


def refused_again(capsys: pytest.CaptureFixture[str], pair: list[str]) -> str:
    return refused(capsys, *pair, "--limit", "12")

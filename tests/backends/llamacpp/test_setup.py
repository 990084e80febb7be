"""Setting up: llama.cpp is built once, with progress, and checked before it is used."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest
from fakes import ROOT
from fakes.draft_processes import until

from duodec.backends.cpu import cpu_key
from duodec.backends.llamacpp.build import native
from duodec.backends.llamacpp.build import processor as build
from duodec.backends.llamacpp.checks import self_test
from duodec.cli.app import run
from duodec.errors import BackendUnavailable
from duodec.loading.vetting import vetted
from duodec.machine.install import pip_command
from duodec.models import resolve

FAKE_PIP = """
import os, sys, time
from pathlib import Path
with open(os.environ["CALLS"], "a") as calls:
    calls.write(" ".join(sys.argv[1:]) + "\\t" + os.environ.get("CMAKE_ARGS", "") + "\\n")
if os.environ.get("HANGS") == sys.argv[1]:
    Path(os.environ["CALLS"]).with_name("pid").write_text(str(os.getpid()))
    time.sleep(300)
if os.environ.get("BREAKS") == sys.argv[1]:
    print("CMake Error: no luck")
    sys.exit(1)
if os.environ.get("BREAKS_KERNELS") and "-DDUODEC_KERNELS=OFF" not in os.environ["CMAKE_ARGS"]:
    print(os.environ["BREAKS_KERNELS"] + "/tiles.h:7:1: error: no such instruction")
    sys.exit(1)
if sys.argv[1] == "wheel":
    print("[1/2] Building CXX object\\n" + os.environ.get("TOLD", ""), flush=True)
    folder = Path(sys.argv[sys.argv.index("--wheel-dir") + 1])
    folder.mkdir()
    (folder / "llama_cpp_python-0.3.36-py3-none-any.whl").touch()
"""


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A pip that writes down what it is asked."""
    script = tmp_path / "pip.py"
    script.write_text(FAKE_PIP)
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("CXX", sys.executable)  # there is a compiler
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    return [sys.executable, str(script)]


def calls(tmp_path: Path) -> list[str]:
    path = tmp_path / "calls"
    return path.read_text().splitlines() if path.exists() else []


# --- the build


def test_a_build_is_kept_and_found_again(pip: list[str], tmp_path: Path) -> None:
    said: list[str] = []
    first = native.find_or_build(pip, "a cpu", "", said.append)
    assert native.find_or_build(pip, "a cpu", "", said.append) == first
    assert len(calls(tmp_path)) == 1
    assert "building llama.cpp" in said[0]
    native.find_or_build(pip, "another cpu", "", said.append)
    native.find_or_build(pip, "a cpu", "-DGGML_VULKAN=on", said.append)
    assert len(calls(tmp_path)) == 3
    native.forget("a cpu", "")
    native.find_or_build(pip, "a cpu", "", said.append)
    assert len(calls(tmp_path)) == 4


def test_a_build_makes_the_library_only_and_no_amx_kernels(pip: list[str], tmp_path: Path) -> None:
    native.find_or_build(pip, "a cpu", "-DOWN=on", lambda line: None)
    (call,) = calls(tmp_path)
    assert "-U__AMX_INT8__" in call
    assert f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={native.LIBRARY_ONLY}" in call
    assert call.endswith("-DOWN=on")
    words = native.LIBRARY_ONLY.read_text()
    assert "set(LLAMA_BUILD_COMMON OFF" in words


def test_a_build_makes_the_library_for_pictures_without_its_decoders(
    pip: list[str], tmp_path: Path
) -> None:
    native.find_or_build(pip, "a cpu", "", lambda line: None)
    (call,) = calls(tmp_path)
    assert "-DLLAVA_BUILD=ON" in call
    words = native.LIBRARY_ONLY.read_text()
    assert 'list(FILTER sources EXCLUDE REGEX "mtmd-helper")' in words
    assert 'list(FILTER libraries EXCLUDE REGEX "^vendor::")' in words


def test_a_build_for_cuda_changes_its_sources_and_tells_what_it_left(
    pip: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOLD", "  -- duodec: mmvq.cu reads otherwise\n  -- ggml version: 1")
    said: list[str] = []
    native.find_or_build(pip, "a cpu", "-DGGML_CUDA=on", said.append)
    assert said[1:] == ["mmvq.cu reads otherwise"]
    (call,) = calls(tmp_path)
    assert f"-DCMAKE_PROJECT_ggml_INCLUDE={native.CUDA_WIDTHS}" in call


def test_a_build_that_fails_shows_the_end_of_its_log(
    pip: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BREAKS", "wheel")
    with pytest.raises(native.BuildFailed, match=r"building llama\.cpp failed.*\.log"):
        native.find_or_build(pip, "a cpu", "", lambda line: None)
    assert "CMake Error: no luck" in capsys.readouterr().err
    assert not list((native.cache_folder() / "wheels").glob("building-*"))


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_build_that_is_stopped_leaves_no_process_and_no_folder(
    name: str, pip: list[str], tmp_path: Path
) -> None:
    number = getattr(signal, name, None) or pytest.skip(f"no {name} here")
    program = f"""
import signal, sys
from contextlib import nullcontext
if {int(number)} != signal.SIGINT:
    signal.signal({int(number)}, signal.SIG_DFL)  # whoever runs the tests may ignore it
from duodec.backends.cpu import cpu_key
from duodec.backends.llamacpp.build import native
from duodec.cli import app
from duodec.machine import install
install.pip_command = lambda: nullcontext({pip!r})
sys.argv = ["duodec", "setup", "--rebuild"]
app.main()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "HANGS": "wheel"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() != "")
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said.splitlines()[-1]) == (130, "interrupted")
    until(lambda: not psutil.pid_exists(int((tmp_path / "pid").read_text())))
    until(lambda: not list((native.cache_folder() / "wheels").glob("building-*")))


@pytest.mark.parametrize(
    ("cxx", "path", "words"),
    [(None, "", "apt install build-essential"), ("no-such-compiler", None, "correct CXX")],
)
def test_a_missing_compiler_is_one_line_with_the_remedy(
    cxx: str | None, path: str | None, words: str, pip: list[str],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    if cxx is None:
        monkeypatch.delenv("CXX")
    else:
        monkeypatch.setenv("CXX", cxx)
    if path is not None:
        monkeypatch.setenv("PATH", path)
    with pytest.raises(native.BuildFailed, match=words) as caught:
        native.find_or_build(pip, "a cpu", "", lambda line: None)
    assert "\n" not in str(caught.value)
    assert not calls(tmp_path)


def test_progress_tells_the_time_left() -> None:
    progress = native.Progress(start_s=0.0)
    assert progress.words(b"Collecting llama-cpp-python", 65.0) == "fetching the sources, 1:05"
    assert progress.words(b"[10/80] Building CXX object", 100.0).endswith(" 10/80")
    # ten more steps took 20 s: 60 are left
    assert progress.words(b"[1/80] x\n[20/80] y", 120.0).endswith("20/80, about 2:00 left")
    assert "█" in progress.words(b"[20/80] y", 120.0)
    of_make = native.Progress(start_s=0.0)
    of_make.words(b"[ 10%] Building", 10.0)
    assert of_make.words(b"[ 60%] Building", 60.0).endswith("60/100, about 0:40 left")


def test_a_build_off_a_terminal_is_not_silent(
    pip: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "slow.py"
    slow.write_text(FAKE_PIP.replace("folder.mkdir()", "time.sleep(1.5); folder.mkdir()"))
    monkeypatch.setattr(native, "SAYS_EVERY_S", 0.5)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    said: list[str] = []
    native.find_or_build([sys.executable, str(slow)], "a cpu", "", said.append)
    assert "1/2" in said[1]


# --- the command


def test_the_command_builds_installs_and_checks(
    pip: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Where llama.cpp is missing; the note says which processor the build is for."""
    is_there = False
    checked: list[bool] = []

    def check() -> None:
        checked.append(is_there)
        if not is_there:
            raise BackendUnavailable("llama.cpp is not built yet")

    def install(wheel: Path, pip: list[str]) -> None:
        nonlocal is_there
        is_there = wheel.is_file()

    @contextmanager
    def fake() -> Iterator[list[str]]:
        yield pip

    monkeypatch.setattr(self_test, "check", check)
    monkeypatch.setattr(native, "install", install)
    monkeypatch.setattr("duodec.machine.install.pip_command", fake)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert run(["setup"]) == 0
    assert checked == [False, True]
    assert (tmp_path / build.NOTE).read_text().strip() == cpu_key()
    assert "installed and works" in capsys.readouterr().err
    assert run(["setup"]) == 0  # there is nothing to do
    assert len(calls(tmp_path)) == 1
    assert run(["setup", "--rebuild"]) == 0
    assert len(calls(tmp_path)) == 2


def test_an_environment_without_pip_gets_one_for_the_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those of uv and pipx are."""
    found = native.importlib.util.find_spec
    monkeypatch.setattr(
        native.importlib.util, "find_spec",
        lambda name: None if name == "pip" else found(name),
    )  # fmt: skip
    made: list[list[str]] = []

    class Done:
        returncode = 0

    def run_(command: list[str], **_: object) -> Done:
        made.append(command)
        return Done()

    monkeypatch.setattr(native.subprocess, "run", run_)
    with pip_command() as pip:
        assert pip[1:4] == ["-m", "pip", "--python"]
        assert pip[4] == sys.executable
        assert pip[0] != sys.executable
        folder = Path(made[0][-1])
        assert folder.is_dir()
    assert not folder.exists()


def test_kernels_that_do_not_compile_leave_llama_cpp_its_own(
    pip: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BREAKS_KERNELS", str(native.KERNELS))
    said: list[str] = []
    assert native.find_or_build(pip, "cpu", "", said.append).is_file()
    told = next(line for line in said if "do not compile here" in line)
    assert "no such instruction" in Path(told.split()[-1]).read_text()


# --- the check at load time


@pytest.mark.parametrize("chosen", [{}, {self_test.SWITCH: self_test.OFF}], ids=["ours", "theirs"])
def test_the_installed_library_computes_what_the_weights_say(chosen: dict[str, str]) -> None:
    found = self_test.examine(chosen)
    assert self_test.deviation(found.rows) < self_test.MOST_DEVIATION / 2
    assert found.product_deviation < self_test.MOST_PRODUCT_DEVIATION
    assert bool(found.kernels) == (found.product_deviation > 0) == (not chosen)
    assert found.seconds > 0


def test_the_reference_is_that_of_the_draft_that_we_ship() -> None:
    """Another draft needs another one: these numbers, rounded."""
    torch = pytest.importorskip("torch", reason="torch is not installed: make setup-torch")
    pytest.importorskip("transformers", reason="transformers is not installed: make setup-torch")
    from duodec_lab.distill.source import SourceFile
    from duodec_lab.distill.training.student import open_student

    source = SourceFile(resolve("smollm2-draft").path)
    model = open_student(source, tuple(range(source.num_layers)), "cpu").eval()
    with torch.inference_mode():
        rows = model(torch.tensor([self_test.PROMPT])).logits[0].numpy()
    for length, expected in self_test.REFERENCE.items():
        found = rows[length - 1][:: self_test.STRIDE]
        assert abs(found - expected).max() < 0.02, [round(float(x), 2) for x in found]


def test_rows_of_other_tokens_are_not_taken_for_rounding() -> None:
    moved = [list(row) for row in self_test.REFERENCE.values()]
    assert self_test.deviation(moved) == 0
    assert self_test.deviation([*moved[1:], moved[0]]) > 2 * self_test.MOST_DEVIATION


def found_by(
    rows: object = None, kernels: str = "AVX", deviation: float = 0.0, seconds: float = 1.0
) -> str:
    """A program that prints what a process of the self-test would."""
    rows = [list(row) for row in self_test.REFERENCE.values()] if rows is None else rows
    found = self_test.Examined(rows, kernels, deviation, seconds)  # type: ignore[arg-type]
    return f"print({json.dumps(asdict(found))!r})"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "dies on this processor"),
        (found_by([[1.0] * 16] * 8), "computes wrongly here"),
        (found_by([[float("nan")] * 16] * 8), "computes wrongly here"),
        ("raise ImportError('no libgomp')", "no libgomp"),
    ],
)
def test_a_library_that_is_not_faithful_is_refused(
    code: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examined_by(monkeypatch, tmp_path, code, code)
    for _ in range(2):  # a bad verdict is not kept
        with pytest.raises(BackendUnavailable, match=words) as caught:
            self_test.check()
        assert "duodec setup --rebuild" in str(caught.value)


def examined_by(
    monkeypatch: pytest.MonkeyPatch, cache: Path, ours: str, theirs: str
) -> list[str | None]:
    """Let programs examine the library in the place of its processes; whose was run."""
    monkeypatch.setenv("DUODEC_CACHE", str(cache))
    monkeypatch.delenv(self_test.CHECKED, raising=False)
    monkeypatch.setenv(self_test.SWITCH, "")  # so that what the check sets is taken back
    monkeypatch.delenv(self_test.SWITCH)
    run_really, run = self_test.subprocess.run, []

    def examine(command: list[str], env: dict[str, str], **options: Any) -> Any:
        run.append(env.get(self_test.SWITCH))
        code = theirs if env.get(self_test.SWITCH) == self_test.OFF else ours
        return run_really([sys.executable, "-c", code], **options)

    monkeypatch.setattr(self_test.subprocess, "run", examine)
    return run


@pytest.mark.parametrize(
    ("ours", "theirs", "is_off", "words"),
    [
        (found_by(seconds=1.0), found_by(kernels="", seconds=1.2), False, ""),
        (found_by(seconds=1.2), found_by(kernels="", seconds=1.0), True, "are faster on this CPU"),
        (found_by(deviation=0.3), found_by(kernels=""), True, "for AVX compute wrongly"),
        (found_by(deviation=float("nan")), found_by(kernels=""), True, "for AVX compute wrongly"),
        (found_by([[1.0] * 16] * 8), found_by(kernels=""), True, "for AVX compute wrongly"),
        ("import os; os.abort()", found_by(kernels=""), True, "dies on this processor"),
        (found_by(kernels=""), found_by(kernels=""), True, "built without our kernels"),
    ],
)
def test_kernels_are_chosen_once_and_the_choice_is_kept(
    ours: str,
    theirs: str,
    is_off: bool,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = examined_by(monkeypatch, tmp_path, ours, theirs)
    for turn in range(2):
        monkeypatch.delenv(self_test.CHECKED, raising=False)
        monkeypatch.delenv(self_test.SWITCH, raising=False)
        self_test.check()
        assert (os.environ.get(self_test.SWITCH) == self_test.OFF) == is_off
        said = capsys.readouterr().err
        assert (words in said and said.count("\n") == bool(words)) if not turn else not said
    assert len(run) <= 2


def test_a_faithful_library_is_examined_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path))
    examined: list[bool] = []

    def choose() -> str:
        examined.append(True)
        return "AVX"

    monkeypatch.setattr(self_test, "choose", choose)
    for _ in range(2):
        monkeypatch.delenv(self_test.CHECKED, raising=False)
        self_test.check()
    assert len(examined) == 1


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(self_test.CHECKED, raising=False)
    monkeypatch.setattr(self_test, "version", lambda name: "0.2.1")
    with pytest.raises(BackendUnavailable, match=r"0\.2\.1 is installed .* run `duodec setup`"):
        self_test.check()


def test_a_model_that_nobody_pinned_is_refused_in_one_line_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> str:
        raise self_test.PackageNotFoundError(name)

    monkeypatch.setattr(self_test, "version", missing)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(BackendUnavailable, match="not built yet; run `duodec setup`"):
        vetted(resolve(str(tmp_path / "model.gguf")))


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BackendUnavailable, match="not built yet; run `duodec setup`"):
        self_test.check()


# --- the package


def test_the_package_tells_what_an_index_shows() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 has it")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["readme"] == "README.md"
    assert project["urls"]
    assert project["authors"]
    assert {"LICENSE", "NOTICE"} <= set(project["license-files"])
    extra = project["optional-dependencies"]["llama-cpp"]
    assert extra == [f"{native.PACKAGE}=={native.VERSION}"]
    assert not any("llama" in name for name in project["dependencies"]), (
        "pip would build in silence"
    )


def test_a_report_is_written_without_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    from duodec_lab.bench import card

    def version(name: str) -> str:
        raise card.PackageNotFoundError(name)

    monkeypatch.setattr(card, "version", version)
    assert card.environment()["packages"]["llama-cpp-python"] == "not installed"


@pytest.mark.parametrize(
    ("program", "wanted"),
    [
        ("#!/bin/sh\necho 'NVIDIA H100, 81559 MiB'\n", "NVIDIA H100, 81559 MiB"),
        ("#!/bin/sh\necho broken driver >&2\nexit 9\n", None),
    ],
)
def test_the_card_names_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, wanted: str | None
) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text(program)
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    from duodec_lab.bench import card

    assert card.environment()["gpu"] == wanted

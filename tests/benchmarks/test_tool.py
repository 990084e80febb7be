"""Experiments are listed, each has a program and a page, and what they find has one format."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import benchmarks.__main__ as tool
import psutil
import pytest
import typer
from benchmarks import Figures, Refuted
from benchmarks.decoding import grid
from benchmarks.table import EXPERIMENTS, Experiment
from fakes import ROOT

SERVING = """\
import sys
import time
from benchmarks import __main__ as tool
from benchmarks.decoding import grid
from benchmarks.serving import servers

def serve():
    with servers.ours("-m", sys.argv[1]) as served:
        print(served.pid, flush=True)
        time.sleep(600)

grid.main = serve
tool.main(["grid"])
"""
FORMAT = {"experiment", "question", "command", "commit", "environment", "settings", "figures"}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tool, "RESULTS", tmp_path)
    return tmp_path


def run(function: object, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    """The exit status of an experiment in place of `grid`."""
    monkeypatch.setattr(grid, "main", function)
    with pytest.raises(SystemExit) as ended:
        tool.main(["grid", *options])
    return 1 if isinstance(ended.value.code, str) else ended.value.code or 0


def measure(
    num: Annotated[int, typer.Option()] = 3,
    path: Annotated[Path | None, typer.Option()] = None,
) -> Figures:
    """Twice a number."""
    return {"twice": 2 * num}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_has_a_program_and_a_page_that_names_it(name: str) -> None:
    experiment = EXPERIMENTS[name]
    path = ROOT / "benchmarks" / f"{experiment.module.replace('.', '/')}.py"
    tree = ast.parse(path.read_text("utf-8"))
    (function,) = (
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == experiment.function
    )
    assert ast.get_docstring(function)
    assert experiment.question.strip()
    assert name in (ROOT / "docs" / experiment.page).read_text("utf-8")


def test_every_program_is_in_the_table_or_used_by_one_that_is() -> None:
    folder = ROOT / "benchmarks"
    texts = {path: path.read_text("utf-8") for path in folder.glob("*/*.py")}
    listed = {experiment.module for experiment in EXPERIMENTS.values()}
    for path in texts:
        name = ".".join(path.relative_to(folder).with_suffix("").parts)
        if path.stem == "__init__" or name in listed:
            continue
        others = [text for other, text in texts.items() if other != path]
        assert any(path.stem in text for text in others), f"{name} is neither listed nor used"


def test_one_format_holds_what_they_find(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(measure, monkeypatch, "--num", "4", "--path", "some") == 0
    record = json.loads((results / "grid.json").read_text("utf-8"))
    assert set(record) == FORMAT
    assert record["figures"] == {"twice": 8}
    assert record["settings"] == {"num": 4, "path": "some"}
    assert record["command"] == "python -m benchmarks grid --num 4 --path some"
    assert record["question"] == EXPERIMENTS["grid"].question
    assert record["environment"]["cores"] >= 1
    assert "written to" in capsys.readouterr().out


def test_a_result_may_have_another_name(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(measure, monkeypatch, "--result", "other", "--num", "1") == 0
    assert [path.name for path in results.iterdir()] == ["other.json"]
    with pytest.raises(SystemExit, match="--result needs a name"):
        tool.main(["grid", "--result"])


def test_what_refutes_a_claim_is_written_and_fails(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuted() -> Figures:
        raise Refuted("it is slower", {"speed": 0.9})

    assert run(refuted, monkeypatch) == 1
    assert json.loads((results / "grid.json").read_text("utf-8"))["figures"] == {"speed": 0.9}


def test_what_writes_its_own_results_leaves_none(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(lambda: None, monkeypatch) == 0
    assert not list(results.iterdir())


@pytest.mark.usefixtures("results")
def test_an_unknown_option_or_experiment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(measure, monkeypatch, "--nothing") == 2
    with pytest.raises(SystemExit, match="there is no experiment girds; did you mean grid"):
        tool.main(["girds"])


@pytest.mark.slow
def test_servers_end_with_an_experiment_that_is_ended() -> None:
    pytest.importorskip("llama_cpp", reason="llama.cpp is not built: make setup")
    command = [sys.executable, "-c", SERVING, "smollm2-draft"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as experiment:
        assert experiment.stdout is not None
        server = psutil.Process(int(experiment.stdout.readline()))
        try:
            experiment.terminate()
            assert experiment.wait(60) == 128 + signal.SIGTERM
            assert not server.is_running()
        finally:
            if server.is_running():  # the test has failed
                server.kill()


def test_without_a_name_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    tool.main([])
    out = capsys.readouterr().out
    assert all(name in out for name in EXPERIMENTS)
    assert len(out.splitlines()) < len(EXPERIMENTS) + 10
    assert isinstance(EXPERIMENTS["grid"], Experiment)

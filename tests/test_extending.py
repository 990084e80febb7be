"""A stranger's command and backend: those of docs/extending.md, installed as packages are."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fakes import ROOT

from duodec import LLM, SamplingParams
from duodec.cli.app import run
from duodec.errors import BadOption, ModelNotFound
from duodec.loading import backends
from duodec.loading.config import EngineConfig
from duodec.loading.resolve import resolve_target
from duodec.machine import plugins
from duodec.testing import RunningTable, TableModel, TableTarget, check_method, check_target

PAGE = (ROOT / "docs" / "extending.md").read_text("utf-8")
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
MODULES = dict(zip(("my_commands", "my_backends"), CODE, strict=True))
TOML = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
ENTRY_POINTS = "".join(TOML).replace('project.entry-points."', "").replace('"', "")
PROMPT = "Hello"

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs modules in a folder as a package that names them."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))

    def forget() -> None:
        plugins.installed.cache_clear()
        backends.named.cache_clear()
        for module in MODULES:
            sys.modules.pop(module, None)

    def install(modules: dict[str, str] = MODULES, points: str = ENTRY_POINTS) -> None:
        for module, code in modules.items():
            (tmp_path / f"{module}.py").write_text(code, "utf-8")
        record = tmp_path / "my_package-1.0.dist-info"
        record.mkdir()
        (record / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
        (record / "entry_points.txt").write_text(points)
        monkeypatch.syspath_prepend(tmp_path)
        forget()

    yield install
    forget()


def test_an_installed_package_adds_a_command(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install()
    text = tmp_path / "text.txt"
    text.write_text("One two three")
    assert run(["count", str(text)]) == 0
    assert capsys.readouterr().out == "3\n"
    assert run(["count", "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Usage: duodec count [OPTIONS] {file}")
    assert "duodec count README.md" in out
    assert run(["count"]) == 2
    assert "see duodec count --help" in capsys.readouterr().err
    assert run(["--help"]) == 0
    assert re.search(
        r"  count +Count the tokens of a file, as a model reads it\n", capsys.readouterr().out
    )
    assert run(["coutn", "x"]) == 2
    assert "Did you mean 'count'" in capsys.readouterr().err


def test_a_name_of_ours_stays_ours(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(points="[duodec.commands]\nrun = my_commands:count\nbench = my_commands:count")
    for name in ("run", "bench"):
        assert run([name, "--help"]) == 0
        assert "Count the tokens" not in capsys.readouterr().out
    assert "my_commands" not in sys.modules


def test_a_package_adds_groups_and_to_a_group(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    code = """
import typer
one, two = typer.Typer(), typer.Typer()
@one.command()
def first(): print("first")
@two.command()
def second(): print("second")
@two.command()
def third(): print("third")
"""
    install(
        {"my_commands": code},
        "[duodec.commands]\none=my_commands:one\ntwo=my_commands:two\n"
        "datastore.count=my_commands:first\n",
    )
    for words in (["one"], ["two", "second"], ["two", "third"], ["datastore", "count"]):
        assert run(words) == 0, words
    assert capsys.readouterr().out == "first\nsecond\nthird\nfirst\n"


def test_a_broken_package_is_told_in_a_line_and_spoils_no_other_command(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install({"my_commands": "import nowhere"}, "[duodec.commands]\ncount=my_commands:count\n")
    assert run(["count", "x"]) == 2
    err = capsys.readouterr().err
    assert re.fullmatch(
        r"duodec: duodec count of the package my-package cannot be imported: .*; update or remove "
        r"that package\n",
        err,
    ), err
    assert run(["--help"]) == 0
    assert "cannot be imported" in capsys.readouterr().out
    (tmp_path / "duodec").mkdir()
    (tmp_path / "duodec" / "config.yaml").write_text("log-level: error\n")
    assert run(["cache"]) == 0


def test_an_installed_package_adds_a_backend(install: Install, tmp_path: Path) -> None:
    install()
    seed = tmp_path / "seed.txt"
    seed.write_text("7")
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=40)
    texts = set()
    with LLM(str(seed), None, target_backend="table", context=200) as llm:
        for method in ("ar", "lookup", "suffix", "auto"):
            (done,) = llm.generate(PROMPT, params, method=method)
            texts.add(done.text)
            assert len(done.tokens) == 40
    assert len(texts) == 1
    with pytest.raises(BadOption, match=r"rows is 8, which only llama\.cpp can serve"):
        resolve_target(EngineConfig("nowhere", target_backend="table", rows=8))
    with pytest.raises(ModelNotFound, match="name one with the seed of a table"):
        resolve_target(EngineConfig("nowhere", target_backend="table"))
    with pytest.raises(BadOption, match="heads is x, and table reads none; leave it out"):
        resolve_target(EngineConfig(str(seed), target_backend="table", heads="x"))


def test_its_command_line_names_it(
    install: Install, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install()
    (tmp_path / "seed.txt").write_text("7")
    command = ["generate", PROMPT, "--target-backend", "table", "-m", str(tmp_path / "seed.txt"),
               "--draft", "none", "--raw", "-n", "12", "--seed", "1"]  # fmt: skip
    assert run(command) == 0
    first = capsys.readouterr().out
    assert run([*command, "--method", "ar"]) == 0
    assert capsys.readouterr().out == first
    assert len(first) > 5


def test_a_backend_that_nobody_knows_is_refused_with_the_names(install: Install) -> None:
    with pytest.raises(BadOption, match="unknown target backend 'table'; choose from: auto, llama"):
        EngineConfig(target_backend="table")
    install(points="[duodec.backends]\ntable=my_commands:count\n")
    with pytest.raises(BadOption, match=r"'tabel'; choose from: auto, llama\.cpp, torch, table$"):
        EngineConfig(target_backend="tabel")
    with pytest.raises(BadOption, match=r"is no subclass of duodec\.loading\.backends"):
        resolve_target(EngineConfig(target_backend="table"))


def test_checks_of_methods_and_targets_find_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    table = TableModel()
    for method in ("ar", "lookup", "duo", "rest", "medusa"):
        assert check_method(method)
    with pytest.raises(AssertionError, match="another text than plain decoding"):
        check_method("sps-rejection")  # it keeps the distribution, and no text
    assert check_target(RunningTable(table), [1, 2, 3], num_vocab=32) == 7

    class Forgetful(TableTarget):
        """Its rows depend on how many there are."""

        def score(self, queries):  # type: ignore[no-untyped-def]
            seed = max(len(query.draft) for query in queries)
            return TableTarget(TableModel(seed=seed)).score(queries)

    with pytest.raises(AssertionError, match="where it is scored alone"):
        check_target(Forgetful(table), [1, 2, 3], num_vocab=32)

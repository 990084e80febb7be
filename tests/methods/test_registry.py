"""A method from outside the package: the one of docs/methods.md, as a module and as a package."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import ROOT
from fakes.decoding import decode, plain_text
from fakes.dice import CASES, assert_exact
from pydantic import ValidationError

from duodec.core.sampling.sampler import SamplingParams
from duodec.errors import BadOption
from duodec.machine import plugins
from duodec.methods.registry import METHODS, method, names
from duodec.server.api.bodies import Speculation
from duodec.testing import TableModel, TableTarget

PAGE = (ROOT / "docs" / "methods.md").read_text("utf-8")
CODE = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
ENTRY_POINT = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
PROMPT = (1, 2, 3, 1, 2)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that modules are imported from; nothing of it is known afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    plugins.installed.cache_clear()
    yield tmp_path
    plugins.installed.cache_clear()
    sys.modules.pop("my_methods", None)
    METHODS.pop("echo", None)


@pytest.fixture
def module(folder: Path) -> Path:
    """The module of the page."""
    assert CODE
    path = folder / "my_methods.py"
    path.write_text(CODE[1], "utf-8")
    return path


@pytest.fixture
def package(module: Path) -> str:
    """The same, installed as a package that names it. Returns the method's name."""
    assert ENTRY_POINT
    record = module.parent / "my_methods-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: my-methods\nVersion: 1.0\n")
    lines = ENTRY_POINT[1].replace('[project.entry-points."duodec.methods"]', "[duodec.methods]")
    (record / "entry_points.txt").write_text(lines.replace('"', ""))
    return "echo"


def assert_decodes(name: str) -> None:
    model = TableModel(num_vocab=6, order=1, seed=3)  # greedy text of order 1 runs in circles
    for sampling in (SamplingParams(temperature=0), SamplingParams(temperature=1.0, seed=4)):
        found, rounds = decode(
            name, target=TableTarget(model), num_tokens=60, prompt=PROMPT, params=sampling
        )
        assert found == plain_text(model, sampling, 60, PROMPT)
        assert sum(done.num_accepted for done in rounds) > 5
    assert max(done.num_drafted for done in rounds) == method(name).num_tokens  # type: ignore[attr-defined]


@pytest.mark.usefixtures("module")
def test_a_class_of_a_module_decodes_with_the_targets_text() -> None:
    assert_decodes("my_methods:Echo")
    assert_decodes("my_methods:Echo:2")
    assert_decodes("echo")  # known by its own name now
    with pytest.raises(BadOption, match="write, say, my_methods:Echo:4"):
        method("my_methods:Echo:many")


def test_a_module_may_have_the_name_of_its_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Path
) -> None:
    (tmp_path / "echo.py").write_text((tmp_path / "my_methods.py").read_text())
    monkeypatch.delitem(sys.modules, "echo", raising=False)
    for name in ("echo:Echo", "echo:Echo:3", "echo:Echo"):  # the first makes "echo" known
        assert method(name).name == "echo"
    assert_decodes("echo:4")
    with pytest.raises(BadOption, match="write, say, sps:4"):
        method("sps:Echo")


@pytest.mark.usefixtures("module")
def test_its_distribution_is_the_targets_exactly() -> None:
    method("my_methods:Echo")
    witnesses = [assert_exact("echo", case) for case in CASES[:3]]
    assert sum(witness.num_scored for witness in witnesses) > 0


def test_an_installed_package_adds_a_method(package: str) -> None:
    assert "my_methods" not in sys.modules
    assert package in names()
    assert Speculation(method=package).method == package
    assert "my_methods" not in sys.modules, "a list of names imports nothing"
    assert_decodes(package)
    assert_decodes(f"{package}:3")


@pytest.mark.usefixtures("module")
def test_a_client_of_the_server_names_no_module() -> None:
    for name in ("my_methods:Echo", "my_methods:Echo:4", "echo", "sps:2"):
        with pytest.raises(ValidationError, match=re.escape(f"is {name!r}; choose from: ar, ")):
            Speculation(method=name)
    assert "my_methods" not in sys.modules


BROKEN = {
    "no such module": ("", "nowhere:Echo", "No module named 'nowhere'; put the folder"),
    "no such class": ("", "my_methods:Ekko", "has no attribute 'Ekko'; mend the module"),
    "not Python": ("def", "my_methods:Echo", "invalid syntax"),
    "no name of a class": ("", "my methods:Echo", "is no name of a class; write module:Class"),
    "relative": ("", ".my_methods:Echo", "is no name of a class"),
    "no method": ("class Echo: ...", "my_methods:Echo", "is no subclass of duodec.methods.Method"),
    "no class": ("Echo = 3", "my_methods:Echo", "is no subclass of duodec.methods.Method"),
    "no name": (
        "from duodec.methods import Method\nclass Echo(Method): ...",
        "my_methods:Echo",
        "has no name; give the class one",
    ),
    "another's name": (
        "from duodec.methods import Method\nclass Echo(Method):\n    name = 'sps'",
        "my_methods:Echo",
        "is called 'sps', as another method is; rename it",
    ),
    "no loop": (
        "from duodec.methods import Method\nclass Echo(Method):\n    name = 'echo'",
        "my_methods:Echo",
        "cannot be made without arguments: .*decode",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_what_is_no_method_is_refused_in_a_line(fault: str, folder: Path) -> None:
    code, name, words = BROKEN[fault]
    (folder / "my_methods.py").write_text(code, "utf-8")
    with pytest.raises(BadOption, match=words) as error:
        method(name)
    assert "\n" not in str(error.value)
    assert "echo" not in METHODS

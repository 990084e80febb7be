"""What is missing is installed by a command that works for this copy, wherever it came from."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import ROOT

from duodec.machine import install


def test_the_command_installs_into_this_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/my environments/bin/python")
    monkeypatch.setattr(install, "find_spec", lambda name: object())
    words = shlex.split(install.install_command("scipy>=1.15"))
    assert words == ["/my environments/bin/python", "-m", "pip", "install", "scipy>=1.15"]
    monkeypatch.setattr(install, "find_spec", lambda name: None)  # as uv makes environments
    words = shlex.split(install.install_command("scipy"))
    assert words == ["uv", "pip", "install", "--python", "/my environments/bin/python", "scipy"]


def test_a_distribution_is_named_by_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = ["duodec==1", "torch>=2.11", "gguf>=0.10 ; python_version > '3'",
              'triton>=3; (sys_platform == "linux") and extra == "triton"']  # fmt: skip
    monkeypatch.setattr(install, "requires", lambda name: listed)
    assert install.needs_command("duodec-torch").endswith("pip install 'torch>=2.11' 'gguf>=0.10'")
    monkeypatch.setattr(install, "requires", lambda name: None)
    assert install.needs_command("duodec-torch").endswith("pip install duodec-torch")


def test_a_satellite_comes_from_where_duodec_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    def wanted(noted: str | None, code: Path = ROOT) -> str:
        package = SimpleNamespace(read_text=lambda name: noted)
        monkeypatch.setattr(install, "distribution_named", lambda name: package)
        monkeypatch.setattr(install, "__file__", str(code / "src/duodec/machine/install.py"))
        return shlex.split(install.satellite_command("duodec-lab"))[-1]

    place, nowhere = str(ROOT / "packages" / "duodec-lab"), Path("/usr/lib/python3")
    assert wanted(None) == place, "it runs from its sources"
    folder = json.dumps({"url": ROOT.as_uri(), "dir_info": {"editable": False}})
    assert wanted(folder, nowhere) == place, "pip install ."
    cloned = {"url": "https://host/duodec", "vcs_info": {"vcs": "git", "commit_id": "abc"}}
    where = "git+https://host/duodec@abc#subdirectory=packages/duodec-lab"
    assert wanted(json.dumps(cloned), nowhere) == f"duodec-lab @ {where}"
    assert wanted(None, nowhere) == wanted("damaged", nowhere) == "duodec-lab", "of an index"
    gone = json.dumps({"url": "file:///gone%20away", "dir_info": {}})
    assert wanted(gone, nowhere) == "duodec-lab", "the folder was deleted"


def test_no_remedy_needs_duodec_on_an_index() -> None:
    for path in [*ROOT.glob("src/**/*.py"), *ROOT.glob("packages/*/src/**/*.py")]:
        assert "install 'duodec[" not in path.read_text("utf-8"), path

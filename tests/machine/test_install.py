"""What is missing is installed by a command that works for this copy, wherever it came from."""

from __future__ import annotations

import shlex
import sys

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


def test_a_satellite_is_installed_from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    place = ROOT / "packages" / "duodec-lab"
    assert shlex.split(install.satellite_command("duodec-lab"))[-2:] == ["install", str(place)]
    monkeypatch.setattr(install, "__file__", "/usr/lib/python3/site-packages/duodec/machine/x.py")
    assert install.satellite_command("duodec-lab").endswith("install duodec-lab")


def test_no_remedy_needs_duodec_on_an_index() -> None:
    for path in [*ROOT.glob("src/**/*.py"), *ROOT.glob("packages/*/src/**/*.py")]:
        assert "install 'duodec[" not in path.read_text("utf-8"), path

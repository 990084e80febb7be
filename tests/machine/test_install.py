"""What is missing is installed by a command that works for this copy, wherever it came from."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

import duodec
from duodec.machine import install


def test_the_command_installs_into_this_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/my environments/bin/python")
    monkeypatch.setattr(install, "find_spec", lambda name: object())
    words = shlex.split(install.install_command("scipy>=1.15"))
    assert words == ["/my environments/bin/python", "-m", "pip", "install", "scipy>=1.15"]
    monkeypatch.setattr(install, "find_spec", lambda name: None)  # as uv makes environments
    words = shlex.split(install.install_command("scipy"))
    assert words == ["uv", "pip", "install", "--python", "/my environments/bin/python", "scipy"]


def test_an_extra_is_named_by_what_it_consists_of(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = ["numpy>=1", 'torch>=2.11; extra == "torch"', "gguf>=0.10 ; extra == 'torch'",
              'triton>=3; (sys_platform == "linux") and extra == "triton"']  # fmt: skip
    monkeypatch.setattr(install, "requires", lambda name: listed)
    assert install.extra_command("torch").endswith("pip install 'torch>=2.11' 'gguf>=0.10'")
    monkeypatch.setattr(install, "requires", lambda name: None)
    assert install.extra_command("torch").endswith("pip install torch")


def test_no_remedy_needs_duodec_on_an_index() -> None:
    for path in Path(duodec.__file__).parent.rglob("*.py"):
        assert "install 'duodec[" not in path.read_text("utf-8"), path

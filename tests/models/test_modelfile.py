"""Ollama's Modelfiles name a target and its draft."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.hub import write_gguf

from duodec.errors import ModelUnreadable
from duodec.loading.config import EngineConfig
from duodec.models.modelfile import Modelfile

TEXT = '''# made by `ollama show --modelfile`

FROM ./big.gguf
PARAMETER temperature 0.7
LICENSE """
DRAFT a licence's word
FROM anybody
"""
draft "small.gguf"
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    for name in ("big.gguf", "small.gguf"):
        write_gguf(tmp_path / name)
    path = tmp_path / "Modelfile"
    path.write_text(TEXT)
    return path


def test_target_and_draft_are_those_that_it_names(file: Path) -> None:
    config = EngineConfig(target=str(file))
    assert config.target == str(file.parent / "big.gguf")
    assert config.draft == str(file.parent / "small.gguf")


@pytest.mark.parametrize("draft", ["none", "other.gguf", None])
def test_a_draft_that_is_named_goes_before(file: Path, draft: str | None) -> None:
    assert EngineConfig(target=str(file), draft=draft).draft == draft


def test_without_a_draft_line_one_is_looked_for(file: Path) -> None:
    file.write_text("from hf:owner/repo:q8_0\n")
    config = EngineConfig(target=str(file))
    assert (config.target, config.draft) == ("hf:owner/repo:q8_0", "auto")


@pytest.mark.parametrize("text", ["", "FROMAGE is cheese", "SYSTEM x\nFROM y", "# FROM x"])
def test_another_text_is_no_modelfile(file: Path, text: str) -> None:
    file.write_text(text)
    assert Modelfile.read(str(file)) is None
    for reference in ("smollm2", str(file.parent), str(file.parent / "big.gguf"), "a" * 5000):
        assert Modelfile.read(reference) is None


def test_an_adapter_is_not_left_out_in_silence(file: Path) -> None:
    file.write_text("FROM ./big.gguf\nADAPTER ./lora.gguf\n")
    with pytest.raises(ModelUnreadable, match="merge it"):
        EngineConfig(target=str(file))

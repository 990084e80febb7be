"""Models are listed, shown, fetched, and matched with drafts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fakes.command_line import Cli, duodec
from fakes.ollama_models import pulled

from duodec.models import resolve


def test_models_are_listed_and_fetched(cli: Cli) -> None:
    status, out, _ = cli("list", "--json")
    assert status == 0
    listed = {model["name"]: model for model in json.loads(out)["models"]}
    assert listed["smollm2-draft"]["is_present"]
    _, table, _ = cli("list")
    assert "smollm2-draft" in table
    _, path, err = cli("pull", "smollm2-draft")
    assert path.strip() == listed["smollm2-draft"]["path"]
    assert "Apache-2.0" in err
    status, out, err = cli("pull", "smolm2")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "did you mean smollm2" in err


def test_show_tells_what_a_model_is(cli: Cli) -> None:
    _, out, _ = cli("show", "smollm2-draft")
    assert re.search(r"^quantisation +Q4_0$", out, re.MULTILINE)
    record = json.loads(cli("show", "smollm2-draft", "--json")[1])
    assert (record["num_vocab"], record["num_context"]) == (49152, 8192)
    status, out, err = cli("show", "hf:o/not-here")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert cli("rm", "smollm2-draft")[0] == 2


def test_ollamas_models_are_listed_by_name(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    tokens = [f"token{i}" for i in range(300)]
    pulled(tmp_path, "qwen2.5-coder:1.5b", tokens=tokens, num_params=4000, name="Coder")
    pulled(tmp_path, "qwen2.5-coder:0.5b", tokens=tokens, num_params=400)
    _, table, _ = cli("list")
    assert re.search(r"^qwen2.5-coder:1.5b +\S+ .* yes, Ollama's$", table, re.MULTILINE)
    assert "sha256" not in table
    _, out, err = cli("drafts", "qwen2.5-coder:1.5b")
    assert re.search(r"^qwen2.5-coder:0.5b .* same vocabulary$", out, re.MULTILINE)
    assert "sha256" not in out + err
    assert "Coder" in cli("show", "qwen2.5-coder:1.5b")[1]
    status, _, err = cli("rm", "qwen2.5-coder:1.5b")
    assert (status, err.count("\n")) == (2, 1)
    assert "`ollama rm` removes it" in err


@pytest.mark.slow
def test_drafts_of_a_target_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "draft-x.gguf"
    path.write_bytes(b"GGUF")
    target = tmp_path / "target.gguf"
    target.symlink_to(resolve("smollm2", offline=True).path)
    run = duodec("drafts", str(target))
    assert run.returncode == 0, run.stderr
    assert re.search(r"smollm2-135m-draft-q4_0.gguf +50 M .* same vocabulary", run.stdout)
    assert "draft-x.gguf is truncated or damaged" in run.stdout
    assert "published for SmolLM2: smollm2-draft" in run.stderr
    record = json.loads(duodec("drafts", str(target), "--json").stdout)
    assert record["family"]["draft"] == "smollm2-draft"
    assert record["candidates"][0]["is_same"]

"""Models are listed, shown, fetched, and matched with drafts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from fakes.command_line import Cli, duodec

from duodec.models import resolve


def test_models_are_listed_and_fetched(cli: Cli) -> None:
    status, out, _ = cli("models", "--json")
    assert status == 0
    listed = {model["name"]: model for model in json.loads(out)["models"]}
    assert listed["smollm2-draft"]["is_present"]
    _, table, _ = cli("models")
    assert "smollm2-draft" in table
    _, path, err = cli("models", "pull", "smollm2-draft")
    assert path.strip() == listed["smollm2-draft"]["path"]
    assert "Apache-2.0" in err
    status, out, err = cli("models", "pull", "smolm2")
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


@pytest.mark.slow
def test_drafts_of_a_target_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "draft-x.gguf"
    path.write_bytes(b"GGUF")
    target = tmp_path / "target.gguf"
    target.symlink_to(resolve("smollm2", offline=True).path)
    run = duodec("models", "drafts", str(target))
    assert run.returncode == 0, run.stderr
    assert re.search(r"smollm2-135m-draft-q4_0.gguf +50 M .* same vocabulary", run.stdout)
    assert "draft-x.gguf is truncated or damaged" in run.stdout
    assert "published for SmolLM2: smollm2-draft" in run.stderr
    record = json.loads(duodec("models", "drafts", str(target), "--json").stdout)
    assert record["family"]["draft"] == "smollm2-draft"
    assert record["candidates"][0]["is_same"]

"""A hybrid as a user has it: through the command line, the server and the check of the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes.families import write_family
from fakes.tiny_models import write_hybrid

from duodec.core.sampling.sampler import SamplingParams
from duodec.llm import load
from duodec.loading.config import EngineConfig
from duodec.models import resolve

METHODS = ("ar", "lookup", "sps", "duo", "stream", "auto")
PROMPT = "one two three four one two three"
NUM_TOKENS = 24


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hybrid(tmp_path_factory.mktemp("models") / "hybrid.gguf")


def duodec(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "duodec", *arguments, "--json"],
        capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, check=True,
        env={**os.environ, "DUODEC_CACHE": str(tmp_path / "cache")},
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_every_method_has_one_text_through_the_command_line_and_the_server(
    path: Path, tmp_path: Path
) -> None:
    server = pytest.importorskip("fakes.server")
    draft = str(resolve("smollm2-draft").path)
    texts = {
        method: duodec(
            tmp_path, "generate", "-m", str(path), "-md", draft, "-t", "1", "-c", "256", "--raw",
            "-n", str(NUM_TOKENS), "--method", method, "--seed", "3", PROMPT,
        )["text"]
        for method in METHODS
    }  # fmt: skip
    assert len(set(texts.values())) == 1
    config = EngineConfig(target=str(path), draft=draft, context=256, threads=1, num_slots=2)
    with load(config) as llm, server.running(llm, num_slots=2) as running:
        for method in METHODS:
            done = running.complete(
                PROMPT, max_tokens=NUM_TOKENS, seed=3, speculation={"method": method}
            )
            assert done.status_code == 200, done.text
            assert done.json()["choices"][0]["text"] == texts["ar"], method


@pytest.mark.slow
def test_the_check_tells_the_memory_of_states_and_the_time_of_a_pass(
    path: Path, tmp_path: Path
) -> None:
    """Of an architecture without snapshots, too."""
    other = write_family(tmp_path / "target.gguf", "Granite 4")
    for model in (path, other):
        found = duodec(tmp_path, "doctor", "-m", str(model), "-md", "none", "-c", "256")
        words = "\n".join(check["words"] for check in found["checks"])
        assert "states" in words or "snapshots" in words, words
        assert not [check for check in found["checks"] if check["verdict"] == "fail"], words


def test_a_small_hybrid_drafts_for_a_large_one(tmp_path: Path) -> None:
    target = write_family(tmp_path / "target.gguf", "Qwen 3.5")
    draft = write_family(tmp_path / "draft.gguf", "Qwen 3.5", noise=0.02)
    config = EngineConfig(target=str(target), draft=str(draft), context=256, threads=1)
    with load(config) as llm:
        done = {
            name: llm.generate(PROMPT, SamplingParams(max_tokens=60), method=name)[0]
            for name in ("ar", "sps", "stream")
        }
    assert len({one.tokens for one in done.values()}) == 1
    assert done["sps"].stats.num_accepted_tokens > 0

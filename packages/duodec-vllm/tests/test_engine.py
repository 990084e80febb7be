"""The real vLLM, its build for the CPU, with our drafter: the same texts.

In 32-bit floats: in bfloat16 vLLM's own kernels round otherwise at other widths, and texts part at
near ties with any method of speculation, its own too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fakes import ROOT, TESTS
from fakes.decoding import chi_square_limit

from duodec_lab.bench.tasks import TASKS, read_prompts

NUM_PROMPTS, NUM_SAMPLES = 20, 320
STEP_S = 0.06  # a forward pass of a larger model: drafts pay

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is missing; run make test-vllm"),
    pytest.mark.skipif(not (ROOT / "benchmarks").is_dir(), reason="needs the repository"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def target() -> str:
    """SmolLM2 as vLLM reads it."""
    command = [sys.executable, "-m", "benchmarks.vllm.checkpoint", "smollm2"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip().splitlines()[-1]


def prompts() -> list[str]:
    """Of the folder that DUODEC_DATA names, or the package's own."""
    folder = os.environ.get("DUODEC_DATA")
    found = read_prompts(Path(folder) if folder else None, TASKS, 5)
    texts = [prompt.turns[0] for prompt in found if len(prompt.turns[0]) < 2000]
    return [texts[i * len(texts) // NUM_PROMPTS] for i in range(NUM_PROMPTS)]  # of all tasks


def run(target: str, folder: Path, **job: Any) -> dict[str, Any]:
    """One engine's completions."""
    output = folder / "found.json"
    usual = {
        "model": target, "prompts": prompts(), "max_tokens": 28, "step_s": 0.0, "is_ours": False,
        "num_samples": NUM_SAMPLES, "output": str(output),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(TESTS / "fakes" / "vllm_engine.py")],
        input=json.dumps({**usual, **job}),
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert output.exists(), done.stderr[-3000:]
    found: dict[str, Any] = json.loads(output.read_text())
    return found


@pytest.fixture(scope="module")
def plain(target: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(target, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def ours(target: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """With our drafter, which is killed in the middle of the prompts."""
    return run(target, tmp_path_factory.mktemp("ours"), is_ours=True, step_s=STEP_S, kill_after=150)


def test_answers_are_those_of_plain_decoding_one_at_a_time(
    plain: Mapping[str, Any], ours: Mapping[str, Any]
) -> None:
    assert len(plain["alone"]) == NUM_PROMPTS
    assert ours["alone"] == plain["alone"]


def test_answers_are_those_of_plain_decoding_sixteen_at_once(
    plain: Mapping[str, Any], ours: Mapping[str, Any]
) -> None:
    assert len(plain["together"]) == 16
    assert ours["together"] == plain["together"]


def test_the_drafter_was_killed_came_back_and_was_of_use(ours: Mapping[str, Any]) -> None:
    assert ours["restarts"] == 1
    assert ours["counts"]["num_hits"] > 50


def test_vllms_own_counters_count_our_drafts(ours: Mapping[str, Any]) -> None:
    metrics = ours["metrics"]
    drafted = metrics["vllm:spec_decode_num_draft_tokens"]
    accepted = metrics["vllm:spec_decode_num_accepted_tokens"]
    assert 0 < drafted <= ours["counts"]["num_tokens"]
    assert 0.2 * drafted < accepted < drafted
    assert ours["steps"] > 0  # in the same registry


def test_sampled_answers_follow_the_same_distribution(
    plain: Mapping[str, Any], ours: Mapping[str, Any]
) -> None:
    """The tokens of each place, counted: a difference as large as chance brings once in a million
    times would be one."""
    for place in range(6):
        counts = [Counter(t[place] for t in found["sampled"]) for found in (plain, ours)]
        assert_same_distribution(*counts)


def assert_same_distribution(ours: Counter[int], theirs: Counter[int]) -> None:
    """Two samples of one size: chi-square over all tokens that were seen often, the rest as one."""
    common = [t for t in set(ours) | set(theirs) if ours[t] + theirs[t] >= 10]
    pairs = [(ours[t], theirs[t]) for t in common]
    pairs.append(
        (ours.total() - sum(a for a, _ in pairs), theirs.total() - sum(b for _, b in pairs))
    )
    statistic = sum((a - b) ** 2 / (a + b) for a, b in pairs if a + b)
    assert statistic < chi_square_limit(max(1, len(pairs) - 1))

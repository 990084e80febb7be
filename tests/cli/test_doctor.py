"""`duodec doctor`: whether a pair is usable, its drafts, and what is wrong with a model."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

import pytest
from fakes.command_line import IDLE, MAIN, duodec, one_line
from fakes.families import write_family

from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.checks.operations import left_to_llama_cpp
from duodec.backends.llamacpp.model import LlamaModel
from duodec.cli.checks.machine import check_kernels


@pytest.mark.slow
def test_doctor_finds_the_default_pair_usable() -> None:
    run = duodec("doctor", "--json", "-t", "1")
    assert run.returncode == 0, run.stderr
    record = json.loads(run.stdout)
    assert record["is_usable"]
    names = {check["name"] for check in record["checks"]}
    assert names >= {"target", "draft", "vocabularies", "chat template", "context", "cores",
                     "memory", "llama.cpp", "idle"}  # fmt: skip
    assert (record["speed"] is None) == ("drafts" not in names), "a busy machine is not judged"
    if record["speed"]:
        assert record["speed"]["verify_s"] > record["speed"]["draft_s"] > 0


@pytest.mark.slow
def test_doctor_tries_the_drafts_that_it_finds() -> None:
    run = duodec("doctor", "--threads", "1", code=f"{IDLE}; {MAIN}")
    assert run.returncode == 0, run.stderr
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("ok    best draft")]
    assert "smollm2-draft" in line
    assert re.search(r"same vocabulary\): \d+% of first guesses right", line)
    assert "duodec chat --target smollm2 --draft" in line


@pytest.mark.slow
def test_doctor_tells_of_another_vocabulary(bad_files: Path) -> None:
    run = duodec("doctor", "--draft", str(bad_files / "renamed.gguf"))
    assert run.returncode == 0, run.stdout
    assert re.search(r"^ok +vocabularies +token 4096 is 'XXXX", run.stdout, re.MULTILINE)
    assert "the draft's text is tokenised anew" in run.stdout


@pytest.mark.slow
def test_doctor_names_a_model_of_another_kind(bad_files: Path) -> None:
    run = duodec("doctor", "--target", str(bad_files / "bert.gguf"))
    assert run.returncode == 3
    assert "is no language model (bert)" in run.stdout
    assert "None" in one_line(duodec("doctor", "--target", "/nowhere/None"))


@pytest.mark.parametrize("packs", [True, False], ids=["packed", "mapped"])
def test_doctor_judges_by_what_a_forward_pass_computes(packs: bool, tmp_path: Path) -> None:
    """Not by the formats in the file, which our kernels compute where weights are packed."""
    path = write_family(tmp_path / "model.gguf", "DeepSeek 3", kind="F16")
    with closing(LlamaModel(path, num_gpu_layers=0, packs=packs)) as model:
        if not library.kernels(model.lib):
            pytest.skip("llama.cpp's own kernels are used here")
        found = check_kernels(model)
        sources = {operation.source for operation in left_to_llama_cpp(model)}
    if packs:
        assert (found.verdict, found.remedy, sources) == ("ok", "", set())
        return
    assert sources >= {"blk.0.attn_k_b.weight", "blk.0.attn_v_b.weight", "output.weight"}
    assert found.verdict == "warn"
    assert f"llama.cpp's compute {len(sources)} tensors in f16" in found.words
    assert "--no-repack" in found.remedy


def test_doctor_names_other_operations_of_llama_cpp(tmp_path: Path) -> None:
    path = write_family(tmp_path / "model.gguf", "Mamba 2")
    with closing(LlamaModel(path, num_gpu_layers=0)) as model:
        if not library.kernels(model.lib):
            pytest.skip("llama.cpp's own kernels are used here")
        found = check_kernels(model)
    assert found.verdict == "ok"
    assert found.words.endswith("; llama.cpp's compute convolution, state scan")

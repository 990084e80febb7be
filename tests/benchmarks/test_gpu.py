"""The hour on a GPU, rehearsed without one: models made on the spot, and what travels."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from fakes import ROOT

from benchmarks import made_models
from benchmarks.gpu import gpu, packing
from benchmarks.gpu.gpu_forwards import LlamaPasses, curve, moved_bits, times, words
from benchmarks.made_models import MIXES, SHAPES, shape_named, write_gguf
from duodec.backends.curves import CostCurve
from duodec.backends.llamacpp.model import LlamaModel
from duodec.errors import BadOption

TINY = SHAPES["tiny"]
# what a machine with torch does not have; decoding must not need it
ABSENT = ("llguidance", "gguf", "starlette", "uvicorn", "httptools", "prompt_toolkit")
PROGRAM = """
import runpy, sys

sys.modules.update(dict.fromkeys({absent!r}))  # an import of one fails
sys.argv = {argv!r}
runpy.run_module("benchmarks", run_name="__main__")
"""


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    dice = np.random.default_rng(0)
    path = tmp_path / "texts.json"
    turn = {
        "number": 1, "prompt_tokens": dice.integers(100, 9000, 40).tolist(), "text": "",
        "answer": dice.integers(100, 9000, 12).tolist(), "max_tokens": 12,
        "candidates": [[[200, 300], [0.6, 0.4]]] * 12,
    }  # fmt: skip
    path.write_text(json.dumps([turn]))
    return path


def measured(output: Path, texts: Path, only: str, absent: Sequence[str]) -> dict[str, dict]:
    """gpu.json of a run in which some libraries are missing."""
    argv = [
        "benchmarks", "gpu", "--device", "cpu", "--output", str(output), "--texts", str(texts),
        "--only", only,
    ]  # fmt: skip
    places = (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", ""))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(absent=absent, argv=argv)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, dict] = json.loads((output / "gpu.json").read_text())
    return found


@pytest.mark.parametrize("mix", MIXES)
def test_a_made_file_is_a_model_of_its_shape(mix: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "made.gguf", TINY, mix)
    with closing(LlamaModel(path, num_gpu_layers=0)) as model:
        assert (model.num_layers, model.num_vocab) == (TINY.num_layers, TINY.num_vocab)
        with closing(LlamaPasses(model, 512, 1)) as passes:
            rows = passes.logits(words(40, TINY.num_vocab), 40, [7, 8])
            assert rows.shape == (3, TINY.num_vocab)
            assert np.isfinite(rows).all()
            assert 0.05 < rows.std() < 20


def test_tokens_choose_among_the_experts_of_a_made_file(tmp_path: Path) -> None:
    shape = replace(TINY, num_experts=8, num_used=2)
    path = write_gguf(tmp_path / "made.gguf", shape, "Q4_K_M")
    with closing(LlamaModel(path, num_gpu_layers=0)) as model:
        assert model.metadata("granitemoe.expert_used_count") == "2"
        with closing(LlamaPasses(model, 512, 1)) as passes:
            rows = passes.logits(words(40, TINY.num_vocab), 40, [7, 8, 9])
    assert len(set(rows.argmax(axis=1))) == len(rows) == 4
    assert 0.05 < rows.std() < 20


@pytest.mark.parametrize(("mix", "gigabytes"), [("Q4_K_M", 4.92), ("Q8_0", 8.54), ("BF16", 16.07)])
def test_formats_are_mixed_as_in_files_of_llama_3(mix: str, gigabytes: float) -> None:
    """Whose sizes these are, their vocabularies included: some 8 MB."""
    shape = SHAPES["llama-3-8b"]
    sizes = [
        made_models._size(dims, made_models._format_of(name, shape, mix))
        for name, dims in made_models._tensors(shape)
    ]
    assert sum(sizes) / 1e9 == pytest.approx(gigabytes, abs=0.02)


def test_a_made_model_of_torch_is_one_that_the_torch_backend_reads(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: make setup-torch")
    pytest.importorskip("transformers", reason="transformers is not installed: make setup-torch")
    from duodec.backends.torch.checkpoint.blueprint import Blueprint
    from duodec.backends.torch.checkpoint.weights import read_weights

    model, num_bytes = gpu._torch_model(gpu.Bench.on("cpu", "tiny", tmp_path, tmp_path))
    made = [dims for name, dims in made_models._tensors(TINY) if name != "token_embd.weight"]
    assert num_bytes == 2 * sum(map(math.prod, made))
    model.save_pretrained(tmp_path / "saved")
    read = read_weights(Blueprint.of(tmp_path / "saved", device="cpu", dtype="bfloat16"))
    tokens = torch.arange(20)[None]
    with torch.inference_mode():
        logits, again = (one(tokens).logits for one in (model, read))
    assert torch.equal(logits, again)
    assert logits.dtype == torch.bfloat16
    assert not model.training
    assert model.config._attn_implementation == read.config._attn_implementation
    assert logits.shape == (1, 20, TINY.num_vocab)
    assert bool(torch.isfinite(logits).all())
    assert 0.05 < float(logits.float().std()) < 20


def test_an_unknown_shape_is_named_with_those_there_are() -> None:
    with pytest.raises(BadOption, match="unknown shape 'llama-9'; choose from: tiny, llama-3-8b"):
        shape_named("llama-9")


def test_bits_are_compared_by_width_and_by_row(tmp_path: Path) -> None:
    """What a row's bits depend on is seen: here, on nothing, and in the control, on its index."""
    path = write_gguf(tmp_path / "made.gguf", TINY, "Q8_0")
    with (
        closing(LlamaModel(path, num_gpu_layers=0)) as model,
        closing(LlamaPasses(model, 512, 1)) as passes,
    ):
        found = moved_bits(passes, TINY.num_vocab, 60)
        assert set(found["by_width"].values()) == {0.0}
        assert {off for offs in found["by_row_index"].values() for off in offs.values()} == {0.0}
        points = times(passes, TINY.num_vocab, 60, rows=(1, 4))
        logits = passes.logits

        def off_by_index(text: np.ndarray, num_prompt: int, chain: Sequence[int]) -> np.ndarray:
            rows = logits(text, num_prompt, chain)
            return rows + 0.01 * np.arange(len(rows), dtype=np.float32)[:, None]

        passes.logits = off_by_index  # type: ignore[method-assign]
        found = moved_bits(passes, TINY.num_vocab, 60)
        assert found["by_width"][8] == pytest.approx(0.07, abs=1e-3)
        assert found["by_row_index"][8][4] == pytest.approx(0.04, abs=1e-3)
    assert [point["rows"] for point in points] == [1, 4]
    falling = [{"rows": 1, "median_s": 0.005}, {"rows": 2, "median_s": 0.004}]
    assert CostCurve.parse(curve(falling, "here")["points"]).seconds(2) == 0.005


@pytest.mark.slow
def test_llama_cpp_is_measured_without_what_it_does_not_need(tmp_path: Path, texts: Path) -> None:
    found = measured(tmp_path, texts, "Q4_K_M,environment", (*ABSENT, "torch", "transformers"))
    assert {"torch", "transformers", "llguidance"} <= set(found["environment"]["found"]["missing"])
    assert not [name for name, section in found.items() if "error" in section]
    methods = found["llama.cpp Q4_K_M: methods"]["parts"]["methods"]
    assert set(methods) == {"ar", "duo", "auto"}
    assert methods["ar"]["tokens_a_pass"] == 1
    assert methods["ar"]["times_plain"] == 1
    curves = json.loads((tmp_path / "curves.json").read_text())
    for name in curves:
        assert CostCurve.parse(f"{tmp_path / 'curves.json'}:{name}").points[-1][0] == 64
    assert len(curves) == 2


def test_torch_is_measured_without_what_it_does_not_need(tmp_path: Path, texts: Path) -> None:
    if not (find_spec("torch") and find_spec("transformers")):
        pytest.skip("torch is not installed: make setup-torch")
    found = measured(tmp_path, texts, "torch BF16: methods", ABSENT)
    methods = found["torch BF16: methods"]["parts"]["methods"]
    assert methods["duo"]["texts"] == 1


def test_a_section_that_lacks_a_library_says_so_and_the_others_run(
    tmp_path: Path, texts: Path
) -> None:
    found = measured(tmp_path, texts, "generate,steps", ("torch", "transformers"))
    assert "torch" in found["torch BF16: transformers' generate"]["error"]
    assert "error" not in found["draft steps"]


@pytest.mark.parametrize("preset", [None, pytest.param(0, marks=pytest.mark.slow)])
def test_what_travels_is_collected_and_weighed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    preset: int | None,
) -> None:
    """Without a preset the archive is not compressed, which takes seconds."""

    def pip(command: Sequence[str], **_: object) -> None:
        assert "--python-version" in command
        folder = Path(command[command.index("--dest") + 1])
        with packing.zipfile.ZipFile(folder / "typer-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr("typer/__init__.py", "")
            wheel.writestr("typer-1.data/scripts/typer", "")

    monkeypatch.setattr(packing.subprocess, "run", pip)
    if preset is None:
        monkeypatch.setattr(packing.lzma, "open", lambda path, mode, preset: path.open(mode))
        monkeypatch.setattr(packing, "_MOST_BYTES", 1 << 40)
    else:
        monkeypatch.setattr(packing, "_PRESET", preset)
    monkeypatch.setattr(packing, "record_texts", lambda path: path.write_text("[]"))
    folder = tmp_path / "pack"
    packing.pack_into(folder, None, "3.12")
    told = capsys.readouterr().out
    assert "MiB  llama.cpp" in told
    assert "MiB  in all; pack.tar.xz takes" in told
    with packing.tarfile.open(tmp_path / "pack.tar.xz") as tar:
        assert "pack/duodec/llm.py" in tar.getnames()
    for name in (
        "duodec/llm.py", "duodec/data/smollm2-135m-draft-q4_0.gguf", "benchmarks/gpu/texts.json",
        "benchmarks/__main__.py", "llama_cpp/lib/libllama.so", "typer/__init__.py",
    ):  # fmt: skip
        assert (folder / name).exists(), name
    assert not list(folder.glob("typer-1.data"))
    sources = [path.read_text() for path in (folder / "benchmarks").rglob("*.py")]
    for module in re.findall(r"^ *from (benchmarks\S*) import", "\n".join(sources), re.MULTILINE):
        path = folder / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__init__.py").exists(), module
    with pytest.raises(BadOption, match="is not empty"):
        packing.pack_into(folder, None, "3.12")
    monkeypatch.setattr(packing, "_MOST_BYTES", 1 << 20)
    with pytest.raises(BadOption, match="too large to travel"):
        packing.pack_into(tmp_path / "other", None, "3.12")

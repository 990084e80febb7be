"""The hour on a GPU, rehearsed without one: models made on the spot, and what travels."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from benchmarks import made_models
from benchmarks.gpu import gpu, packing, start
from benchmarks.gpu.gpu_forwards import LlamaPasses, curve, moved_bits, times, words
from benchmarks.made_models import MIXES, SHAPES, shape_named, write_gguf
from fakes import ROOT

from duodec.backends.curves import CostCurve
from duodec.backends.llamacpp.model import LlamaModel
from duodec.errors import BadOption
from duodec.native.build import library_path

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
    ours = map(str, (ROOT / "src", *ROOT.glob("packages/*/src"), ROOT))
    places = (*ours, os.environ.get("PYTHONPATH", ""))
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
    from duodec_torch.checkpoint.blueprint import Blueprint
    from duodec_torch.checkpoint.weights import read_weights

    model, num_bytes = gpu._torch_model(gpu.Bench.on("cpu", "tiny", tmp_path, tmp_path))
    made = [dims for name, dims in made_models._tensors(TINY) if name != "token_embd.weight"]
    assert num_bytes == 4 * sum(map(math.prod, made))
    model.save_pretrained(tmp_path / "saved")
    read = read_weights(Blueprint.of(tmp_path / "saved", device="cpu", dtype="float32"))
    tokens = torch.arange(20)[None]
    with torch.inference_mode():
        logits, again = (one(tokens).logits for one in (model, read))
    assert torch.equal(logits, again)
    assert logits.dtype == torch.float32
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
    plain = methods["plain decoding, not padded"]
    assert {"ar", "lookup", "auto", "auto with the draft on the card"} <= set(methods)
    assert plain["tokens_a_pass"] == methods["ar"]["tokens_a_pass"] == 1
    assert plain["times_plain"] == 1
    exactness = found["llama.cpp Q4_K_M: widths and exactness"]["parts"]
    assert set(exactness["logits moved from plain decoding's, by what was done"].values()) == {0.0}
    for temperature in ("0", "0.8"):
        texts_of = exactness[f"texts at temperature {temperature}"]
        assert {one["equal"] for one in texts_of.values()} == {True}
        assert set(texts_of) == {"ar", "lookup", "sps:4", "auto"}
    assert len(found["llama.cpp Q4_K_M: two slots"]["parts"]) == 2
    curves = json.loads((tmp_path / "curves.json").read_text())
    for name in curves:
        assert CostCurve.parse(f"{tmp_path / 'curves.json'}:{name}").points[-1][0] == 64
    assert len(curves) == 2


def test_torch_is_measured_without_what_it_does_not_need(tmp_path: Path, texts: Path) -> None:
    if not (find_spec("torch") and find_spec("transformers")):
        pytest.skip("torch is not installed: make setup-torch")
    found = measured(tmp_path, texts, "torch BF16: methods", ABSENT)
    methods = found["torch BF16: methods"]["parts"]["methods"]
    assert methods["auto"]["texts"] == 1


def test_a_section_that_lacks_a_library_says_so_and_the_others_run(
    tmp_path: Path, texts: Path
) -> None:
    found = measured(tmp_path, texts, "generate,steps", ("torch", "transformers"))
    assert "torch" in found["torch BF16: transformers' generate"]["error"]
    assert "error" not in found["draft steps"]


@pytest.fixture
def packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Path:
    """A folder with wheels that hold next to nothing, in a copy of the tree."""

    def made(variant: str) -> Path:
        wheel = tmp_path / f"{variant}.whl"
        with packing.zipfile.ZipFile(wheel, "w") as archive:
            for name in ("libllama.so", "libggml-cpu.so", "libggml-cpu.so.0", "libggml-cpu.so.0.1"):
                archive.writestr(f"llama_cpp/lib/{name}", variant)
            archive.writestr("llama_cpp/__init__.py", "")
            archive.writestr("llama_cpp/server/app.py", "")
            archive.writestr("llama_cpp_python-1.dist-info/METADATA", "Version: 1")
        return wheel

    monkeypatch.setattr(packing, "_wheel", made)
    monkeypatch.setattr(packing, "PRESET", 0)
    monkeypatch.setattr(packing, "record_texts", lambda path: path.write_text("[]"))
    folder = tmp_path / "tree" / "pack"
    packing.pack_into(folder, None)
    told = capsys.readouterr().out
    assert "in all, of 26" in told
    assert "no card is measured by it" in told
    return folder


@pytest.mark.parametrize(
    ("name", "library", "words"),
    [
        ("llama_cpp_python-0.1.0-py3-none-any.whl", "libggml-cuda.so.0", "is not version"),
        (f"llama_cpp_python-{packing.native.VERSION}-any.whl", "libggml-cpu.so.0", "libggml-cuda"),
        (f"llama_cpp_python-{packing.native.VERSION}-any.whl", "libggml-cuda.so", "libggml-cuda"),
    ],
)
def test_a_wheel_that_does_not_fit_is_refused_before_it_travels(
    tmp_path: Path, name: str, library: str, words: str
) -> None:
    with packing.zipfile.ZipFile(tmp_path / name, "w") as archive:
        archive.writestr(f"llama_cpp/lib/{library}", "")
    with pytest.raises(BadOption, match=words):
        packing.pack_into(tmp_path / "packed", tmp_path / name)


def test_what_travels_is_what_the_tree_and_torch_lack(packed: Path) -> None:
    assert {path.name for path in packed.iterdir()} == {"__main__.py", "texts.json", "site.tar.xz"}
    with packing.tarfile.open(packed / "site.tar.xz") as archive:
        names = set(archive.getnames())
    assert {
        "site/llama_cpp/lib/libllama.so", "site/llama_cpp_python-1.dist-info/METADATA",
        "site/psutil/__init__.py", "variants/avx2/libggml-cpu.so.0",
        "variants/avx512/libggml-cpu.so.0", f"inner-loops/{library_path().name}",
    } <= names  # fmt: skip
    assert not [name for name in names if "server" in name or name.endswith(".gguf")]


def test_the_folder_runs_the_benchmarks_of_the_tree_with_what_it_brings(packed: Path) -> None:
    """From the tree, whatever PYTHONPATH says, and from elsewhere."""
    tree = packed.parent
    (tree / "src" / "duodec" / "native").mkdir(parents=True)
    (tree / "benchmarks" / "gpu").mkdir(parents=True)
    (tree / "benchmarks" / "__init__.py").write_text("")
    (tree / "benchmarks" / "__main__.py").write_text(
        "import os, sys, llama_cpp, pathlib\n"
        "lib = pathlib.Path(llama_cpp.__file__).parent / 'lib' / 'libggml-cpu.so.0'\n"
        "print('ran', __file__, lib.read_text(), sys.argv[1:])\n"
    )
    wanted = start.variant_for(start.flags())
    for place in (tree, tree.parent):
        done = subprocess.run(
            [sys.executable, str(packed), "--output", "x"], cwd=place, capture_output=True,
            text=True, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60,
        )  # fmt: skip
        line = done.stdout.splitlines()[-1]
        assert line.startswith(f"ran {tree / 'benchmarks' / '__main__.py'} {wanted} ['gpu', ")
        assert line.endswith("'--output', 'x']")
        assert (tree / "src/duodec/native/lib" / library_path().name).exists()


def test_a_folder_without_a_tree_says_so(packed: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(packed)], cwd=tmp_path, capture_output=True, text=True, check=False,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == "no tree of duodec is here; run this in the one that it was packed in\n"


def test_the_variant_is_the_fastest_that_a_processor_computes() -> None:
    avx2 = {"avx2", "fma", "f16c", "bmi2", "sse2"}
    avx512 = {"avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"}
    assert start.variant_for(avx2) == "avx2"
    assert start.variant_for(avx2 | avx512) == "avx512"
    assert start.variant_for(avx2 | avx512 - {"avx512_bf16"}) == "avx2"
    with pytest.raises(SystemExit, match="no AVX2"):
        start.variant_for({"sse2"})
    assert set(packing.BUILDS) == set(start.VARIANTS)
    assert all("-DGGML_NATIVE=OFF" in options for options in packing.BUILDS.values())


def test_a_folder_that_is_too_large_or_in_use_is_named(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadOption, match="is not empty"):
        packing.pack_into(packed, None)
    monkeypatch.setattr(packing, "MOST_BYTES", 1 << 10)
    with pytest.raises(BadOption, match="too large to travel"):
        packing.pack_into(tmp_path / "other", None)

"""Measure everything that needs a GPU, in one call of less than ten minutes and without a network.

    python -m benchmarks gpu --pack FOLDER     # here: all that travels, as FOLDER.tar.xz, too
    PYTHONPATH=FOLDER python -m benchmarks gpu --output RESULTS     # there

There: Python, torch for CUDA with transformers and Triton, nothing else. Sections run one after
another, the most important first, each in a process of its own and within its budget
(`gpu_sections.py`): what fails, breaks or hangs costs itself only. After each of them gpu.json
holds the results, or the error, and curves.json the T(n) for `duodec bench --simulate-ms`. Another
call can run what one had no time for: --only "torch,steps".

Models are made on the spot, of a real model's shape and with random weights: right for times and
bits, and for nothing else. Methods run on them with texts that were recorded before
(`gpu_methods.py`), so that drafts are accepted as they were.

Without a GPU every section runs on the CPU, with a tiny model: to be checked there.
"""

from __future__ import annotations

import importlib.util
import os
import re
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.gpu.gpu_sections import CURVES, WARNINGS, Note, Report, attempt
from benchmarks.made_models import Shape, shape_named, write_gguf
from duodec.bench.card import environment
from duodec.errors import BackendUnavailable, BadOption

TEXTS = Path(__file__).with_name("texts.json")  # where --pack puts it
_CONTEXT = 4608
_NUM_THREADS = 1  # of targets: a GPU needs one, which launches its work
_FEW = 24  # tokens of a completion where there is no GPU
_NEEDED = ("torch", "transformers", "triton", "llama_cpp", "psutil", "scipy", "llguidance")
# seconds that a section may take on a recent GPU, loading included
_SHORT_S, _FORWARDS_S, _METHODS_S, _STEPS_S, _GENERATE_S = 40, 110, 130, 60, 90


def main(
    output: Annotated[
        Path | None, typer.Option(help="The folder for gpu.json and curves.json.")
    ] = None,
    pack: Annotated[
        Path | None, typer.Option(help="Measure nothing: collect in this folder what travels.")
    ] = None,
    llama_cpp: Annotated[
        Path | None,
        typer.Option(help="For --pack: a wheel of llama-cpp-python for CUDA, or its folder."),
    ] = None,
    python: Annotated[str, typer.Option(help="For --pack: Python's version there.")] = "3.12",
    device: Annotated[str, typer.Option(help="auto, cuda or cpu.")] = "auto",
    shape: Annotated[str, typer.Option(help="A model's sizes; on a CPU tiny.")] = "llama-3-8b",
    methods: Annotated[str, typer.Option(help="Comma-separated, plain decoding first.")] = (
        "ar,duo,auto"
    ),
    minutes: Annotated[float, typer.Option(help="Limit of the whole call.")] = 9.3,
    only: Annotated[
        str, typer.Option(help="Sections with one of these words, comma-separated.")
    ] = "",
    texts: Annotated[Path, typer.Option(help="Recorded texts.")] = TEXTS,
    scratch: Annotated[
        Path | None, typer.Option(help="A folder for models, 20 GB at most; else a new one.")
    ] = None,
) -> None:
    """Measure, or pack what a measurement elsewhere needs."""
    if pack is not None:
        from benchmarks.gpu.packing import pack_into

        pack_into(pack, llama_cpp, python)
        return
    if output is None:
        raise typer.BadParameter("give --output FOLDER, or --pack FOLDER")
    output.mkdir(parents=True, exist_ok=True)
    report = Report(output, time.monotonic() + 60 * minutes, tuple(filter(None, only.split(","))))
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        os.environ.setdefault("DUODEC_CACHE", f"{folder}/cache")  # nothing is kept
        _run(report, Bench.on(device, shape, Path(folder), texts), methods.split(","))
    if report.only and not report.found:
        raise typer.BadParameter(f"no section's name has one of '{only}'; leave --only out for all")


@dataclass(frozen=True)
class Bench:
    """What is measured, and where."""

    card: str | None  # a GPU's name; None: the CPU
    shape_name: str
    scratch: Path
    texts: Path

    @classmethod
    def on(cls, device: str, shape: str, scratch: Path, texts: Path) -> Bench:
        """Raises BadOption."""
        if device not in ("auto", "cuda", "cpu"):
            raise BadOption(f"device is {device}; use auto, cuda or cpu")
        card = None if device == "cpu" else environment()["gpu"]
        if device == "cuda" and card is None:
            raise BadOption("device is cuda, and nvidia-smi lists no GPU; leave --device out")
        shape_named(shape)
        return cls(card, shape if card else "tiny", scratch, texts)

    @property
    def shape(self) -> Shape:
        return shape_named(self.shape_name)

    @property
    def device(self) -> str:
        return "cuda" if self.card else "cpu"

    @property
    def depths(self) -> tuple[int, ...]:
        return (100, 1000, 4000) if self.card else (100, 300)

    def turns(self) -> list[Any]:
        """What was recorded. Raises OSError."""
        from benchmarks.gpu.gpu_methods import read_texts

        turns = read_texts(self.texts)
        if self.card:
            return turns
        return [replace(turn, answer=turn.answer[:_FEW]) for turn in turns[:2]]

    def curve_name(self, what: str, depth: int) -> str:
        found = re.search(r"[a-z]*\d+[a-z]*", (self.card or "cpu0").lower().replace(" ", ""))
        return f"{found[0] if found else 'gpu'}-{self.shape_name}-{what}-after-{depth}"

    def gguf(self, mix: str) -> Path:
        """A file of this format, made at the first use."""
        path = self.scratch / f"{self.shape_name}-{mix}.gguf"
        return path if path.exists() else write_gguf(path, self.shape, mix)

    def forget_models(self) -> None:
        """Free the disk."""
        for path in self.scratch.glob(f"{self.shape_name}*"):
            path.unlink()


def _run(report: Report, bench: Bench, methods: list[str]) -> None:
    section = report.section
    section("environment", lambda _: _environment(bench), _SHORT_S)
    section("bandwidth", lambda _: _bandwidth(bench), _SHORT_S)
    section("llama.cpp Q4_K_M: T(n), bits", partial(_llama, bench, "Q4_K_M"), _FORWARDS_S)
    section("llama.cpp Q4_K_M: methods", partial(_llama_methods, bench, methods), _METHODS_S)
    bench.forget_models()
    section("torch BF16: T(n), bits", partial(_torch, bench), _FORWARDS_S)
    section("torch BF16: methods", partial(_torch_methods, bench, methods), _METHODS_S)
    section("torch BF16: transformers' generate", partial(_generate, bench), _GENERATE_S)
    for mix in ("Q8_0", "BF16"):
        bench.forget_models()
        section(f"llama.cpp {mix}: T(n), bits", partial(_llama, bench, mix), _FORWARDS_S)
    bench.forget_models()
    section("draft steps", partial(_steps, bench), _STEPS_S)


# --- sections; each imports what it needs, so that what is missing costs itself only


def _environment(bench: Bench) -> dict[str, Any]:
    card = environment()
    card["measured on"] = bench.card or "the CPU, with a tiny model: no GPU is seen"
    card["missing"] = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if not bench.texts.exists():
        card["missing"].append(f"{bench.texts}: no method can run")
    if "torch" not in card["missing"]:
        import torch

        card["torch"] = f"{torch.__version__}, CUDA {torch.version.cuda}"
    if "llama_cpp" not in card["missing"]:
        from duodec.backends.llamacpp import devices, library

        lib = library.load()
        card["llama.cpp computes on"] = [d.description for d in devices.every(lib)] or "the CPU"
        card["kernels on the CPU"] = library.kernels(lib) or "llama.cpp's"
    return card


def _bandwidth(bench: Bench) -> dict[str, float]:
    from benchmarks.gpu.gpu_forwards import bandwidth

    return bandwidth(bench.device, 2 << (30 if bench.card else 22))


def _points(
    bench: Bench, passes: Any, what: str, num_bytes: int, note: Note, *, has_bits: bool = True
) -> None:
    """T(n), the bandwidth that a single row reaches, and bits, by depth."""
    from benchmarks.gpu.gpu_forwards import curve, moved_bits, times

    found, num_vocab = {}, bench.shape.num_vocab
    source = f"python -m benchmarks gpu on {bench.card or 'a CPU'}, random weights"
    for depth in bench.depths:
        points = times(passes, num_vocab, depth)
        note(f"{what}: T(n) after {depth}", points)
        note(f"{what}: weights' bytes a second after {depth}", num_bytes / points[0]["min_s"])
        found[bench.curve_name(what, depth)] = curve(points, source)
        note(f"{CURVES} {what}", found)
        if has_bits:
            note(f"{what}: bits after {depth}", moved_bits(passes, num_vocab, depth))


def _llama(bench: Bench, mix: str, note: Note) -> None:
    from benchmarks.gpu.gpu_forwards import LlamaPasses
    from duodec.backends.llamacpp import devices, library
    from duodec.backends.llamacpp.model import LlamaModel

    if bench.card and not devices.every(library.load()):
        raise BackendUnavailable(
            "this llama.cpp was built without a GPU; pack another: --pack FOLDER --llama-cpp WHEEL"
        )
    with closing(LlamaModel(bench.gguf(mix), num_gpu_layers=-1 if bench.card else 0)) as model:
        read = model.num_bytes * (1 - bench.shape.num_vocab * bench.shape.width / model.num_params)
        with closing(LlamaPasses(model, _CONTEXT, _NUM_THREADS)) as passes:
            _points(bench, passes, mix.lower(), int(read), note)


def _llama_methods(bench: Bench, methods: list[str], note: Note) -> None:
    from benchmarks.gpu.gpu_methods import core_plan, run_methods
    from duodec.backends.llamacpp.load import load
    from duodec.loading.config import EngineConfig

    turns, path = bench.turns(), bench.gguf("Q4_K_M")
    config = EngineConfig(
        target=str(path), draft=None, context=_CONTEXT, device="auto" if bench.card else "cpu"
    )
    loaded = load(path, config, WARNINGS.append)
    note("place", loaded.place)
    with closing(loaded.model):
        plan = core_plan()
        with closing(loaded.start(_CONTEXT, plan)) as target:
            run_methods(target, _CONTEXT, turns, methods, plan, note)


def _torch_model(bench: Bench) -> tuple[Any, int]:
    """A model of transformers with random weights, and the bytes of them that a row reads."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    shape = bench.shape
    config = LlamaConfig(
        num_hidden_layers=shape.num_layers,
        hidden_size=shape.width,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head,
        intermediate_size=shape.inner,
        vocab_size=shape.num_vocab,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    with torch.device(bench.device):  # made where it computes: nothing is written or copied
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    embedding = model.get_input_embeddings().weight
    num_params = sum(p.numel() for p in model.parameters()) - embedding.numel()
    return model, num_params * embedding.element_size()


def _torch_target(model: Any, **options: Any) -> Any:
    from duodec.backends.torch.forward.network import Network
    from duodec.backends.torch.target import TorchTarget

    return TorchTarget(
        Network(model, WARNINGS.append),
        num_context=_CONTEXT,
        num_threads=_NUM_THREADS,
        on_warning=WARNINGS.append,
        **options,
    )


def _torch(bench: Bench, note: Note) -> None:
    from benchmarks.gpu.gpu_forwards import TargetPasses, exact_rows, same_noise

    note("noise is NumPy's", same_noise(bench.device))
    model, num_bytes = _torch_model(bench)
    with closing(_torch_target(model)) as target:
        passes, num_trees = TargetPasses(target), 12 if bench.card else 2
        note("rows of trees", exact_rows(passes, bench.shape.num_vocab, num_trees))
        _points(bench, passes, "torch-bf16", num_bytes, note)
    with closing(_torch_target(model, is_width_exact=False)) as target:
        passes = TargetPasses(target)
        _points(bench, passes, "torch-bf16-fast", num_bytes, note, has_bits=False)


def _torch_methods(bench: Bench, methods: list[str], note: Note) -> None:
    from benchmarks.gpu.gpu_methods import core_plan, run_methods

    turns, plan = bench.turns(), core_plan()
    model, _ = _torch_model(bench)
    with closing(_torch_target(model)) as target:
        run_methods(target, _CONTEXT, turns, methods, plan, note)


def _generate(bench: Bench, note: Note) -> None:
    from benchmarks.gpu.gpu_forwards import generate_s

    model, _ = _torch_model(bench)
    ways = generate_s(model, bench.shape.num_vocab, bench.device)
    if not bench.card:
        del ways["static cache"]  # which is compiled
        note("static cache", {"error": "needs a GPU, and none is seen"})
    attempt(note, ways)


def _steps(bench: Bench, note: Note) -> None:
    from benchmarks.gpu.gpu_methods import draft_steps

    draft_steps(bench.turns()[0], note)

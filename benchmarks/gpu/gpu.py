"""Measure everything that needs a GPU, in one call of eight minutes and without a network.

    python -m benchmarks gpu --pack FOLDER     # here: what travels beside the tree, in one folder
    python FOLDER --output RESULTS             # there, in the tree

There: this tree, the folder, and Python with torch for CUDA, transformers and Triton. Sections run
one after another, the most important first, each in a process of its own and within its budget
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

from benchmarks.gpu.gpu_forwards import ROWS
from benchmarks.gpu.gpu_sections import CURVES, WARNINGS, Note, Report, attempt
from benchmarks.made_models import SHAPES, Shape, shape_named, write_gguf
from duodec.errors import BackendUnavailable, BadOption
from duodec_lab.bench.card import environment

TEXTS = Path(__file__).with_name("texts.json")  # without a folder, which brings its own
_CONTEXT = 4608
_NUM_THREADS = 1  # of targets: a GPU needs one, which launches its work
_FEW = 24  # tokens of a completion where there is no GPU
_SPOKEN_LAYERS = 8  # of a model that decodes freely, in the vocabulary of the draft model
_NEEDED = ("torch", "transformers", "triton", "llama_cpp", "psutil", "scipy", "llguidance")


def main(
    output: Annotated[
        Path | None, typer.Option(help="The folder for gpu.json and curves.json.")
    ] = None,
    pack: Annotated[
        Path | None, typer.Option(help="Measure nothing: collect in this folder what travels.")
    ] = None,
    llama_cpp: Annotated[
        Path | None,
        typer.Option(help="For --pack: a wheel of llama-cpp-python for CUDA; else without it."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cuda or cpu.")] = "auto",
    shape: Annotated[str, typer.Option(help="A model's sizes; on a CPU tiny.")] = "llama-3-8b",
    methods: Annotated[str, typer.Option(help="Comma-separated, plain decoding first.")] = (
        "ar,lookup,auto"
    ),
    minutes: Annotated[float, typer.Option(help="Limit of the whole call.")] = 8.0,
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

        pack_into(pack, llama_cpp)
        return
    if output is None:
        raise typer.BadParameter("give --output FOLDER, or --pack FOLDER")
    output.mkdir(parents=True, exist_ok=True)
    report = Report(output, time.monotonic() + 60 * minutes, tuple(filter(None, only.split(","))))
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        os.environ["DUODEC_CACHE"] = f"{folder}/cache"  # nothing is kept
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
        return (100, 4000) if self.card else (100, 300)

    @property
    def rows(self) -> tuple[int, ...]:
        """Of passes that are timed; a CPU, which times nothing that counts, computes few."""
        return ROWS if self.card else (1, 8, 64)

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

    def spoken(self, mix: str) -> Path:
        """The same with few layers and the draft model's vocabulary: it can decode freely."""
        path = self.scratch / f"{self.shape_name}-spoken-{mix}.gguf"
        shape = replace(
            self.shape,
            num_layers=min(_SPOKEN_LAYERS, self.shape.num_layers),
            num_vocab=SHAPES["tiny"].num_vocab,
        )
        return path if path.exists() else write_gguf(path, shape, mix)

    def forget_models(self) -> None:
        """Free the disk."""
        for path in self.scratch.glob(f"{self.shape_name}*"):
            path.unlink()


def _run(report: Report, bench: Bench, methods: list[str]) -> None:
    """All sections. The last ones are for another call: eight minutes do not reach them."""
    section, mix = report.section, "Q4_K_M"
    section("environment", lambda _: _environment(bench), 30)
    section("bandwidths", lambda _: _bandwidth(bench), 30)
    section("draft steps", partial(_steps, bench), 60)
    section(f"llama.cpp {mix}: widths and exactness", partial(_exactness, bench, mix), 80)
    section(f"llama.cpp {mix}: T(n)", partial(_llama, bench, mix), 60)
    section(f"llama.cpp {mix}: methods", partial(_llama_methods, bench, methods), 100)
    section("torch BF16: widths, T(n), rows", partial(_torch, bench), 90)
    section("torch BF16: methods", partial(_torch_methods, bench, methods), 70)
    section(f"llama.cpp {mix}: two slots", partial(_slots, bench, mix), 40)
    section("torch BF16: transformers' generate", partial(_generate, bench), 90)
    section(f"llama.cpp {mix}: bits without padding", partial(_bits, bench, mix), 40)
    for other in ("Q8_0", "BF16"):
        bench.forget_models()
        section(f"llama.cpp {other}: T(n)", partial(_llama, bench, other), 60)


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


def _points(bench: Bench, passes: Any, what: str, num_bytes: int, note: Note) -> None:
    """T(n), and the bandwidth that a single row reaches, by depth."""
    from benchmarks.gpu.gpu_forwards import curve, times

    found = {}
    source = f"python -m benchmarks gpu on {bench.card or 'a CPU'}, random weights"
    for depth in bench.depths:
        points = times(passes, bench.shape.num_vocab, depth, bench.rows)
        note(f"{what}: T(n) after {depth}", points)
        note(f"{what}: weights' bytes a second after {depth}", num_bytes / points[0]["min_s"])
        found[bench.curve_name(what, depth)] = curve(points, source)
        note(f"{CURVES} {what}", found)


def _llama_model(bench: Bench, path: Path) -> Any:
    """Raises BackendUnavailable where there is a card and no library for it."""
    from duodec.backends.llamacpp import devices, library
    from duodec.backends.llamacpp.model import LlamaModel

    if bench.card and not devices.every(library.load()):
        raise BackendUnavailable(
            "this llama.cpp was built without a GPU; pack another: --pack FOLDER --llama-cpp WHEEL"
        )
    return LlamaModel(path, num_gpu_layers=-1 if bench.card else 0)


def _exactness(bench: Bench, mix: str, note: Note) -> None:
    from benchmarks.gpu.gpu_llama import exactness

    with closing(_llama_model(bench, bench.spoken(mix))) as model:
        exactness(model, _CONTEXT if bench.card else 600, bench.turns()[0], note)


def _llama(bench: Bench, mix: str, note: Note) -> None:
    from benchmarks.gpu.gpu_forwards import LlamaPasses

    with closing(_llama_model(bench, bench.gguf(mix))) as model:
        read = model.num_bytes * (1 - bench.shape.num_vocab * bench.shape.width / model.num_params)
        with closing(LlamaPasses(model, _CONTEXT, _NUM_THREADS)) as passes:
            _points(bench, passes, mix.lower(), int(read), note)


def _bits(bench: Bench, mix: str, note: Note) -> None:
    from benchmarks.gpu.gpu_forwards import LlamaPasses, moved_bits

    with (
        closing(_llama_model(bench, bench.gguf(mix))) as model,
        closing(LlamaPasses(model, _CONTEXT, _NUM_THREADS)) as passes,
    ):
        for depth in bench.depths:
            note(f"after {depth}", moved_bits(passes, bench.shape.num_vocab, depth))


def _slots(bench: Bench, mix: str, note: Note) -> None:
    from benchmarks.gpu.gpu_llama import two_slots

    with closing(_llama_model(bench, bench.gguf(mix))) as model:
        two_slots(model, note)


def _llama_methods(bench: Bench, methods: list[str], note: Note) -> None:
    from benchmarks.gpu.gpu_llama import entrants
    from benchmarks.gpu.gpu_methods import run_entrants

    turns = bench.turns()
    with (
        closing(_llama_model(bench, bench.gguf("Q4_K_M"))) as model,
        entrants(model, _CONTEXT, methods, note) as (vocabulary, found),
    ):
        run_entrants(found, vocabulary, _CONTEXT, turns, note)


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
    dtype = torch.bfloat16 if bench.card else torch.float32  # of 16 bits a CPU computes slowly
    with torch.device(bench.device):  # made where it computes: nothing is written or copied
        model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    embedding = model.get_input_embeddings().weight
    num_params = sum(p.numel() for p in model.parameters()) - embedding.numel()
    return model, num_params * embedding.element_size()


def _torch_target(model: Any, **options: Any) -> Any:
    from duodec_torch.forward.network import Network
    from duodec_torch.target import TorchTarget

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
    widths = _torch_widths(bench, model, note)
    with closing(_torch_target(model, widths=widths)) as target:
        passes, num_trees = TargetPasses(target), 12 if bench.card else 2
        note("rows of trees", exact_rows(passes, bench.shape.num_vocab, num_trees))
    with closing(_torch_target(model, is_width_exact=False)) as target:
        _points(bench, TargetPasses(target), "torch-bf16-fast", num_bytes, note)


def _torch_widths(bench: Bench, model: Any, note: Note) -> Any:
    """The widths of passes that a target would choose here; what was measured is noted."""
    from benchmarks.gpu.gpu_llama import note_choice
    from duodec.backends.widths.choice import TREES, keep, kept, key_of, measured
    from duodec.core.traits import Widths
    from duodec_torch.width_choice import WIDTHS

    key = key_of("benchmarks gpu", bench.card, bench.shape_name)
    choice = kept(key, TREES)
    if choice is None:
        with closing(_torch_target(model, widths=Widths(WIDTHS))) as target:
            choice = measured(target, WIDTHS, bench.shape.num_vocab, bench.depths, TREES)
        keep(key, choice)
    note_choice(choice, note)
    return choice.widths


def _torch_methods(bench: Bench, methods: list[str], note: Note) -> None:
    from benchmarks.gpu.gpu_methods import Entrant, core_plan, drafting, run_entrants

    turns, plan = bench.turns(), core_plan()
    model, _ = _torch_model(bench)
    widths = _torch_widths(bench, model, note)
    with (
        drafting(_CONTEXT, plan) as (vocabulary, drafter),
        closing(_torch_target(model, widths=widths)) as target,
    ):
        found = [Entrant(name, name, target, drafter) for name in methods]
        run_entrants(found, vocabulary, _CONTEXT, turns, note)


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

    draft_steps(bench.turns()[0], note, is_on_card=bool(bench.card))

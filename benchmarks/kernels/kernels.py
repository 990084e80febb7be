"""Measure the kernels for weights on the CPU: llama.cpp's, and ours over packed weights.

For each setting, in a process of its own (kernels are chosen when the library is loaded): the time
of a forward pass by its rows, of the prefill, of loading; the memory that loading takes; and how
far the logits of one text move with the width of the forward pass, the threads, and the parts of
the prefill. A recurrent model scores few rows in a pass; wider ones are left out. The settings take
turns. A format after a model's name is requantised to it first; the
name of a shape, such as `experts`, is a model of random weights:

    python -m benchmarks kernels smollm2 qwen2.5-coder-1.5b qwen2.5-coder-1.5b:Q8_0 experts:Q4_K_M
    python -m benchmarks kernels dense:Q2_K dense:IQ2_XXS fine-experts fine-experts:IQ3_XXS
"""

from __future__ import annotations

import ctypes
import json
import resource
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from tests.models.weights import weights

from benchmarks import SCRATCH, Figures, in_process
from benchmarks.made_models import FOR_CPU, SHAPES, write_gguf
from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.checks import self_test
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.backends.llamacpp.target.trees import LlamaScores
from duodec.core.draft import Draft
from duodec.core.targets import Query

WIDTHS = (1, 2, 4, 5, 8, 16, 32)
COMPARED = (1, 2, 3, 4, 5, 7, 8, 16, 17, 32, 64)
PREFILL = 512
SETTINGS = {  # what is added to the environment, and whether weights are packed
    "llama.cpp": ({self_test.SWITCH: self_test.OFF}, True),
    "mapped": ({}, False),
    "packed": ({}, True),
}
FORMATS = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10,
    "Q3_K_M": 12, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ3_S": 26,
    "IQ4_XS": 30, "BF16": 32, "TQ1_0": 36, "TQ2_0": 37, "MXFP4": 38, "Q1_0": 40,
    "Q2_0": 41,
}  # fmt: skip
MADE = {**SHAPES, **FOR_CPU}
PURE = "-pure"  # after a format: of all matrices, where llama.cpp would give some of them another


@dataclass(frozen=True)
class Measured:
    """One model in one setting, with so many threads."""

    kernels: str  # the instruction set of ours; an empty text for llama.cpp's
    load_s: float
    load_bytes: int  # of memory, the most while it was loaded
    prefill_ms: float  # a token
    forward_ms: dict[int, float]  # by rows; medians
    deviation: float  # greatest difference of a logit between any two ways to compute it


def scratch_file(stem: str) -> Path:
    SCRATCH.mkdir(exist_ok=True)
    return SCRATCH / f"{stem}.gguf"


def requantised(path: Path, name: str) -> Path:
    """A model with its weights in another format, made once."""
    made = scratch_file(f"{path.stem}-{name.lower()}")
    if not made.exists():
        lib: Any = library.load()
        params = lib.llama_model_quantize_default_params()
        params.ftype, params.allow_requantize = FORMATS[name.removesuffix(PURE)], True
        params.pure = name.endswith(PURE)
        partial = made.with_suffix(".partial")
        status = lib.llama_model_quantize(
            str(path).encode(), str(partial).encode(), ctypes.byref(params)
        )
        assert status == 0, f"llama.cpp could not convert {path}"
        partial.rename(made)
    return made


def model_file(name: str) -> Path:
    """The file of a model, requantised where a format follows its name, or made in that format
    where it is a shape's."""
    model, _, format_ = name.partition(":")
    if model in MADE:
        mix = format_ or "Q4_K_M"
        return write_gguf(scratch_file(f"{model}-{mix.lower()}"), MADE[model], mix)
    path = Path(model) if model.endswith(".gguf") else weights(model)
    return requantised(path, format_) if format_ else path


def measure(path: Path, num_threads: int, *, packs: bool, repeats: int, start: int) -> Measured:
    """Compute the same rows in every way; those that are timed follow ``start`` tokens."""
    library.load()
    before = _most_bytes()
    begin = perf_counter()
    model = LlamaModel(path, num_gpu_layers=0, packs=packs)
    load_s = perf_counter() - begin
    load_bytes = _most_bytes() - before
    target = LlamaTarget(model, num_context=1024 + start, num_threads=num_threads)
    tokens = text_for(model, max(PREFILL, start) + max(WIDTHS))
    times: dict[int, list[float]] = {width: [] for width in scored_widths(target, WIDTHS)}
    prefill: list[float] = []
    num_read = max(PREFILL, start)
    score(target, tokens[:start])
    for _ in range(repeats):
        for width in times:
            score(target, tokens[:start])
            begin = perf_counter()
            score(target, tokens[:start], tokens[start : start + width - 1])
            times[width].append((perf_counter() - begin) * 1e3)
    for _ in range(3):
        score(target, tokens[:1])
        begin = perf_counter()
        score(target, tokens[: num_read + 1])
        prefill.append((perf_counter() - begin) / num_read * 1e3)
    return Measured(
        library.kernels(model.lib), load_s, load_bytes, median(prefill),
        {width: median(of_width) for width, of_width in times.items()},
        deviation(target, tokens[:128], num_threads),
    )  # fmt: skip


def text_for(model: LlamaModel, num_tokens: int, num_distinct: int | None = None) -> list[int]:
    """Tokens of prose, again and again; any, or so many different ones, where the model has no
    vocabulary."""
    if model.lib.llama_vocab_type(model.vocab) == model.lib.LLAMA_VOCAB_TYPE_NONE:
        end = 3 + num_distinct if num_distinct else model.num_vocab
        drawn = np.random.default_rng(0).integers(3, end, num_tokens)
        return list(map(int, drawn))
    prose = (Path(__file__).parents[2] / "LICENSE").read_text()
    tokens = model.tokenize(prose, is_templated=False)
    return (tokens * (num_tokens // len(tokens) + 1))[:num_tokens]


def deviation(target: LlamaTarget, tokens: Sequence[int], num_threads: int) -> float:
    """How far the logits of the last 64 rows move with widths, threads and parts of the prefill."""
    start, ways = len(tokens) - 64, []
    for threads in sorted({1, num_threads}):
        target.use_threads(threads)
        if not target.traits.is_recurrent:
            target.trees(0).context.num_prompt_threads = threads
        for width in scored_widths(target, COMPARED):
            score(target, tokens[:1])  # forgets the rest
            for end in range(width, start, width):  # the text before, in as large pieces
                score(target, tokens[:end])
            rows = []
            for i in range(start, len(tokens), width):
                rows += score(target, tokens[:i], tokens[i : min(i + width - 1, len(tokens) - 1)])
            ways.append(np.stack(rows))
    return max(float(np.abs(way - ways[0]).max()) for way in ways)


def scored_widths(target: LlamaTarget, widths: Sequence[int]) -> list[int]:
    """Those that the target scores in one forward pass."""
    return [width for width in widths if width <= target.traits.max_draft + 1]


def score(
    target: LlamaTarget, text: Sequence[int], draft: Sequence[int] = ()
) -> list[NDArray[np.float32]]:
    (scores,) = target.score([Query(0, np.array(text, np.int32), Draft.chain(draft))])
    assert isinstance(scores, LlamaScores)
    return [row.copy() for row in scores.rows]


def _most_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def main(
    models: Annotated[list[str] | None, typer.Argument(metavar="MODEL[:FORMAT]...")] = None,
    threads: Annotated[str, typer.Option(help="Numbers of threads.")] = "1,2",
    turns: Annotated[int, typer.Option(help="Processes a setting.")] = 2,
    repeats: Annotated[int, typer.Option(help="Forward passes a width and process.")] = 7,
    settings: Annotated[str, typer.Option(help="Of these.")] = ",".join(SETTINGS),
    start: Annotated[int, typer.Option(help="Tokens before the rows that are timed.")] = 64,
) -> Figures:
    """Run every setting in a process of its own, by turns; medians."""
    console, table = Console(), []
    for name in models or ["smollm2"]:
        path = model_file(name)
        for num_threads in map(int, threads.split(",")):
            runs: dict[str, list[dict[str, Any]]] = {s: [] for s in settings.split(",")}
            for _ in range(turns):
                for setting, found in runs.items():
                    found.append(_one(path, num_threads, setting, repeats, start))
            for setting, found in runs.items():
                row = {
                    "model": name, "threads": num_threads, "setting": setting,
                    "kernels": found[0]["kernels"],
                    "load_s": median(f["load_s"] for f in found),
                    "load_mb": median(f["load_bytes"] for f in found) / 1e6,
                    "prefill_ms": median(f["prefill_ms"] for f in found),
                    "forward_ms": {
                        width: median(f["forward_ms"][width] for f in found)
                        for width in found[0]["forward_ms"]
                    },
                    "deviation": max(f["deviation"] for f in found),
                }  # fmt: skip
                table.append(row)
                if left_out := [w for w in WIDTHS if str(w) not in found[0]["forward_ms"]]:
                    console.print(
                        f"{name} is recurrent, and such a model cannot be taken back so many "
                        f"tokens: no pass of {', '.join(map(str, left_out))} rows",
                        soft_wrap=True,
                    )
                shown = "  ".join(f"{w}: {ms:.1f}" for w, ms in row["forward_ms"].items())
                console.print(
                    f"{name}, {num_threads} threads, {setting}: {shown}; prefill "
                    f"{row['prefill_ms']:.2f} a token; loaded in {row['load_s']:.1f} s, "
                    f"{row['load_mb']:.0f} MB; logits move by {row['deviation']:.3g}",
                    soft_wrap=True,
                )
    return {"table": table}


def _one(path: Path, threads: int, setting: str, repeats: int, start: int) -> dict[str, Any]:
    arguments = (str(path), str(threads), setting, str(repeats), str(start))
    variables = {self_test.CHECKED: self_test.ANY, **SETTINGS[setting][0]}
    return dict(in_process("-m", "benchmarks.kernels.kernels", *arguments, **variables))


if __name__ == "__main__":  # a process of `main`
    file, num_threads, setting, repeats, start = sys.argv[1:]
    measured = measure(
        Path(file), int(num_threads), packs=SETTINGS[setting][1], repeats=int(repeats),
        start=int(start),
    )  # fmt: skip
    print(json.dumps(asdict(measured)))

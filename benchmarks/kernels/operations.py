"""Measure the operations of a forward pass: milliseconds by operation and tensor.

    python -m benchmarks operations hybrid --widths 1,2,4,8
    python -m benchmarks operations smollm2

llama.cpp calls back before and after each operation, which then is computed alone: that costs some
microseconds each, and what the library computes in one go otherwise is taken apart. Shares are what
this is for; times of whole passes are those of `python -m benchmarks kernels`.
"""

from __future__ import annotations

import ctypes
import re
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import Figures
from benchmarks.kernels.kernels import model_file, score, text_for
from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.gguf.header import ggml
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.target import LlamaTarget
from duodec.backends.llamacpp.watch import Watch

_LAYER = re.compile(r"[-.]\d+|_l?\d+\b|\s*\(.*")  # and what llama.cpp names views and nodes
_LEAST = 0.01  # share of a pass; smaller ones are added up


class _Clock(Watch):
    """Time each operation; of its base it keeps no states."""

    def __init__(self, lib: Any) -> None:
        super().__init__(lib, (), 1)
        self._kind = ggml(lib, "ggml_op_desc", ctypes.c_char_p, ctypes.c_void_p)
        self._begin_s = 0.0
        self.seconds: dict[tuple[str, str], float] = defaultdict(float)

    def _look(self, tensor: int, is_before: bool, _: object) -> bool:
        if is_before:
            self._begin_s = perf_counter()
            return True
        taken_s = perf_counter() - self._begin_s
        kind = self._kind(tensor).decode()
        name = _LAYER.sub("", self._name(tensor).decode()).strip()
        self.seconds[kind, name] += taken_s
        self._begin_s = perf_counter()
        return True

    def milliseconds(self) -> dict[tuple[str, str], float]:
        found = {key: value * 1e3 for key, value in self.seconds.items()}
        self.seconds.clear()
        return found


class _Timed(LlamaModel):
    clock: _Clock

    def new_watch(self) -> Watch:
        self.clock = _Clock(self.lib)
        return self.clock


def measured(
    target: LlamaTarget, clock: _Clock, tokens: Sequence[int], width: int, repeats: int
) -> dict[tuple[str, str], float]:
    """Milliseconds by operation and tensor of a pass over so many rows; medians."""
    start, found = 64, []
    for _ in range(repeats):
        score(target, tokens[:start])
        clock.seconds.clear()
        score(target, tokens[:start], tokens[start : start + width - 1])
        found.append(clock.milliseconds())
    keys = {key for one in found for key in one}
    return {key: median(one.get(key, 0.0) for one in found) for key in keys}


def main(
    model: Annotated[str, typer.Argument(metavar="MODEL[:FORMAT]")] = "hybrid",
    widths: Annotated[str, typer.Option(help="Rows of a pass.")] = "1,2,4,8",
    threads: Annotated[int, typer.Option()] = 2,
    repeats: Annotated[int, typer.Option(help="Forward passes a width.")] = 7,
) -> Figures:
    """Every operation, those first that take longest at the last width."""
    library.load()
    loaded = _Timed(model_file(model), num_gpu_layers=0)
    target = LlamaTarget(loaded, num_context=1024, num_threads=threads)
    tokens = text_for(loaded, 128)
    score(target, tokens[:64])
    asked = [int(width) for width in widths.split(",")]
    found = {width: measured(target, loaded.clock, tokens, width, repeats) for width in asked}
    rows = [
        {"operation": kind, "tensor": name,
         "ms": {str(width): found[width].get((kind, name), 0.0) for width in asked}}
        for kind, name in _longest_first(found[asked[-1]])
    ]  # fmt: skip
    _print(rows, asked)
    return {"model": model, "threads": threads, "rows": rows}


def _longest_first(found: dict[tuple[str, str], float]) -> list[tuple[str, str]]:
    return sorted(found, key=lambda key: -found[key])


def _print(rows: Sequence[dict[str, Any]], widths: Sequence[int]) -> None:
    totals = {str(width): sum(row["ms"][str(width)] for row in rows) for width in widths}
    table = Table("operation", "tensor", *(f"{width} rows, ms" for width in widths))
    rest = dict.fromkeys(totals, 0.0)
    for row in rows:
        if all(ms < _LEAST * totals[width] for width, ms in row["ms"].items()):
            rest = {width: ms + row["ms"][width] for width, ms in rest.items()}
        else:
            times = (f"{ms:.2f}" for ms in row["ms"].values())
            table.add_row(row["operation"], row["tensor"], *times)
    table.add_row("others", "", *(f"{ms:.2f}" for ms in rest.values()))
    table.add_row("all", "", *(f"{ms:.2f}" for ms in totals.values()))
    Console(width=120).print(table)

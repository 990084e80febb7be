"""Compare duodec with other programs that decode on a CPU: a head-to-head that anyone can run.

    python -m benchmarks cpu
    python -m benchmarks cpu --ask none  # obtains the programs
    python -m benchmarks cpu smollm2 --rivals duodec,llama.cpp --prompts 2 --turns 1

Each program comes from its public package or source, into benchmarks/scratch/cpu, once; builds of
two of them take a while. All are given the same file, or the nearest weights that they read, and
the same prompts; each runs in a process of its own, alone, and they take turns. Libraries with a
llama.h are asked for forward passes, too. A program that cannot be had is a line with the reason.
A tree of ik_llama.cpp can be named (--ik-llama); else it is cloned. CMAKE_BUILD_PARALLEL_LEVEL
says how many compilers run at once. Ctrl-C ends it with what is measured.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from statistics import geometric_mean, median
from time import perf_counter
from typing import Annotated, Any

import typer

from benchmarks import Figures
from benchmarks.cpu import prepare
from benchmarks.cpu.obtain import Unavailable
from benchmarks.cpu.page import compared
from benchmarks.cpu.rivals import RIVALS, Found, Passes, Rival, Setup, Way
from duodec.machine.busy import OtherPrograms
from duodec.machine.cores import available_cores
from duodec_lab.bench.tasks import TASKS, Prompt, read_prompts

_MODELS = ("smollm2", "qwen2.5-coder-1.5b")
_PASSES, _DECODING, _NONE = "passes", "decoding", "none"
_HELLO = "Hello!"
_RIVALS = ",".join(rival.name for rival in RIVALS)


@dataclass
class Comparison:
    """All that is found about one model."""

    name: str
    setup: Setup
    found: dict[str, Found] = field(default_factory=dict)
    reasons: dict[tuple[str, ...], str] = field(default_factory=dict)  # by program, what and way
    passes: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)
    texts: list[dict[str, Any]] = field(default_factory=list)  # a completion each
    peaks: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def find(self, rivals: Iterable[Rival]) -> None:
        for rival in rivals:
            try:
                self.found[rival.name] = rival.find(self.setup)
            except Unavailable as error:
                self._fails(error, rival.name)

    def take_passes(self, turn: int, repeats: int, start: int) -> None:
        """Forward passes of every library that can be asked for them, one after another."""
        every = [(name, rows) for name, found in self.found.items() for rows in found.rows]
        for name, rows in _in_turn(every, turn):
            measure = partial(self._pass, name, rows, repeats, start, compares=not turn)
            self._try(measure, name, _PASSES, rows.name)

    def decode(self, turn: int, prompts: Sequence[Prompt], max_tokens: int) -> None:
        """Every prompt in every way to decode, one way after another."""
        every = [(name, way) for name, found in self.found.items() for way in found.ways]
        for name, way in _in_turn(every, turn):
            measure = partial(self._decode, name, way, turn, prompts, max_tokens)
            self._try(measure, name, _DECODING, way.name)

    def _try(self, measure: Callable[[], None], *key: str) -> None:
        if key in self.reasons:
            return  # it failed before
        try:
            measure()
        except Unavailable as error:
            self._fails(error, *key)

    def _fails(self, error: Unavailable, *key: str) -> None:
        self.reasons[key] = str(error)
        print(f"{self.name}, {', '.join(key)}: {error}", flush=True)

    def _pass(self, name: str, rows: Passes, repeats: int, start: int, *, compares: bool) -> None:
        others = _Others()
        found = rows.measure(self.setup, repeats, start, compares=compares)
        found["other_cores"] = others.num_cores
        self.passes.setdefault((name, rows.name), []).append(found)
        shown = "  ".join(f"{width}: {ms:.1f}" for width, ms in found["forward_ms"].items())
        prefill = found["prefill_ms"]
        told = f"; prefill {prefill:.2f} a token" if prefill else ""
        told += f"; logits move by {found['deviation']:.3g}" if compares else ""
        print(f"{self.name}, {name}, {rows.name}: {shown} ms{told}", flush=True)

    def _decode(
        self, name: str, way: Way, turn: int, prompts: Sequence[Prompt], max_tokens: int
    ) -> None:
        rates: list[float] = []
        others = _Others()
        with way.open() as decoder:
            decoder.complete(_HELLO, 8)  # what a process does once
            for prompt in prompts:
                one = decoder.complete(prompt.turns[0], max_tokens)
                rates.append(one.rate)
                self.texts.append({
                    "program": name, "way": way.name, "turn": turn, "task": prompt.task,
                    "prompt": prompt.prompt_id, "num_tokens": one.num_tokens, "rate": one.rate,
                    "first_s": one.first_s, "other_cores": others.num_cores,
                    "text": hashlib.sha256(one.text.encode()).hexdigest()[:12],
                    "begins": one.text[:40],
                })  # fmt: skip
            self.peaks.setdefault((name, way.name), []).append(decoder.peak_bytes)
        print(
            f"{self.name}, {name}, {way.name}: {geometric_mean(rates):.1f} tokens/s, "
            f"{self.peaks[name, way.name][-1] / 1e6:.0f} MB",
            flush=True,
        )

    def figures(self) -> Figures:
        """By program: forward passes, and ways to decode, or why there are none."""
        draft = self.setup.draft
        return {
            "model": self.name, "file": self.setup.model.name,
            "draft": draft.name if draft else None, "threads": self.setup.threads,
            "programs": [self._program(rival) for rival in RIVALS if self._was_asked(rival)],
            "texts": self.texts,
        }  # fmt: skip

    def _was_asked(self, rival: Rival) -> bool:
        return rival.name in self.found or (rival.name,) in self.reasons

    def _program(self, rival: Rival) -> Figures:
        found = self.found.get(rival.name)
        if found is None:
            reason = self.reasons[rival.name,]
            return {"program": rival.name, "source": rival.source, "reason": reason}
        return {
            "program": rival.name, "source": rival.source, "version": found.version,
            "weights": found.weights,
            "passes": [self._passes(rival.name, rows.name) for rows in found.rows],
            "ways": [self._way(rival.name, way) for way in found.ways],
        }  # fmt: skip

    def _passes(self, name: str, way: str) -> Figures:
        runs = self.passes.get((name, way))
        if not runs:
            return {"way": way, "reason": self.reasons.get((name, _PASSES, way))}
        forward_ms = {
            width: median(run["forward_ms"][width] for run in runs)
            for width in runs[0]["forward_ms"]
        }
        return {
            "way": way, "forward_ms": forward_ms,
            "prefill_ms": _median(run["prefill_ms"] for run in runs),
            "load_s": median(run["load_s"] for run in runs),
            "deviation": runs[0]["deviation"], "system": runs[0]["system"],
            "other_cores": max(run["other_cores"] for run in runs),
        }  # fmt: skip

    def _way(self, name: str, way: Way) -> Figures:
        by_prompt = self._by_prompt(name, way.name)
        if not by_prompt:
            return {"way": way.name, "reason": self.reasons.get((name, _DECODING, way.name))}
        plain = {key: ones[0]["text"] for key, ones in self._by_prompt(name, way.plain).items()}
        texts = [one["text"] != plain[key] for key, ones in by_prompt.items() if key in plain
                 for one in ones]  # fmt: skip
        rates = {key: median(one["rate"] for one in ones) for key, ones in by_prompt.items()}
        tasks = {key.partition("/")[0] for key in rates}
        return {
            "way": way.name, "rate": geometric_mean(rates.values()),
            "by_task": {
                task: geometric_mean(
                    rate for key, rate in rates.items() if key.startswith(f"{task}/")
                )
                for task in TASKS if task in tasks
            },
            "first_s": geometric_mean(
                median(one["first_s"] for one in ones) for ones in by_prompt.values()
            ),
            "other_cores": max(one["other_cores"] for ones in by_prompt.values() for one in ones),
            "peak_mb": max(self.peaks.get((name, way.name), [0])) / 1e6,
            "num_other_texts": sum(texts), "num_texts": len(texts),
        }  # fmt: skip

    def _by_prompt(self, name: str, way: str) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {}
        for one in self.texts:
            if (one["program"], one["way"]) == (name, way):
                found.setdefault(f"{one['task']}/{one['prompt']}", []).append(one)
        return found


class _Others:
    """The load of other programs from its creation on; a process that has ended was ours."""

    def __init__(self) -> None:
        self._others, self._start_s, self._ended_s = OtherPrograms(), perf_counter(), _ended_s()

    @property
    def num_cores(self) -> float:
        ended_s = (_ended_s() - self._ended_s) / (perf_counter() - self._start_s)
        return round(max(0.0, self._others.num_cores - ended_s), 2)


def _ended_s() -> float:
    """Seconds that processes have computed which this one has started, and which have ended."""
    times = os.times()
    return times.children_user + times.children_system


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _in_turn(every: Sequence[Any], turn: int) -> Sequence[Any]:
    """Forwards and backwards, so that none is always the first."""
    return every[:: -1 if turn % 2 else 1]


def chosen_prompts(number: int) -> list[Prompt]:
    """So many of our own prompts, a task after another."""
    by_task = [read_prompts(None, (task,), -(-number // len(TASKS))) for task in TASKS]
    found = [prompt for prompt in chain(*zip_longest(*by_task)) if prompt is not None]
    return found[:number]


def chosen_rivals(names: str) -> list[Rival]:
    """Those of a list, in the order of the table. Raises typer.BadParameter."""
    wanted, known = names.split(","), [rival.name for rival in RIVALS]
    if unknown := [name for name in wanted if name not in known]:
        raise typer.BadParameter(
            f"unknown program '{unknown[0]}'; choose from: {', '.join(known)}",
            param_hint="--rivals",
        )
    return [rival for rival in RIVALS if rival.name in wanted]


def main(
    models: Annotated[list[str] | None, typer.Argument(metavar="MODEL[:FORMAT]...")] = None,
    rivals: Annotated[str, typer.Option(help="Of these.")]
    = _RIVALS,
    ask: Annotated[str, typer.Option(help="Of these; none: obtain the programs only.")]
    = f"{_PASSES},{_DECODING}",
    turns: Annotated[int, typer.Option(min=1, help="Of every program.")] = 2,
    prompts: Annotated[int, typer.Option(min=1, help="Of our own, over seven tasks.")] = 7,
    max_tokens: Annotated[int, typer.Option(min=2, help="Of a completion.")] = 48,
    threads: Annotated[int | None, typer.Option(help="All cores by default.")] = None,
    draft: Annotated[str, typer.Option(
        "-md", help="Of all models; auto: the one that a model's name brings, or none.")]
    = prepare.AUTO,
    repeats: Annotated[int, typer.Option(help="Forward passes a width and turn.")] = 5,
    start: Annotated[int, typer.Option(help="Tokens before the rows that are timed.")] = 100,
    distinct: Annotated[int | None, typer.Option(
        min=1, help="Different tokens of a text, where the model is made: the fewer, the more "
        "experts do rows share.")]
    = None,
    ik_llama: Annotated[Path | None, typer.Option(help="A tree of ik_llama.cpp.")] = None,
) -> Figures:  # fmt: skip
    """Every program by turns: forward passes, tokens a second, first token, memory, texts."""
    chosen, texts = chosen_rivals(rivals), chosen_prompts(prompts)
    asked = set(ask.split(","))
    if unknown := asked - {_PASSES, _DECODING, _NONE}:
        raise typer.BadParameter(
            f"unknown '{min(unknown)}'; choose from: {_PASSES}, {_DECODING}, {_NONE}",
            param_hint="--ask",
        )
    done: list[Comparison] = []
    try:
        for name in models or _MODELS:
            facts = prepare.facts(name, draft, distinct)
            one = Comparison(name, Setup(facts, threads or len(available_cores()), ik_llama))
            done.append(one)
            one.find(chosen)
            for turn in range(turns):
                if _PASSES in asked:
                    one.take_passes(turn, repeats, start)
                if _DECODING in asked:
                    one.decode(turn, texts, max_tokens)
    except KeyboardInterrupt:
        if not any(one.texts or one.passes for one in done):
            raise
        print("interrupted; the rest is kept", flush=True)
    figures = {"models": [one.figures() for one in done]}
    print(compared(figures))
    return figures

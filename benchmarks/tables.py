"""Write the tables of the pages from result files.

    python -m benchmarks.tables

A table of a page stands between ``<!-- table: NAME -->`` and ``<!-- end -->``; NAME is one of
`TABLES`. A test says which table differs from what its files hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import figures_of, markdown
from benchmarks.cpu.page import decoding, passes, programs
from benchmarks.decoding.entrants import ALL, CEILING, PLAIN
from duodec.backends.curves import CostCurve
from duodec.backends.llamacpp.target.width_choice import WIDTHS
from duodec.loading.forecast import Forecast
from duodec_lab.bench.reports.statistics import Rate, Ratio, ratio_of_rates

PAGES = tuple(
    Path(__file__).parents[1] / name
    for name in ("README.md", "docs/measurements.md", "docs/cpu.md")
)
_MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_LEAST, _LEAST_OF_A_TASK = 1.10, 0.97  # of the default over the best of all else
_OURS = ("auto", "auto+gpu", "auto@free", "auto@gpu", CEILING)
_DEFAULT = "default"
_NAMES = {
    PLAIN: "duodec without drafts: the price of exactness",
    "lookup@free": "prompt lookup",
    "recycling@free": "token recycling",
    "lookahead@free": "lookahead",
    "sps@free": "speculative sampling, draft on the CPU",
    "pearl@free": "PEARL",
    "duo@free": "DuoDecoding",
    "sps@gpu": "speculative sampling, draft on the card",
    "auto": "duodec, draft on the CPU",
    "auto+gpu": "duodec, draft on the card",
    _DEFAULT: "**duodec's default**",
    CEILING: "the same with a draft that costs nothing, on the CPU",
}


@dataclass(frozen=True)
class Column:
    """A curve of a result file of `simulated`."""

    title: str
    result: str
    curve: str

    @cached_property
    def _file(self) -> Mapping[str, Any]:
        return _figures(self.result)

    @property
    def _bed(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._file["beds"][self.curve]
        return found

    @property
    def rows(self) -> str:
        """Of a pass: ``3``."""
        words: str = self._bed["shape"]
        return words.rpartition(", ")[2].removesuffix(" rows a pass")

    @property
    def others(self) -> list[str]:
        """All that is not ours, plain decoding of one row among it (as no label)."""
        return [label for label in self._bed["sums"] if label not in (*_OURS, PLAIN)]

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(one.partition("/")[0] for one in self._file["prompt_ids"]))

    @property
    def forward(self) -> CostCurve:
        return CostCurve.parse(self._bed["curve"]["text"])

    @property
    def default(self) -> str:
        """Where ``--draft-device auto`` computes this draft: on the card if a step pays more there,
        by the same forecast."""
        on_card, on_core = (
            float(text.split(",")[0].partition(":")[2]) / 1e3
            for text in (self._bed["draft_ms_on_gpu"], self._file["draft_ms"])
        )
        forward_s = self.forward.seconds(1)
        is_on_card = (
            Forecast(forward_s, on_card).in_turns >= Forecast(forward_s, on_core).in_parallel
        )
        return "auto+gpu" if is_on_card else "auto"

    def setting(self, label: str) -> str:
        """What was chosen: ``lookup:4``."""
        found: str = self._bed["settings"][label]
        return found

    def label(self, name: str) -> str:
        return self.default if name == _DEFAULT else name

    def has(self, name: str) -> bool:
        return self.label(name) in self._bed["sums"]

    def speedup(self, name: str, task: str = ALL) -> Ratio:
        """Over plain decoding in passes of one row."""
        cell = self._file["curves"][self.curve][self.label(name)][task]
        low, high = cell["interval"]
        return Ratio(cell["speedup"], low, high, len(self._rates(PLAIN, task)))

    def over_best(self, task: str) -> Ratio:
        """The default's tokens a second over those of the fastest of all else on a task."""
        best = max(self.others, key=lambda label: self.speedup(label, task).value)
        ours = self._rates(self.default, task)
        if self.speedup(best, task).value < 1:  # plain decoding as it is without us
            return self.speedup(self.default, task)
        return ratio_of_rates(ours, self._rates(best, task), range(len(ours)))

    def _rates(self, label: str, task: str) -> list[Rate]:
        """Tokens and seconds of each prompt of a task."""
        sums = self._bed["sums"][label].split("; ")
        found: list[Rate] = []
        for prompt, one in zip(self._file["prompt_ids"], sums, strict=True):
            tokens, _, seconds = one.split()
            if task in (ALL, prompt.partition("/")[0]):
                found.append((float(tokens), float(seconds)))
        return found


@cache
def _figures(result: str) -> Mapping[str, Any]:
    return figures_of(result)


def _columns(cards: str, limits: str = "") -> list[Column]:
    """Of a pair: the cards of one result file, and the estimates of another."""
    link = "@25GB/s"
    measured = {
        "RTX 3090, 8B Q4_0": f"rtx3090-8b-q4_0@llama.cpp@936GB/s{link}",
        "RTX 4090, 8B Q4_0": f"rtx4090-8b-q4_0@llama.cpp@1008GB/s{link}",
        "RTX 4090, 8B BF16": f"rtx4090-8b-bf16@torch@1008GB/s{link}",
        "MI50, 27B Q8_0": f"mi50-27b-q8_0@llama.cpp@1024GB/s{link}",
    }
    estimated = {
        "roofline, 4.5 bits": f"roofline:1008GB/s,165TFLOPS,4.0GB@llama.cpp@1008GB/s{link}",
        "roofline, 16 bits": (
            "roofline:3350GB/s,989TFLOPS,13.5GB,16bit@torch@3350GB/s@50GB/s"
        ),
        "25 ms at any width": f"25@tree@1008GB/s{link}",
    }  # fmt: skip
    found = [Column(title, cards, curve) for title, curve in measured.items()]
    return found + [Column(title, limits, curve) for title, curve in estimated.items() if limits]


PAIRS: Mapping[str, Callable[[], list[Column]]] = {
    "SmolLM2 135M, its 50M draft": lambda: _columns("curves-35-cards", "curves-35-limits"),
    "Qwen2.5-Coder 1.5B, its 0.5B": lambda: _columns("curves-pair-cards"),
}


def headline() -> str:
    """Both pairs, side by side, on the cards whose curves were measured."""
    pairs = [columns_of()[:4] for columns_of in PAIRS.values()]
    rows: list[list[object]] = [["over plain decoding", *(column.title for column in pairs[0])]]
    for name in (*(name for name in _NAMES if name not in _OURS), "auto"):
        words, *cells = _row(name, pairs[0])
        others = _row(name, pairs[1])[1:]
        pairs_of_cells = zip(cells, others, strict=True)
        both = [f"{one}, {other}" if other else one for one, other in pairs_of_cells]
        rows.append(["the same, draft on the CPU" if name == "auto" else words, *both])
    return markdown(rows)


def curves() -> str:
    """All entrants on all curves, for each pair, with the settings that were chosen."""
    parts: list[str] = []
    for pair, columns_of in PAIRS.items():
        columns = columns_of()
        rows: list[list[object]] = [["over plain decoding", *(one.title for one in columns)]]
        rows.append(["ms of a pass over 1 / 8 rows", *(_passes(one) for one in columns)])
        rows += [_row(name, columns) for name in _NAMES]
        rows.append(["95% of the default", *(_interval(one.speedup(_DEFAULT)) for one in columns)])
        for name in ("lookup@free", "recycling@free", "sps@free", "sps@gpu"):
            rows.append([f"`{name}`: best", *(_setting(one, name) for one in columns)])
        rows.append(["the default's draft is on", *(_place(one) for one in columns)])
        parts.append(f"**{pair}**\n\n{markdown(rows)}")
    return "\n\n".join(parts)


def criteria() -> str:
    """The default over the fastest of all else, by task; bold where it misses its goal."""
    parts: list[str] = []
    for pair, columns_of in PAIRS.items():
        columns = columns_of()
        tasks = columns[0].tasks
        rows: list[list[object]] = [["", *tasks, "all", "95%"]]
        for column in columns:
            cells = [_judged(column.over_best(task).value, _LEAST_OF_A_TASK) for task in tasks]
            whole = column.over_best(ALL)
            rows.append([column.title, *cells, _judged(whole.value, _LEAST), _interval(whole)])
        parts.append(f"**{pair}**\n\n{markdown(rows)}")
    return "\n\n".join(parts)


_SAMPLED = {
    PLAIN: "duodec without drafts",
    "lookup@free": "prompt lookup",
    "sps@gpu": "speculative sampling, draft on the card, keyed draws",
    "sps-rejection@gpu": "the same with the papers' rejection rule",
    "auto": "duodec, draft on the CPU",
    _DEFAULT: "**duodec's default**",
}


def sampled() -> str:
    """What is left at a temperature, and what keyed draws cost."""
    columns = _columns("curves-35-sampled")
    ahead = [one.over_best(ALL) for one in columns]
    return markdown(
        [
            ["over plain decoding", *(column.title for column in columns)],
            *([words, *_row(name, columns)[1:]] for name, words in _SAMPLED.items()),
            ["95% of the default", *(_interval(one.speedup(_DEFAULT)) for one in columns)],
            ["over the best of the others", *(f"{one.value:.2f}" for one in ahead)],
            ["95% of that", *map(_interval, ahead)],
        ]
    )


_CARDS = {
    "RTX 3090, 8B Q4_0": "rtx3090-8b-q4_0@llama.cpp{}@936GB/s@25GB/s",
    "RTX 4090, 8B Q4_0": "rtx4090-8b-q4_0@llama.cpp{}@1008GB/s@25GB/s",
    "RTX 4090, 8B BF16, as chains": "rtx4090-8b-bf16@llama.cpp{}@1008GB/s@25GB/s",
    "MI50, 27B Q8_0": "mi50-27b-q8_0@llama.cpp{}@1024GB/s@25GB/s",
}
_FEW, _EIGHT = range(1, 5), range(1, 9)
_AGREEING = ((_FEW, _FEW, _EIGHT, _FEW), (None, _EIGHT, None, None))
"""Widths that are assumed to agree, by card."""
OF_CLASSES = ("curves-14-classes", "curves-pair-classes")  # result files, one for each pair


def classes() -> str:
    """Widths that agree beside one padded width, of each pair that was simulated."""
    one_width = [_of_widths(text) for text in _CARDS.values()]
    rows: list[list[object]] = [["over plain decoding", *_CARDS]]
    rows.append(["one padded width", *(f"{pairs[0].rows} rows" for pairs in one_width)])
    rows += [_each(PLAIN, one_width), _each(_DEFAULT, one_width)]
    for members in _AGREEING:  # 1 is one of them: plain decoding is not padded
        beds = [
            _of_widths(text, own) if own else []
            for text, own in zip(_CARDS.values(), members, strict=True)
        ]
        words = [f"{own[0]} to {own[-1]}" if own else "" for own in members]
        rows += [["widths that agree", *words], _each(_DEFAULT, beds)]
    return markdown(rows)


def _of_widths(text: str, members: Collection[int] = ()) -> list[Column]:
    """A card's curve with passes of these widths, for each pair."""
    shape = "+".join(str(n) for n in WIDTHS if n in members)
    curve = text.format(f":{shape}" if shape else "")
    return [Column("", result, curve) for result in OF_CLASSES]


def _each(name: str, cards: Sequence[Sequence[Column]]) -> list[object]:
    """An entrant of ours on each card, for each pair."""
    return [_NAMES[name], *(", ".join(str(_row(name, [one])[1]) for one in own) for own in cards)]


@dataclass(frozen=True)
class _Unaided:
    """A result file of `unaided`: tokens a second on real clocks, by prompt and setting."""

    title: str
    result: str

    @cached_property
    def rates(self) -> Mapping[str, list[float]]:
        """By setting, of the same prompts in the same order."""
        found: dict[str, dict[str, float]] = {}
        for row in _figures(self.result)["rows"]:
            prompt = f"{row['task']}/{row['prompt']}"
            found.setdefault(row["setting"], {})[prompt] = row["rate"]
        return {name: [rates[one] for one in found[PLAIN]] for name, rates in found.items()}

    @cached_property
    def settings(self) -> Mapping[str, Mapping[str, Any]]:
        """What the file says of each setting."""
        return {one["setting"]: one for one in _figures(self.result)["table"]}

    def named(self, start: str, *, but: Collection[str] = ()) -> str | None:
        """The first setting whose name begins so."""
        names = (name for name in self.rates if name.startswith(start) and name not in but)
        return next(names, None)

    def over_plain(self, name: str | None) -> str:
        return f"{self.settings[name]['over_plain']:.2f}" if name else ""

    def over_all(self, other: str) -> tuple[np.ndarray, Ratio]:
        """The default's rates without a draft over another setting's; the geometric mean, whose
        interval is a bootstrap's over prompts."""
        logs = np.log(self.rates["auto"]) - np.log(self.rates[other])
        drawn = np.random.default_rng(0).choice(logs, (10_000, len(logs))).mean(1)
        low, high = np.exp(np.percentile(drawn, (2.5, 97.5)))
        return np.exp(logs), Ratio(float(np.exp(logs.mean())), low, high, len(logs))


_NGRAMS = "llama.cpp, n-grams"
_UNAIDED = (
    _Unaided("1.5B, Xeon, 0", "unaided-vnni-four-streams"),
    _Unaided("1.5B, Xeon, 0.7", "unaided-vnni-sampled"),
    _Unaided("1.5B, Zen 3, 0", "unaided-zen3"),
    _Unaided("1.5B, Zen 4, 0", "unaided-zen4"),
    _Unaided("1.5B, Zen 5, 0", "unaided-mixed-zen5-35"),
    _Unaided("1.5B, Zen 5, 0.7", "unaided-mixed-sampled-zen5-35"),
    _Unaided("SmolLM2, Xeon, 0", "unaided-smollm2"),
    _Unaided("SmolLM2, Xeon, 0.7", "unaided-smollm2-sampled"),
    _Unaided("SmolLM2, Zen 5, 0", "unaided-mixed-smollm2-zen5"),
    _Unaided("SmolLM2, Zen 5, 0.7", "unaided-mixed-smollm2-sampled-zen5"),
)


def unaided() -> str:
    """Without a GPU, beside llama.cpp's server: rates over plain decoding of ours."""
    rows: list[list[object]] = [
        ["model, machine, temperature", "`ar`, tokens/s", "`auto`", "and a draft", "`lookup`",
         "llama.cpp", "its n-grams", "its draft", "file"]
    ]  # fmt: skip
    for run in _UNAIDED:
        its_draft = run.named("llama.cpp, ", but=(_NGRAMS,))
        names = ("auto", run.named("auto, "), run.named("lookup"), "llama.cpp", _NGRAMS, its_draft)
        cells = [run.over_plain(name) for name in names]
        rows.append([run.title, f"{median(run.rates[PLAIN]):.3g}", *cells, f"`{run.result}`"])
    return markdown(rows)


def unaided_tasks() -> str:
    """The default without a draft model by task, at worst, and beside llama.cpp's n-grams."""
    tasks = tuple(_UNAIDED[0].settings["auto"]["by_task"])
    head = ["", *tasks, "all (95%)", "least", "over n-grams (95%)"]
    rows: list[list[object]] = [[*head]]
    for run in _UNAIDED:
        by_task = run.settings["auto"]["by_task"]
        each, over_plain = run.over_all(PLAIN)
        _, over_ngrams = run.over_all(_NGRAMS)
        rows.append(
            [run.title, *(f"{by_task[task]:.2f}" for task in tasks),
             f"{over_plain.value:.2f} ({_interval(over_plain)})", f"{each.min():.2f}",
             f"{over_ngrams.value:.2f} ({_interval(over_ngrams)})"]
        )  # fmt: skip
    return markdown(rows)


_CPU = "cpu"  # the result file of the head-to-head
_CPU_PASSES = {
    "cpu_experts": "cpu-experts", "cpu_shared_experts": "cpu-experts-shared", "cpu_ik": "cpu-ik",
}  # fmt: skip


def _of_cpu(table: Callable[[Mapping[str, Any]], str], name: str = _CPU) -> Callable[[], str]:
    def written_of_file() -> str:
        try:
            return table(_figures(name))
        except FileNotFoundError:
            return "Not measured yet."

    return written_of_file


TABLES: dict[str, Callable[[], str]] = {
    one.__name__: one
    for one in (headline, curves, classes, criteria, sampled, unaided, unaided_tasks)
}
TABLES |= {f"cpu_{one.__name__}": _of_cpu(one) for one in (passes, decoding, programs)}
TABLES |= {name: _of_cpu(passes, file) for name, file in _CPU_PASSES.items()}
TABLES["cpu_ik_decoding"] = _of_cpu(decoding, "cpu-ik")


def written(page: str) -> str:
    """A page with its tables as the files have them. Raises KeyError for an unknown table."""
    return _MARKED.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", page)


def _row(name: str, columns: Iterable[Column]) -> list[object]:
    bold = "**" if name == _DEFAULT else ""
    cells = [
        f"{bold}{one.speedup(name).value:.2f}{bold}" if one.has(name) else "" for one in columns
    ]
    return [_NAMES.get(name, name), *cells]


def _passes(column: Column) -> str:
    return " / ".join(f"{1e3 * column.forward.seconds(num):.3g}" for num in (1, 8))


def _interval(ratio: Ratio) -> str:
    return f"{ratio.low:.2f} to {ratio.high:.2f}"


def _setting(column: Column, name: str) -> str:
    return f"`{column.setting(name)}`" if column.has(name) else ""


def _place(column: Column) -> str:
    return "the card" if column.default == "auto+gpu" else "the CPU"


def _judged(value: float, least: float) -> str:
    return f"{value:.2f}" if value >= least else f"**{value:.2f}**"


def main(pages: Sequence[Path] = PAGES) -> None:
    for page in pages:
        page.write_text(written(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()

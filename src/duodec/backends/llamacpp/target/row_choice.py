"""Choose how many rows every forward pass on a device has, by what more of them cost there.

A device's fast path is one number of rows: llama.cpp rebuilds its graph for another one, and a GPU
replays only what it has computed before. T(n) is measured once for a model, a device and a build,
and the choice is kept: measured anew it could turn out otherwise, and with it the last bits of
every row. It stands where the profiles of pairs are kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from duodec.backends.llamacpp import library
from duodec.backends.llamacpp.build.native import VERSION
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.target.padded import LlamaPadded
from duodec.core.protocols import Query
from duodec.core.sampling.sampler import Tokens
from duodec.machine.files import profile_place

WIDTHS = (2, 4, 8, 16, 32)  # rows that a forward pass may have
TOKENS = {2: 1.48, 4: 1.86, 8: 2.08, 16: 2.16, 32: 2.18}  # a pass, with chains of `auto`
_TILE = 64  # rows of all heads that share keys which a group of threads of flash attention computes
_MOST_GROUPED = 8  # heads that it takes together
_ROUNDS, _WARM, _RUNS = 3, 2, 3
_CONTEXT, _NUM_TEXT = 256, 64
_SAMPLES, _SAMPLE_BYTES = 256, 4096


@dataclass(frozen=True)
class RowChoice:
    """What was measured, and the rows that follow from it."""

    seconds: Mapping[int, float]  # of a forward pass, by its rows
    num_rows: int

    @classmethod
    def of(cls, seconds: Mapping[int, float]) -> RowChoice:
        """The rows that are expected to yield the most tokens a second."""
        return cls(dict(seconds), max(seconds, key=lambda n: TOKENS[n] / seconds[n]))


def most_rows(model: LlamaModel) -> int:
    """Rows whose bits do not depend on their place in a forward pass: as many as one tile of flash
    attention has, however a device splits a text's cells among its tiles."""
    grouped = 1
    while grouped < min(model.num_grouped_heads, _MOST_GROUPED):
        grouped *= 2
    return _TILE // grouped


def choice_for(model: LlamaModel, *, num_threads: int) -> RowChoice:
    """The choice that was made for this model on this device, or one made now."""
    path = profile_place(f"rows-{_key(model)}")
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # none, or none that holds
        record = json.loads(path.read_text(encoding="utf-8"))
        seconds = {int(n): float(s) for n, s in record["seconds"].items()}
        return RowChoice(seconds, int(record["num_rows"]))
    found = RowChoice.of(measured(model, num_threads=num_threads))
    with contextlib.suppress(OSError):  # it is measured again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(found)), encoding="utf-8")
    return found


def measured(model: LlamaModel, *, num_threads: int) -> dict[int, float]:
    """Seconds of a forward pass by its rows."""
    widths = [n for n in WIDTHS if n <= most_rows(model)]
    text: Tokens = np.zeros(_NUM_TEXT, dtype=np.int32)
    target = LlamaPadded(model, num_rows=max(widths), num_context=_CONTEXT, num_threads=num_threads)

    def run(num_rows: int) -> None:
        target.num_rows = num_rows
        target.score([Query(0, text)])

    with closing(target):
        return measure(run, widths)


def measure(
    run: Callable[[int], None],
    widths: Sequence[int] = WIDTHS,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, float]:
    """Seconds of ``run`` by its number of rows: the least of several that follow each other, and of
    several rounds over all numbers, since a device changes its pace and others use it too. Numbers
    that cannot win any more are left out."""
    found: dict[int, float] = {}
    for _ in range(_ROUNDS):
        for num_rows in widths:
            least = min(_timed(run, num_rows, clock) for _ in range(_WARM + _RUNS))
            found[num_rows] = min(least, found.get(num_rows, least))
            best = max(TOKENS[n] / found[n] for n in found)
            if max(TOKENS.values()) / found[num_rows] < best / 2:
                break
    return found


def _timed(run: Callable[[int], None], num_rows: int, clock: Callable[[], float]) -> float:
    begin_s = clock()
    run(num_rows)
    return clock() - begin_s


def _key(model: LlamaModel) -> str:
    """Names what the model's file says, where its layers lie, the devices and the build. No time of
    any file counts: a copy, or the same build installed again, has the same rows."""
    built = VERSION, library.kernels(model.lib)
    parts = [_content(model.path), model.placed_as, built]
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]


def _content(path: Path) -> str:
    """Names a file's content by its size and by parts from all over it."""
    num_bytes = path.stat().st_size
    digest = hashlib.sha256(str(num_bytes).encode())
    with path.open("rb") as file:
        for place in np.linspace(0, max(0, num_bytes - _SAMPLE_BYTES), _SAMPLES).astype(int):
            file.seek(int(place))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()

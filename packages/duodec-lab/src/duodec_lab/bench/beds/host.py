"""Price the host's work between two forward passes, in a simulation.

copy:8,draw:120,candidates:60,selection:40     microseconds: of a row copied from the device, of
                                               a token drawn from a row, of a row searched for its
                                               likeliest tokens, of a draft selected
between:60,handover:300                        of all else between two passes, and of a message to
                                               the drafter's process with one back
heads:1500                                     of what the target's own heads propose after a
                                               forward pass; else they cost what they read of its
                                               weights
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from statistics import median
from time import perf_counter

import numpy as np

from duodec.core.candidates import CandidateTree, TreeCursor
from duodec.core.draft import Draft
from duodec.core.targets import NUM_CANDIDATES, Query, Target
from duodec.errors import BadOption

HANDOVER_S = 0.0003
"""Measured: 0.18 ms from a request to its finished draft beyond the model, 0.05 ms to submit."""
_RUNS = 9
_TEXT, _ROWS = 64, 8


@dataclass(frozen=True)
class HostPrices:
    """Seconds of each; 0: it is free. A message takes 0.3 ms unless it is given."""

    copy: float = 0.0
    draw: float = 0.0
    candidates: float = 0.0
    selection: float = 0.0
    between: float = 0.0
    handover: float = HANDOVER_S
    heads: float | None = None  # None: by the weights that they read

    @classmethod
    def parse(cls, text: str, option: str = "host-us") -> HostPrices:
        """Microseconds by name, ``0`` for none but that of a message. Raises BadOption."""
        if text.strip() == "0":
            return cls()
        names = [field.name for field in fields(cls)]
        found: dict[str, float] = {}
        for part in text.split(","):
            name, _, number = part.strip().partition(":")
            try:
                microseconds = float(number)
            except ValueError:
                microseconds = math.nan
            if name not in names or name in found or not 0 <= microseconds < math.inf:
                raise BadOption(
                    f"'{part.strip()}' in {option} '{text}' is no price; write microseconds of "
                    f"{', '.join(names)}, each once: copy:8,draw:120, or 0"
                )
            found[name] = microseconds / 1e6
        return cls(**found)

    def __str__(self) -> str:
        prices = {field.name: getattr(self, field.name) for field in fields(self)}
        known = {name: seconds for name, seconds in prices.items() if seconds is not None}
        return ",".join(f"{name}:{_short(seconds * 1e6)}" for name, seconds in known.items())


def _short(microseconds: float) -> str:
    """Three digits or more, without an exponent."""
    return f"{microseconds:.0f}" if microseconds >= 100 else f"{microseconds:.3g}"


NO_PRICES = HostPrices()


def on_rows(target: Target, num_vocab: int, select: Callable[[TreeCursor], object]) -> HostPrices:
    """Measure them here: medians, on a target's own rows, which it computes. ``select`` chooses a
    draft from a tree of candidates."""
    rng = np.random.default_rng(0)
    text = rng.integers(0, num_vocab, _TEXT).astype(np.int32)
    draft = Draft.chain(rng.integers(0, num_vocab, _ROWS - 1).tolist())
    (scores,) = target.score([Query(0, text, draft, num_candidates=NUM_CANDIDATES)])
    rows = range(min(_ROWS, scores.num_rows))
    device, host = np.ones((2, num_vocab), dtype=np.float32)
    tree = CandidateTree()
    for parent in range(-1, 15):
        tree.extend(
            rng.integers(0, num_vocab, NUM_CANDIDATES).tolist(),
            [parent] * NUM_CANDIDATES,
            (0.5 ** np.arange(1, NUM_CANDIDATES + 1)).tolist(),
        )
    cursor = TreeCursor(tree)
    return HostPrices(
        copy=_seconds(lambda row: np.copyto(host, device), rows),
        draw=_seconds(scores.draw, rows),
        candidates=_seconds(scores.candidates, rows),
        selection=_seconds(lambda row: select(cursor), range(1)),
    )


def _seconds(work: Callable[[int], object], rows: range) -> float:
    times = []
    for _ in range(_RUNS):
        for row in rows:
            begin_s = perf_counter()
            work(row)
            times.append(perf_counter() - begin_s)
    return median(times)

"""Choose how many rows every forward pass on a device has, by what more of them cost there.

T(n) is measured once for a model, a device and a build, and the choice is kept: measured anew it
could turn out otherwise, and with it the last bits of every row.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np

from duodec.backends.llamacpp import devices, self_test
from duodec.backends.llamacpp.model import LlamaModel
from duodec.backends.llamacpp.native import cache_folder
from duodec.backends.llamacpp.padded import LlamaPadded
from duodec.core.protocols import Query
from duodec.core.sampling import Tokens

WIDTHS = (8, 16, 32)  # rows that a forward pass may have
FEWEST = WIDTHS[0]
TOKENS = {8: 1.82, 16: 1.91, 32: 2.01}  # a pass, with chains of `auto` (results/shapes-7.json)
MOST = 1.25  # of the time of a single row; beyond, nothing is padded unless it is asked for
_WARM, _RUNS = 2, 5
_CONTEXT = 256


@dataclass(frozen=True)
class RowChoice:
    """What was measured, and the rows that follow from it; None: padding costs too much."""

    seconds: Mapping[int, float]  # of a forward pass, by its rows
    num_rows: int | None

    @property
    def price(self) -> float:
        """Of the rows that are taken, or else of the fewest: their time by that of one."""
        return self.seconds[self.num_rows or FEWEST] / self.seconds[1]

    @classmethod
    def of(cls, seconds: Mapping[int, float]) -> RowChoice:
        """The rows that are expected to yield the most tokens a second, of those that cost
        little."""
        fair = [n for n in WIDTHS if n in seconds and seconds[n] <= MOST * seconds[1]]
        return cls(dict(seconds), max(fair, key=lambda n: TOKENS[n] / seconds[n], default=None))


def choice_for(model: LlamaModel, *, num_threads: int) -> RowChoice:
    """The choice that was made for this model on this device, or one made now."""
    path = cache_folder() / "rows" / f"{_key(model)}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # none, or none that holds
        record = json.loads(path.read_text(encoding="utf-8"))
        return RowChoice.of({int(n): float(s) for n, s in record["seconds"].items()})
    found = RowChoice.of(measure(model, num_threads=num_threads))
    with contextlib.suppress(OSError):  # it is measured again next time
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(found)), encoding="utf-8")
    return found


def measure(
    model: LlamaModel,
    *,
    num_threads: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, float]:
    """Seconds of a forward pass by its rows: of one, and of more as long as they cost little."""
    found: dict[int, float] = {}
    for num_rows in (1, *WIDTHS):
        target = LlamaPadded(
            model, num_rows=num_rows, num_context=_CONTEXT, num_threads=num_threads
        )
        with closing(target):
            text: Tokens = np.zeros(2, dtype=np.int32)
            times = []
            for _ in range(_WARM + _RUNS):
                begin_s = clock()
                target.score([Query(0, text)])
                times.append(clock() - begin_s)
        found[num_rows] = median(times[_WARM:])
        if found[num_rows] > MOST * found[1]:
            break
    return found


def _key(model: LlamaModel) -> str:
    """Names the model's file, where its layers lie, the devices and the build."""
    state = model.path.stat()
    parts = [
        str(Path(model.path).name), state.st_size, state.st_mtime_ns, model.placed_as,
        [asdict(device) for device in devices.every(model.lib)], self_test.library_key(),
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]

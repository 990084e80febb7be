"""Choose the widths of a device's forward passes, by what they cost and which of them agree.

T(n) is measured and widths are compared once for a model, a device, its driver and a build, and the
choice is kept: another measurement could lead to another choice, and so change the last bits of
every row. The choice is stored with the profiles of pairs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from duodec.backends.widths.classes import PaddedTarget, agreeing
from duodec.core.draft import Draft
from duodec.core.sampling.sampler import Tokens
from duodec.core.targets import Query
from duodec.core.traits import Widths
from duodec.machine.files import profile_place

# These are the tokens that a pass of this many rows gives with chains and with trees of `auto`:
# "Rows of a pass" in docs/measurements.md.
CHAINS = {1: 1.0, 2: 1.48, 4: 1.86, 8: 2.08, 16: 2.16, 32: 2.18}
TREES = {1: 1.0, 8: 2.57, 16: 3.11, 32: 3.45}
_PLAIN = 0.25  # share of all passes that have no draft
_ROUNDS, _WARM, _RUNS = 3, 2, 3
_WARM_UP_S = 1.0  # before the first pass that counts: an idle device is slow
_NUM_TEXT = 64  # tokens before a pass that is timed
_SAMPLES, _SAMPLE_BYTES = 256, 4096
_DRIVER = Path("/proc/driver/nvidia/version")


def tokens(num_rows: int, yields: Mapping[int, float]) -> float:
    """Return how many tokens a pass of ``num_rows`` is expected to give; between measured widths,
    by the logarithm of their rows."""
    return float(np.interp(np.log2(num_rows), np.log2(list(yields)), list(yields.values())))


@dataclass(frozen=True)
class WidthChoice:
    """Hold what was measured, and the widths that follow from it."""

    seconds: Mapping[int, float]  # seconds of a pass by its rows, after others of as many
    changing: Mapping[int, float]  # after others of another number: a graph is rebuilt
    classes: Sequence[tuple[int, ...]]  # classes of widths whose rows have equal bits
    yields: Mapping[int, float] = field(default_factory=lambda: CHAINS)  # tokens, by rows

    @property
    def widths(self) -> Widths:
        """Return the widths that are expected to yield the most tokens a second: a class, or one
        width."""
        rates = {own: self._rate(self.changing, own) for own in self.classes if len(own) > 1}
        for own in self.classes:
            rates.update({(n,): self._rate(self.seconds, (n,)) for n in own})
        return Widths(max(rates, key=rates.__getitem__))

    def seconds_of(self, widths: Widths) -> dict[int, float]:
        """Return the seconds of a pass by its rows, if passes have these widths."""
        seconds = self.changing if len(widths.each) > 1 else self.seconds
        return {n: seconds[n] for n in widths.each}

    @property
    def fastest(self) -> int:
        """Return the best single width, whatever its bits."""
        return max(self.seconds, key=lambda n: self._rate(self.seconds, (n,)))

    def _rate(self, seconds: Mapping[int, float], widths: Collection[int]) -> float:
        """Return the tokens a second that are expected of passes with these widths. Passes without
        drafts have the narrowest width, and others the best one."""
        plain_s = _PLAIN * seconds[min(widths)]
        return max(tokens(n, self.yields) / (plain_s + (1 - _PLAIN) * seconds[n]) for n in widths)


def kept(key: str, yields: Mapping[int, float] = CHAINS) -> WidthChoice | None:
    """Return the choice that was made for this key, if there is a valid one."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads(_place(key).read_text(encoding="utf-8"))
        both = (record["seconds"], record["changing"])
        seconds, changing = ({int(n): float(s) for n, s in one.items()} for one in both)
        classes = [tuple(map(int, own)) for own in record["classes"]]
        found = WidthChoice(seconds, changing, classes, yields)
        return found if found.widths else None
    return None


def keep(key: str, choice: WidthChoice) -> None:
    """Store a choice; if that fails, it is measured again next time."""
    path = _place(key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {name: value for name, value in asdict(choice).items() if name != "yields"}
        path.write_text(json.dumps(record), encoding="utf-8")


def measured(
    target: PaddedTarget,
    widths: Sequence[int],
    num_vocab: int,
    depths: Sequence[int],
    yields: Mapping[int, float] = CHAINS,
) -> WidthChoice:
    """Time passes of these widths, and compare the rows of those that can win at these depths.
    Raises ComputeFailed."""
    dice = np.random.default_rng(0)
    text: Tokens = dice.integers(0, num_vocab, _NUM_TEXT).astype(np.int32)
    # Rows of other tokens choose other experts, which may have to be read from slower memory.
    drafted = dice.integers(0, num_vocab, max(widths)).tolist()

    def run(num_rows: int) -> None:
        target.widths = Widths.only(num_rows)
        target.score([Query(0, text, Draft.chain(drafted[: num_rows - 1]))])

    seconds = measure(run, widths, yields=yields)
    changing = measure_changing(run, list(seconds))
    classes = agreeing(target, sorted(seconds), num_vocab, depths=depths)
    return WidthChoice(seconds, changing, classes, yields)


def measure(
    run: Callable[[int], None],
    widths: Sequence[int],
    clock: Callable[[], float] = time.perf_counter,
    yields: Mapping[int, float] = CHAINS,
) -> dict[int, float]:
    """Return the seconds of ``run`` by its number of rows: the least of several consecutive runs,
    and of several rounds over all numbers, since a device changes its pace and others use it too.
    Numbers that cannot win any more are left out."""
    found: dict[int, float] = {}
    begin_s = clock()
    while clock() < begin_s + _WARM_UP_S:
        run(widths[0])
    for _ in range(_ROUNDS):
        for num_rows in widths:
            least = min(_timed(run, num_rows, clock) for _ in range(_WARM + _RUNS))
            found[num_rows] = min(least, found.get(num_rows, least))
            best = max(tokens(n, yields) / found[n] for n in found)
            if tokens(max(widths), yields) / found[num_rows] < best / 2:
                break
    return found


def measure_changing(
    run: Callable[[int], None],
    widths: Sequence[int],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, float]:
    """Return the seconds of ``run`` by its number of rows, each after another number: the least of
    several."""
    rounds = [{n: _timed(run, n, clock) for n in widths} for _ in range(_ROUNDS)]
    return {n: min(one[n] for one in rounds) for n in widths}


def key_of(*parts: object) -> str:
    """Return a key of a model, its placement, the devices and the build, and with them NVIDIA's
    driver. File times do not count: a copy, or the same build installed again, has the same
    widths."""
    driver = _DRIVER.read_text(errors="replace") if _DRIVER.is_file() else ""
    return hashlib.sha256(json.dumps((*parts, driver), default=str).encode()).hexdigest()[:16]


def content(path: Path) -> str:
    """Return a key of a file's content, from its size and parts from all over it."""
    num_bytes = path.stat().st_size
    digest = hashlib.sha256(str(num_bytes).encode())
    with path.open("rb") as file:
        for place in np.linspace(0, max(0, num_bytes - _SAMPLE_BYTES), _SAMPLES).astype(int):
            file.seek(int(place))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


def _timed(run: Callable[[int], None], num_rows: int, clock: Callable[[], float]) -> float:
    begin_s = clock()
    run(num_rows)
    return clock() - begin_s


def _place(key: str) -> Path:
    return profile_place(f"widths-{key}")

"""Read what a forward pass costs by its rows: a number, points, a curve's name, a file, a roofline.

25                                     flat: a limit that no hardware reaches
1:47.6,2:57,4:64,8:95                  milliseconds by rows
rtx3090-8b-q4_0                        published for a GPU and a model: `published`
curves.json:h100-llama-3-8b-q4_k_m     measured by `python -m benchmarks gpu`
roofline:1008GB/s,165TFLOPS,4.7GB      a model, not a measurement
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from duodec.errors import BadOption

FLAT_ROWS = 81  # a flat curve is flat up to a token and 80 draft tokens; beyond, in proportion
_ROOFLINE, _FILE = "roofline:", ".json"
_SOURCE = ": github.com/"
_BITS = 4.5  # bits of a weight (Q4_0) by default: the fewer, the dearer is a row for its bytes
_SPEED = re.compile(r"([0-9.]+)([MGT]B)/s")
_ARITHMETIC = re.compile(r"([0-9.]+)([GTP])FLOP(?:S|/s)")
_WEIGHTS = re.compile(r"([0-9.]+)([MGT]B)")
_WIDTH = re.compile(r"([0-9.]+)bit")
_UNITS = {"MB": 1e6, "GB": 1e9, "TB": 1e12, "G": 1e9, "T": 1e12, "P": 1e15}
_HOW = (
    "write milliseconds (25), milliseconds by rows (1:47.6,2:57,4:64), a published curve ({}), a "
    "file of curves (curves.json:NAME), or roofline:1008GB/s,165TFLOPS,4.7GB"
)

Points = Sequence[tuple[int, float]]


def interpolated(points: Points, number: int) -> float:
    """Return the seconds at a number of rows or tokens. They are linear between points; beyond the
    last and before the first point, the slope continues."""
    place = bisect_right(points, (number, math.inf))
    if not place or len(points) == 1:
        return points[0][1]
    (low, low_s), (high, high_s) = points[min(place, len(points) - 1) - 1 :][:2]
    slope = (high_s - low_s) / (high - low)
    if number >= high:
        return high_s + max(0.0, slope) * (number - high)
    return low_s + slope * (number - low)


@dataclass(frozen=True)
class CostCurve:
    """Hold the seconds of a forward pass by its rows, T(n), which never falls.

    ``text`` is what was given, and ``origin`` tells people what it is worth: a measurement with its
    source, a model, a limit.
    """

    points: tuple[tuple[int, float], ...]  # (rows, seconds), by rows
    text: str = ""
    origin: str = "as given"

    @classmethod
    def parse(cls, text: str | float, name: str = "curve") -> CostCurve:
        """Parse a curve from a number (flat, in milliseconds) or a text. Raises BadOption, which
        calls the option ``name``."""
        words = f"{text:g}" if isinstance(text, float) else str(text).strip()
        try:
            if words.startswith(_ROOFLINE):
                return _roofline(words)
            if _FILE in words:
                return _in_file(words)
            if ":" in words:
                return _given(words)
            if words in published():
                return published()[words]
            return cls.flat(_milliseconds(words), words)
        except ValueError as error:
            raise BadOption(f"{name} is {words or 'empty'}; {error}") from None

    @classmethod
    def flat(cls, seconds: float, text: str = "", num_rows: int = FLAT_ROWS) -> CostCurve:
        """Return the limit in which ``num_rows`` are free; beyond, rows cost in proportion."""
        points = ((1, seconds), (num_rows, seconds), (2 * num_rows, 2 * seconds))
        return cls(points, text or f"{seconds * 1e3:g}", f"flat to {num_rows} rows: a limit")

    @classmethod
    def constant(cls, seconds: float, text: str = "") -> CostCurve:
        """Return a curve that is the same for any number of rows."""
        return cls(((1, seconds),), text or f"{seconds * 1e3:g}", "the same for any rows: a limit")

    def seconds(self, num_rows: int) -> float:
        """Return the seconds of one forward pass of ``num_rows``."""
        return interpolated(self.points, num_rows)

    @property
    def forward_s(self) -> float:
        """Return T(1): the seconds of a forward pass of plain decoding."""
        return self.seconds(1)

    @property
    def words(self) -> str:
        """Describe for people what was given and what it is worth; a record includes its source."""
        unit = " ms" if re.fullmatch(r"[0-9.e+-]+", self.text) else ""
        return f"{self.text}{unit} ({self.origin.partition(_SOURCE)[0]})"

    def as_json(self) -> dict[str, Any]:
        """Return the curve for a record: its points hold whatever is published later under its
        name."""
        return {
            "text": self.text,
            "origin": self.origin,
            "points_ms": [[rows, round(seconds * 1e3, 6)] for rows, seconds in self.points],
        }

    def __str__(self) -> str:
        return self.text


@cache
def published() -> Mapping[str, CostCurve]:
    """Return the published curves by name; their file names the source of every figure."""
    return _read(files("duodec.data").joinpath("curves.json").read_text(encoding="utf-8"))


def _read(text: str) -> dict[str, CostCurve]:
    """Return the curves of a file. Raises ValueError, KeyError and TypeError."""
    return {name: _measured(name, **known) for name, known in json.loads(text).items()}


def _in_file(words: str) -> CostCurve:
    """Return the curve of FILE.json, or the one with a name from FILE.json:NAME. Raises
    ValueError."""
    place, _, name = words.partition(_FILE)
    path = Path(place + _FILE).expanduser()
    try:
        found = _read(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); name another file") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"{path} is no file of curves; python -m benchmarks gpu writes one"
        ) from None
    name = name.removeprefix(":")
    if not name and len(found) == 1:
        (name,) = found
    if name not in found:
        raise ValueError(f"{path} has no curve '{name}'; choose from: {', '.join(found)}")
    return replace(found[name], text=words)


def _measured(
    name: str, points: str, measured_rows: int, source: str, model: str = ""
) -> CostCurve:
    curve = _given(points)
    origin = f"measured to {measured_rows} rows: {source}"
    return CostCurve(curve.points, name, f"{origin}; {model}" if model else origin)


def _milliseconds(words: str) -> float:
    """Return the seconds of a number of milliseconds. Raises ValueError with the remedy."""
    try:
        number = float(words)
    except ValueError:
        raise ValueError(_HOW.format(", ".join(published()))) from None
    if not 0 <= number < math.inf:
        raise ValueError("use milliseconds, 0 or more")
    return number / 1e3


def _given(words: str) -> CostCurve:
    points: dict[int, float] = {}
    for part in words.split(","):
        rows, _, milliseconds = part.partition(":")
        try:
            num_rows, number = int(rows), float(milliseconds)
        except ValueError:
            raise ValueError(
                f"'{part.strip()}' is not ROWS:MS; write, for instance, 1:47.6,2:57,4:64"
            ) from None
        if num_rows < 1 or not 0 <= number < math.inf:
            raise ValueError(
                f"'{part.strip()}' is not a cost; use 1 row or more and milliseconds of 0 or more"
            )
        if num_rows in points:
            raise ValueError(f"it has two costs of {num_rows} rows; give one")
        points[num_rows] = number / 1e3
    ordered = sorted(points.items())
    for (few, cost_s), (many, more_s) in pairwise(ordered):
        if more_s < cost_s:
            raise ValueError(
                f"it falls from {few} to {many} rows; more rows cost as much at least: measure "
                "again, or leave one out"
            )
    return CostCurve(tuple(ordered), words)


def _roofline(words: str) -> CostCurve:
    """Return T(n) as the longer of two times: reading the weights once, and the arithmetic of n
    rows."""
    parts = [part.strip() for part in words[len(_ROOFLINE) :].split(",")]
    patterns = (_SPEED, _ARITHMETIC, _WEIGHTS, _WIDTH)
    numbers = [
        _amount(pattern.fullmatch(part)) for pattern, part in zip(patterns, parts, strict=False)
    ]
    if len(parts) not in (3, 4) or not all(numbers):
        raise ValueError(
            "write bandwidth, arithmetic, bytes of weights and, if it is not 4.5, bits of a "
            "weight: roofline:3350GB/s,989TFLOPS,13.5GB,16bit"
        )
    speed, arithmetic, num_bytes, *bits = numbers
    read_s = num_bytes / speed
    # An addition and a product.
    row_s = 2 * num_bytes * 8 / (bits[0] if bits else _BITS) / arithmetic
    ridge = max(1, math.floor(read_s / row_s))
    rows = sorted({1, ridge, ridge + 1, 2 * (ridge + 1)})
    points = tuple((n, max(read_s, n * row_s)) for n in rows)
    return CostCurve(points, words, "a model: the weights' bytes, or the rows' arithmetic")


def _amount(found: re.Match[str] | None) -> float:
    """Return a number with its unit; 0 for none."""
    if found is None:
        return 0.0
    number, *unit = found.groups()
    try:
        return float(number) * (_UNITS[unit[0]] if unit else 1.0)
    except ValueError:  # two points
        return 0.0

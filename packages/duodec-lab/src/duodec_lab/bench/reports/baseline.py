"""Say what 1.00 is: the curve of a run, the shape of its forward passes, and their padding."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from duodec.backends.curves import interpolated
from duodec_lab.bench.beds.host import HostPrices

_ROWS = re.compile(r"(\d+)(?:, \d+)*(?: or \d+)? rows a pass")  # plain decoding has the fewest


def baseline_words(settings: Mapping[str, Any]) -> str:
    """A sentence for captions; empty where passes cost what they cost on this machine."""
    curve, shape = settings.get("curve"), settings.get("simulate_as")
    if not curve:
        return ""
    words = f"1.00 is plain decoding where a forward pass costs {curve['text']}"
    if shape:
        words += f", in the shape of {shape}"
        rows = _num_rows(settings)
        one, padded = _milliseconds(curve, 1), _milliseconds(curve, rows)
        words += f", padded: {padded:.3g} ms, of one row {one:.3g}" if rows > 1 else ", unpadded"
    return words


def unpadded_share(settings: Mapping[str, Any], plain_s: float | None) -> float | None:
    """How fast the run's plain decoding, of ``plain_s`` seconds a token, is over plain decoding in
    passes of one row; None where passes are not padded."""
    curve, rows = settings.get("curve"), _num_rows(settings)
    if not curve or rows < 2 or not plain_s:
        return None
    padding_s = (_milliseconds(curve, rows) - _milliseconds(curve, 1)) / 1e3
    if not str(settings["simulate_as"]).startswith("torch"):  # which copies no row to the host
        padding_s += (rows - 1) * HostPrices.parse(settings["host_us"]).copy
    return (plain_s - padding_s) / plain_s


def _num_rows(settings: Mapping[str, Any]) -> int:
    """Rows of a pass of plain decoding; 1 where there are as many as wanted."""
    found = _ROWS.search(str(settings.get("simulate_as") or ""))
    return int(found[1]) if found else 1


def _milliseconds(curve: Mapping[str, Any], rows: int) -> float:
    return interpolated([(n, ms) for n, ms in curve["points_ms"]], rows)

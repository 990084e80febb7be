"""Put what the DuoDecoding paper claims beside what was measured."""

from __future__ import annotations

from duodec.bench.reports.measures import measure
from duodec.bench.results import Results

CLAIMED_SPEEDUP = 2.61  # over plain decoding, at most
CLAIMED_TTFT = 0.83  # of speculative sampling's


def claims(results: Results) -> list[str]:
    """What the paper claims, and what was measured, a line each."""
    lines = []
    for measures in measure(results):
        speeds = {m: r.value for m in measures.methods if (r := measures.of(m).ratio)}
        lines += [
            f"{method}: {speeds[method]:.2f} times plain decoding here; the paper's DuoDecoding: "
            f"{CLAIMED_SPEEDUP} at most"
            for method in ("duo", "auto")
            if method in speeds
        ]
        first = {m: ttft for m in measures.methods if (ttft := measures.of(m).ttft_s)}
        sps = next((m for m in first if m.startswith("sps")), None)
        if sps and "duo" in first:
            lines.append(
                f"duo: first token at {first['duo'] / first[sps]:.0%} of {sps}'s here; the paper: "
                f"{CLAIMED_TTFT:.0%}"
            )
    return lines

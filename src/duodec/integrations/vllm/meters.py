"""Count the drafter's work for operators, in the registry of vLLM's own counters."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

from duodec.integrations.vllm.drafter_thread import DrafterThread
from duodec.integrations.vllm.speculator import Counts

_NAMES = {
    "steps": "Engine steps that requested drafts.",
    "tree_hits": "Rows whose next tokens were drafted in advance.",
    "tree_misses": "Rows whose next tokens were not.",
    "free_drafts": "Rows that were drafted from earlier text.",
    "proposed_tokens": "Draft tokens proposed.",
    "propose_seconds": "Engine time spent on proposing.",
    "drafter_busy_seconds": "Time that the drafter worked.",
    "drafter_waiting_seconds": "Time that it was idle.",
    "drafter_restarts": "Restarts of drafters.",
}
_EVERY_S = 0.5


class Meters:
    """Counters that follow the counts. `look` is cheap between two updates."""

    def __init__(self, counts: Counts, beside: DrafterThread) -> None:
        self._counters = counters()
        self._counts, self._beside = counts, beside
        self._begin_s = perf_counter()
        self._next_s = 0.0
        self._told: dict[str, float] = dict.fromkeys(_NAMES, 0.0)

    def read(self) -> None:
        now_s = perf_counter()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _EVERY_S
        for name, value in self.values(now_s).items():
            if value > self._told[name]:
                self._counters[name].inc(value - self._told[name])  # type: ignore[attr-defined]
                self._told[name] = value

    def values(self, now_s: float) -> Mapping[str, float]:
        counts, beside = self._counts, self._beside
        idle_s = now_s - self._begin_s - beside.busy_s
        return {
            "steps": counts.num_steps,
            "tree_hits": counts.num_hits,
            "tree_misses": counts.num_misses,
            "free_drafts": counts.num_free,
            "proposed_tokens": counts.num_tokens,
            "propose_seconds": counts.propose_s,
            "drafter_busy_seconds": beside.busy_s,
            "drafter_waiting_seconds": max(0.0, idle_s) if beside.has_drafter else 0.0,
            "drafter_restarts": beside.restarts,
        }


_made: dict[str, object] = {}


def counters() -> Mapping[str, object]:
    """One counter each, once a process: successive engines share them."""
    if not _made:
        from prometheus_client import Counter

        for name, words in _NAMES.items():
            _made[name] = Counter(f"duodec:{name}", words)
    return _made

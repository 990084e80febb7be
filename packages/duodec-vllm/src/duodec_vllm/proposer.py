"""Propose drafts to vLLM through its `custom_class` hook (its PR 39487)."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duodec.errors import DuodecError
from duodec.methods.request import NoDrafter
from duodec_vllm.drafter_thread import DrafterThread
from duodec_vllm.opening import Engine, OpenDrafter, check_version, open_drafter
from duodec_vllm.requests import Row
from duodec_vllm.settings import Settings
from duodec_vllm.speculator import Counts, Speculator

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

    def __init__(self, counts: Counts, drafter_thread: DrafterThread) -> None:
        self._counters = counters()
        self._counts, self._drafter_thread = counts, drafter_thread
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
        counts, drafter_thread = self._counts, self._drafter_thread
        idle_s = now_s - self._begin_s - drafter_thread.busy_s
        return {
            "steps": counts.num_steps,
            "tree_hits": counts.num_hits,
            "tree_misses": counts.num_misses,
            "free_drafts": counts.num_free,
            "proposed_tokens": counts.num_tokens,
            "propose_seconds": counts.propose_s,
            "drafter_busy_seconds": drafter_thread.busy_s,
            "drafter_waiting_seconds": max(0.0, idle_s) if drafter_thread.has_drafter else 0.0,
            "drafter_restarts": drafter_thread.restarts,
        }


_made: dict[str, object] = {}


def counters() -> Mapping[str, object]:
    """One counter each, once a process: successive engines share them."""
    if not _made:
        from prometheus_client import Counter

        for name, words in _NAMES.items():
            _made[name] = Counter(f"duodec:{name}", words)
    return _made


_SWITCH_S = 0.0005  # after which the drafter's thread makes way for vLLM's: Python's own is 5 ms
_log = logging.getLogger("vllm.duodec")


class DuoProposer:
    """Proposes what a drafter on this host's CPUs drafted during vLLM's forward pass.

    One for each worker; the one whose drafts vLLM takes has the drafter. Errors in the settings are
    one line in vLLM's log, and vLLM continues without the drafter; with ``on_fault: refuse`` they
    are raised and end the start. A version of vLLM whose hook may be another ends it always.
    """

    def __init__(self, vllm_config: Any) -> None:
        self.speculator: Speculator | None = None
        self._meters: Meters | None = None
        self.drafter: OpenDrafter | None = None
        check_version()
        settings = Settings()
        try:
            settings = Settings.read()
            engine = Engine.of(vllm_config)
            if not engine.is_output_rank:
                return
            self.drafter = self._open(settings, engine)
        except DuodecError as error:
            if settings.on_fault == "refuse":
                raise
            _log.warning("duodec: %s; vLLM continues without speculation", error)
            return
        self.speculator = self._started(engine)

    def _open(self, settings: Settings, engine: Engine) -> OpenDrafter | None:
        """The drafter; None if none is named, or if we continue without it."""
        if not settings.has_draft:
            return None
        try:
            return open_drafter(settings, engine)
        except DuodecError as error:
            if settings.on_fault == "refuse":
                raise
            _log.warning("duodec: %s; drafts come from earlier text only", error)
            return None

    def _started(self, engine: Engine) -> Speculator:
        found = self.drafter
        if found is None:
            drafter_thread, num_texts = DrafterThread(NoDrafter()), engine.max_rows
        else:
            drafter_thread, num_texts = DrafterThread(found.drafter), found.num_texts
        speculator = Speculator(
            engine.num_tokens, engine.max_length, drafter_thread, num_texts, engine.num_whole
        )
        self._meters = Meters(speculator.counts, drafter_thread)
        sys.setswitchinterval(min(_SWITCH_S, sys.getswitchinterval()))
        drafter_thread.start()
        weakref.finalize(self, _close, drafter_thread, found)
        return speculator

    def load_model(self, *_: Any, **__: Any) -> None:
        """vLLM passes the target's model; it is not needed."""

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: NDArray[np.integer],
        token_ids_cpu: NDArray[np.integer],
        slot_mappings: object = None,
    ) -> list[list[int]]:
        """The drafts that are ready, one list a row; never waits for the drafter.

        ``sampled_token_ids``: the step's new tokens of each row, [] during its prefill.
        ``num_tokens_no_spec`` (rows or more,) and ``token_ids_cpu`` (rows or more, length): the
        lengths of the texts, and the texts, with what was sampled.
        """
        if self.speculator is None or self._meters is None:
            return [[] for _ in sampled_token_ids]
        try:
            self._meters.read()
            rows = [
                Row(token_ids_cpu[i, : num_tokens_no_spec[i]], len(tokens))
                for i, tokens in enumerate(sampled_token_ids)
            ]
            return self.speculator.propose(rows)
        except Exception:  # noqa: BLE001  a bug of ours must not end vLLM's engine
            _log.exception("duodec: a bug in the proposer; vLLM continues without speculation")
            self.speculator = None
            return [[] for _ in sampled_token_ids]


def _close(drafter_thread: DrafterThread, found: OpenDrafter | None) -> None:
    drafter_thread.close()
    if found is not None:
        found.drafter.close()

"""Propose drafts to vLLM through its `custom_class` hook (its PR 39487)."""

from __future__ import annotations

import logging
import sys
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from duodec.errors import DuodecError
from duodec.integrations.vllm.drafter_thread import DrafterThread
from duodec.integrations.vllm.meters import Meters
from duodec.integrations.vllm.opening import Engine, OpenDrafter, check_version, open_drafter
from duodec.integrations.vllm.requests import Row
from duodec.integrations.vllm.settings import Settings
from duodec.integrations.vllm.speculator import Speculator
from duodec.methods.request import NoDrafter

_SWITCH_S = 0.0005  # after which the drafter's thread makes way for vLLM's: Python's own is 5 ms
_log = logging.getLogger("vllm.duodec")


class DuoProposer:
    """Proposes what a drafter on this host's CPUs drafted during vLLM's forward pass.

    One for each worker; the one whose drafts vLLM takes has the drafter. Errors in the settings are
    one line in vLLM's log, and vLLM continues without the drafter; with ``on_fault: refuse`` they
    are raised and end the start.
    """

    def __init__(self, vllm_config: Any) -> None:
        self.speculator: Speculator | None = None
        self._meters: Meters | None = None
        self.drafter: OpenDrafter | None = None
        settings = Settings()
        try:
            settings = Settings.read()
            check_version()
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
            beside, num_texts = DrafterThread(NoDrafter()), engine.max_rows
        else:
            beside, num_texts = DrafterThread(found.drafter), found.num_texts
        speculator = Speculator(
            engine.num_tokens, engine.max_length, beside, num_texts, engine.num_whole
        )
        self._meters = Meters(speculator.counts, beside)
        sys.setswitchinterval(min(_SWITCH_S, sys.getswitchinterval()))
        beside.start()
        weakref.finalize(self, _close, beside, found)
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


def _close(beside: DrafterThread, found: OpenDrafter | None) -> None:
    beside.close()
    if found is not None:
        found.drafter.close()

"""Define what a bed is: it completes turns with a method, and can make the next one cold."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Protocol

import numpy as np

from duodec.core.drafters import Datastore, Drafter, DraftRequest
from duodec.core.events import Finished
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.targets import Query, Target
from duodec.core.tokenizers import Tokenizer
from duodec.drafting.plans import Chain
from duodec.llm import LLM
from duodec.machine.cores import CoreSharing
from duodec.methods.method import Method
from duodec.planning.costs import Costs
from duodec_lab.bench.recording import Turn

_SLOT = 0
ONE_TOKEN = np.zeros(1, dtype=np.int32)
_FORGET_S = 5.0


class Bed(Protocol):
    """Completes turns with a method. ``forward_s`` is the shortest forward pass that the target's
    latency, or its memory's bandwidth, allows."""

    @property
    def name(self) -> str: ...
    @property
    def forward_s(self) -> float: ...

    def answer(self, method: Method, turn: Turn, costs: Costs) -> Finished:
        """Complete one turn. Raises DuodecError."""

    def forget(self) -> None:
        """Make the next completion cold: neither side has cached its prompt."""


@dataclass(frozen=True)
class Parts:
    """What replays and simulations share."""

    vocabulary: Tokenizer
    num_context: int
    drafter: Drafter | None
    datastore: Datastore | None
    sampling: SamplingParams
    target_cores: tuple[int, ...]
    cores: CoreSharing = field(default_factory=CoreSharing)

    def engine(
        self, target: Target, costs: Costs, clock: Callable[[], float] = perf_counter
    ) -> LLM:
        return LLM(
            target,
            self.vocabulary,
            self.num_context,
            drafter=self.drafter,
            datastore=self.datastore,
            costs=costs,
            cores=self.cores,
            clock=clock,
        )


@dataclass(frozen=True)
class Stage:
    """A loaded pair: an engine for its plain text, and beds once that is recorded."""

    recorder: LLM
    bed_for: Callable[[Method], Bed]
    facts: Mapping[str, str] = field(default_factory=dict)
    """Measurements from the start, for the record's settings."""


def answered(
    engine: LLM, sampling: SamplingParams, method: Method, turn: Turn, max_tokens: int
) -> Finished:
    params = replace(sampling, max_tokens=max_tokens)
    *_, last = engine.stream(turn.prompt_tokens, params, method=method)
    assert isinstance(last, Finished)
    return last


def forget(target: Target | None, drafter: Drafter | None) -> None:
    """Replace both sides' caches by one token."""
    if target is not None:
        target.score([Query(_SLOT, ONE_TOKEN)])
    if drafter is not None:
        drafter.submit(DraftRequest(_SLOT, ONE_TOKEN, Chain(0), Sampler()))
        drafter.poll(_SLOT, _FORGET_S)


@contextmanager
def on_cores(cores: tuple[int, ...]) -> Iterator[None]:
    """Keep this thread to these cores, if the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)

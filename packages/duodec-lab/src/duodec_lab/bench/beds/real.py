"""Run methods on the models themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

from duodec.backends.loaded import TargetModel
from duodec.core.events import Finished
from duodec.core.sampling.sampler import SamplingParams
from duodec.llm import LLM, load
from duodec.loading.config import EngineConfig
from duodec.machine.cores import available_cores
from duodec.methods.method import Method
from duodec.planning.costs import Costs
from duodec_lab.bench.beds.base import Stage, answered, forget
from duodec_lab.bench.meters import bandwidth
from duodec_lab.bench.recording import Turn


@dataclass
class RealBed:
    """The models themselves."""

    engine: LLM
    sampling: SamplingParams
    forward_s: float
    name: str = "real"

    def answer(self, method: Method, turn: Turn, costs: Costs) -> Finished:
        engine = LLM(replace(self.engine.loaded, costs=costs))
        return answered(engine, self.sampling, method, turn, turn.max_tokens)

    def forget(self) -> None:
        loaded = self.engine.loaded
        forget(loaded.target, loaded.drafter)


@contextmanager
def real_stage(config: EngineConfig, sampling: SamplingParams) -> Iterator[Stage]:
    """Load the pair on this machine. Raises what is wrong with its models."""
    with load(config) as engine:
        loaded = engine.loaded
        num_bytes = cast(TargetModel, loaded.tokenizer).num_bytes
        # a GPU's memory is not measured here: there is no ceiling
        forward_s = num_bytes / bandwidth(len(available_cores())) if loaded.cores.is_shared else 0.0
        bed = RealBed(engine, sampling, forward_s)
        yield Stage(engine, lambda method: bed)

"""Replay a recorded text: a target of a given latency, and the bed that runs methods on it.

A replay stands in for the arithmetic of a target on other hardware: real drafts come from the real
drafter process on its own cores, and one core is left to the target's side. It knows no row off the
text: methods that read such rows run on a real target, or on virtual time (`--simulate-ms`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import perf_counter
from typing import cast

from duodec.backends.paced import Due, num_rows
from duodec.core.events import Finished
from duodec.core.prefix import common_prefix
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Distribution, Draw, SamplingParams, Tokens
from duodec.core.targets import Candidates, Launched, Query, Scores, Target
from duodec.core.traits import TargetTraits
from duodec.errors import DistributionUnavailable
from duodec.llm import load
from duodec.loading.config import EngineConfig
from duodec.loading.drafter import SentVocabulary, open_drafter
from duodec.loading.resolve import resolve_pair
from duodec.machine.core_plan import CorePlan
from duodec.machine.topology import Topology
from duodec.methods.method import Method
from duodec.planning.costs import Costs
from duodec_lab.bench.beds.base import ONE_TOKEN, Parts, Stage, answered, forget, on_cores
from duodec_lab.bench.beds.latency import LatencyCurve, PrefillCounter
from duodec_lab.bench.recording import Turn


@dataclass
class ReplayTarget(Target):
    """Replays one recorded text (prompt and completion) at a given latency.

    It enforces the text, so it proves nothing about exactness. A row off the recorded
    text, and any distribution, raises DistributionUnavailable.
    """

    recording: Tokens
    curve: LatencyCurve
    candidates: Mapping[int, Candidates] = field(default_factory=dict)
    """What the target held likely, by the position of the token that it then drew."""
    _prefill: PrefillCounter = field(default_factory=PrefillCounter)

    traits = TargetTraits(launches=True, keeps_candidates=True)

    def launch(self, queries: Sequence[Query]) -> Launched:
        start = perf_counter()
        seconds = self.curve.seconds(num_rows(queries), self._prefill.num_new(queries))
        scores: list[Scores] = [
            ReplayScores(self.recording, query, self.candidates) for query in queries
        ]
        return Due(scores, start + seconds)

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        return self.launch(queries).result()


class ReplayScores(Scores):
    """The recorded token after every node that lies on the recorded text. All of it is known when
    it is made: on a device, draws are part of the forward pass."""

    def __init__(
        self, recording: Tokens, query: Query, known: Mapping[int, Candidates] | None = None
    ) -> None:
        """``known``: candidates by position."""
        text, draft, length = query.text, query.draft, len(recording)
        is_on = len(text) < length and common_prefix(text, recording) == len(text)
        # by row, the position of the token that follows it; None off the recorded text
        self._positions: list[int | None] = [len(text) if is_on else None]
        for token, parent in zip(draft.tokens, draft.parents, strict=True):
            above = self._positions[parent + 1]
            goes_on = above is not None and above + 1 < length and recording[above] == token
            self._positions.append(above + 1 if above is not None and goes_on else None)
        self._draws = {
            position: Draw(int(recording[position]), inf)
            for position in self._positions
            if position is not None
        }
        self._known = known or {}
        self._num_candidates = query.num_candidates

    @property
    def num_rows(self) -> int:
        return len(self._positions)

    def draw(self, row: int) -> Draw:
        position = self._positions[row]
        if position is None:
            raise DistributionUnavailable(
                f"row {row} lies off the recorded text, which a replay knows nothing of; "
                "run this method on a real target"
            )
        return self._draws[position]

    def candidates(self, row: int) -> Candidates:
        position = self._positions[row]
        found = None if position is None else self._known.get(position)
        return (found or Candidates()).first(self._num_candidates)

    def keep(self, row: int) -> Callable[[], Candidates]:
        return partial(self.candidates, row)  # they were recorded

    def distribution(self, row: int) -> Distribution:
        raise DistributionUnavailable(
            "a replayed text has no distributions; run this method on a real target"
        )

    def row_logits(self, row: int) -> Row:
        raise DistributionUnavailable("a replayed text has no logprobs; leave logprobs out")


@dataclass
class ReplayBed:
    """The recorded text, at the latency of a curve."""

    parts: Parts
    curve: LatencyCurve
    name: str = "replay"

    def __post_init__(self) -> None:
        self.forget()

    @property
    def forward_s(self) -> float:
        return self.curve.forward_s

    def answer(self, method: Method, turn: Turn, costs: Costs) -> Finished:
        self._target.recording = turn.tokens
        self._target.candidates = turn.candidates_by_position
        engine = self.parts.engine(self._target, costs)
        with on_cores(self.parts.target_cores):
            return answered(engine, self.parts.sampling, method, turn, len(turn.answer))

    def forget(self) -> None:
        self._target = ReplayTarget(ONE_TOKEN, self.curve)
        forget(None, self.parts.drafter)


@contextmanager
def replay_stage(
    config: EngineConfig,
    sampling: SamplingParams,
    curve: LatencyCurve,
    methods: Sequence[Method],
) -> Iterator[Stage]:
    """Load the pair, its target replayed."""
    with ExitStack() as stack:
        plan = CorePlan.make(
            Topology.read(), target_is_on_cpu=False, num_draft_threads=config.draft_threads
        )
        pair = resolve_pair(config)
        engine = stack.enter_context(load(pair.without_draft()))
        model, num_context = engine.loaded.tokenizer, engine.loaded.num_context
        drafter = None
        if pair.draft is not None and any(method.takes_draft_model for method in methods):
            drafter = open_drafter(pair, cast(SentVocabulary, model), num_context, plan)
            stack.callback(drafter.close)
            drafter.wait_ready()
        cores = plan.launch_cores
        parts = Parts(model, num_context, drafter, engine.loaded.datastore, sampling, cores)
        bed = ReplayBed(parts, curve)
        yield Stage(engine, lambda method: bed)

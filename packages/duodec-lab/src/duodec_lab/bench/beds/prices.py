"""Measure on this machine what a simulation charges: the drafter's steps and the host's work.

What happens between two forward passes is timed where it happens, in a short replay with the real
drafter process; steps are what that process says of itself, growth and search included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median
from time import perf_counter
from typing import cast

import numpy as np

from duodec.backends.curves import CostCurve
from duodec.core.candidates import TreeCursor
from duodec.core.draft import Draft
from duodec.core.drafters import Drafted, Drafter, DraftModel, DraftRequest, RowQuery
from duodec.core.events import Finished
from duodec.core.round import Round
from duodec.core.sampling.sampler import Sampler, SamplingParams, Tokens
from duodec.drafting.growth import Tree
from duodec.drafting.plans import Chain
from duodec.llm import LLM
from duodec.loading.drafter import SentVocabulary, open_drafter
from duodec.loading.resolve import ResolvedPair
from duodec.machine.core_plan import CorePlan
from duodec.methods.registry import method
from duodec.planning.acceptance import Acceptance
from duodec.planning.costs import Costs
from duodec.planning.mixing import Mixer
from duodec.planning.planner import Planner
from duodec.planning.sources import TextMemory, TextSources, TreeSource
from duodec_lab.bench.beds.base import Parts, answered, on_cores
from duodec_lab.bench.beds.host import HostPrices, on_rows
from duodec_lab.bench.beds.latency import LatencyCurve
from duodec_lab.bench.beds.replay import ReplayTarget
from duodec_lab.bench.beds.virtual import StepTable, innermost
from duodec_lab.bench.recording import Turn, record
from duodec_lab.bench.tasks import Prompt

_PASS_MS = 10.0  # of the replay
_TEXT = Prompt("prices", "prices", ("Count from one to thirty in words.",), None, None)
_TEXT_TOKENS = 64
_TABLE_TOKENS = (1, 2, 4, 8, 16, 32, 64)  # of the draft steps that are measured
_TABLE_TEXT = 100  # tokens of context
_TABLE_RUNS = 9
_LEAVES = (1, 2, 4, 8)
_NUM_STEPS = 12  # of each number of leaves
_NUM_TURNS = 24
_PATIENCE_S = 5.0
_SLOT = 0


@contextmanager
def drafter_of(
    pair: ResolvedPair, engine: LLM, cores: CorePlan, model: DraftModel | None
) -> Iterator[Drafter | None]:
    """The drafter's process of a pair, whose draft model ``model`` is; None where it has none."""
    if model is None:
        yield None
        return
    vocabulary = cast(SentVocabulary, engine.loaded.tokenizer)
    with closing(open_drafter(pair, vocabulary, engine.loaded.num_context, cores)) as drafter:
        drafter.wait_ready()
        yield drafter


def of_host(engine: LLM, parts: Parts) -> HostPrices:
    """What the work on rows takes, and what stands between two passes in a replay: of plain
    decoding, and of the default with a draft, beside that. ``parts`` has the drafter, if there is
    one, and the cores of who launches the target's passes."""
    found = _on_rows(engine)
    if parts.drafter is not None:
        found = replace(found, handover=_handover_s(parts.drafter))
    (conversation,) = record(engine, [_TEXT], SamplingParams(seed=0), _TEXT_TOKENS)
    if conversation.error:  # the run itself will say so
        return found
    (turn,) = conversation.turns
    between = _usual(_gaps_s(_replayed("ar", turn, parts).stats.rounds))
    drafted = _usual(_gaps_s(_replayed("auto", turn, parts).stats.rounds, with_draft=True))
    return replace(found, between=between, selection=max(found.selection, drafted - between))


def _replayed(name: str, turn: Turn, parts: Parts) -> Finished:
    curve = LatencyCurve(CostCurve.parse(_PASS_MS))
    target = ReplayTarget(turn.tokens, curve, turn.candidates_by_position)
    with on_cores(parts.target_cores):
        engine = parts.engine(target, Costs())
        return answered(engine, parts.sampling, method(name), turn, len(turn.answer))


def _gaps_s(rounds: Sequence[Round], *, with_draft: bool = False) -> list[float]:
    """Seconds between two forward passes, waits for drafts left out; the first one warms up."""
    return [
        after.start_s - before.end_s - after.draft_wait_s
        for before, after in pairwise(rounds[1:])
        if after.num_scored or not with_draft
    ]


def _usual(seconds: Sequence[float]) -> float:
    """The mean of all but the tenth that other programs may have interrupted; 0 of none."""
    return fmean(sorted(seconds)[: max(1, len(seconds) * 9 // 10)]) if seconds else 0.0


def of_steps(drafter: Drafter, model: DraftModel) -> StepTable:
    """A drafter's steps by leaves, as its process measures them, and forward passes of its
    ``model`` over more tokens, which read text."""
    passes = _passes(innermost(model))
    points = {tokens: seconds for tokens, seconds in passes.points if tokens > _LEAVES[-1]}
    for leaves in _LEAVES:
        plan = Tree(leaves, max_expanded=leaves * _NUM_STEPS)
        drafted, _ = _drafted(drafter, _text(leaves), plan)
        if drafted.step_s is not None:
            points[leaves] = drafted.step_s
    return StepTable(tuple(sorted(points.items())))


def _handover_s(drafter: Drafter) -> float:
    """For a message to the drafter's process, and for one back."""
    text = _text(0)
    over = []
    for turn in range(_NUM_TURNS):
        text = np.append(text, np.int32(turn))
        drafted, seconds = _drafted(drafter, text, Chain(1))
        over.append(seconds - drafted.draft_s - drafted.read_s)
    return max(0.0, sorted(over)[_NUM_TURNS // 4])  # others delay many of them


def _drafted(drafter: Drafter, text: Tokens, plan: Tree | Chain) -> tuple[Drafted, float]:
    """The whole draft, and the seconds until it was here."""
    begin_s = perf_counter()
    drafter.submit(DraftRequest(_SLOT, text, plan, Sampler()))
    drafted = drafter.poll(_SLOT, _PATIENCE_S)
    while not drafted.is_complete and perf_counter() - begin_s < _PATIENCE_S:
        drafted = drafter.poll(_SLOT, _PATIENCE_S)
    return drafted, perf_counter() - begin_s


def _text(seed: int) -> Tokens:
    return np.random.default_rng(seed).integers(0, 1000, 100).astype(np.int32)


def _on_rows(engine: LLM) -> HostPrices:
    """What the work on rows and the choice of a draft take."""
    planner = Planner(Costs(), Acceptance())
    texts, nothing = TextSources(TextMemory(), np.zeros(1, np.int32)), np.zeros(1, np.int32)

    def select(place: TreeCursor) -> object:
        sources = [TreeSource(place.tree, planner.acceptance), *texts.sources(nothing)]
        return planner.select(sources, Mixer(), planner.num_tokens, 24)

    return on_rows(engine.loaded.target, engine.loaded.tokenizer.num_vocab, select)


def _passes(model: DraftModel) -> StepTable:
    """Measure a draft model's forward passes: medians after a short text."""
    rng = np.random.default_rng(0)
    text = rng.integers(0, 1000, _TABLE_TEXT).astype(np.int32)
    points = []
    for num in _TABLE_TOKENS:
        seconds = []
        for run in range(_TABLE_RUNS):
            model.rows(RowQuery(_SLOT, text, Draft(), (0,)))
            tree = Draft(tuple(range(run * num, (run + 1) * num)), (-1,) * num)
            start_s = perf_counter()
            model.rows(RowQuery(_SLOT, text, tree, tuple(range(1, num + 1))))
            seconds.append(perf_counter() - start_s)
        points.append((num, median(seconds)))
    return StepTable(tuple(points))

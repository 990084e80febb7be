"""Judge drafts by tokens a forward pass on held-out prompts, on the benchmark's virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from duodec.bench.plan import BenchPlan
from duodec.bench.results import Generation
from duodec.bench.simulation import simulate
from duodec.bench.tasks import Prompt
from duodec.core.sampling import SamplingParams
from duodec.distill.prompts import Conversation
from duodec.errors import ComputeFailed
from duodec.models.config import EngineConfig

CHAIN, DEFAULT, WITHOUT = "sps:4", "stream", "lookup"
_MOST_PROMPTS = 16
_MOST_TOKENS = 64

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Verdict:
    """Tokens a forward pass of the target, its own included, with one draft: ``chain`` by chains of
    four draft tokens, which shows the draft alone; ``default`` with all sources of drafts, and with
    its steps' times. ``draft`` None is earlier text alone."""

    draft: str | None
    chain: float
    default: float


def judged(
    config: EngineConfig,
    drafts: Sequence[Path | str | None],
    conversations: Sequence[Conversation],
    params: SamplingParams,
    *,
    forward_ms: float,
    on_progress: OnProgress,
) -> list[Verdict]:
    """A verdict for each draft, on the same prompts. Raises what loading the models raises, and
    ComputeFailed if no prompt could be completed."""
    prompts = [
        Prompt("held-out", str(number), conversation.turns[:1], None, None)
        for number, conversation in enumerate(conversations[:_MOST_PROMPTS])
    ]
    return [_verdict(config, draft, prompts, params, forward_ms, on_progress) for draft in drafts]


def _verdict(
    config: EngineConfig,
    draft: Path | str | None,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    forward_ms: float,
    on_progress: OnProgress,
) -> Verdict:
    methods = (WITHOUT,) if draft is None else (CHAIN, DEFAULT)
    plan = BenchPlan(
        methods=methods,
        targets=(config.target,),
        drafts=(str(draft or "none"),),
        config=replace(config, num_slots=1),
        max_tokens=min(_MOST_TOKENS, params.max_tokens or _MOST_TOKENS),
        simulate_ms=forward_ms,
        sampling=replace(params, max_tokens=None, logprobs=None),
    )
    found = simulate(plan, prompts, on_progress).generations
    if draft is None:
        return Verdict(None, 1.0, _tokens_a_pass(found, WITHOUT))
    return Verdict(str(draft), _tokens_a_pass(found, CHAIN), _tokens_a_pass(found, DEFAULT))


def _tokens_a_pass(generations: Sequence[Generation], method: str) -> float:
    """Over all completions of a method."""
    own = [g for g in generations if g.method == method]
    rounds = sum(g.rounds or 0 for g in own)
    if not rounds:
        error = next((g.error for g in own if g.error), "every completion is empty")
        raise ComputeFailed(f"no held-out prompt can be judged: {error}")
    return sum(g.new_tokens or 0 for g in own) / rounds

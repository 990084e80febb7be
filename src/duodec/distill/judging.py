"""Judge drafts by tokens a forward pass on held-out prompts, on the benchmark's virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from duodec.bench.plan import BenchPlan
from duodec.bench.results import Generation
from duodec.bench.run import simulate
from duodec.bench.tasks import Prompt
from duodec.core.sampling.sampler import SamplingParams
from duodec.distill.prompts.collect import Conversation
from duodec.errors import ComputeFailed
from duodec.loading.config import EngineConfig

CHAIN, DEFAULT, WITHOUT = "sps:4", "stream", "lookup"
# prompts, and tokens of each: rows off the text, which the default method reads, are computed
_OF = {CHAIN: (16, 64), DEFAULT: (8, 32), WITHOUT: (8, 32)}
_EVEN_MS = "1:1,2:1"  # a step's price, the same for any number of tokens: no chain is cut short

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Verdict:
    """Tokens a forward pass of the target, its own included, with one draft: ``chain`` by chains of
    four draft tokens, whatever they cost, which shows the draft alone; ``default`` with all sources
    of drafts, and with its steps' times. ``draft`` None is earlier text alone."""

    draft: str | None
    chain: float
    default: float

    def beats(self, other: Verdict) -> bool:
        """By all sources; where these need as many passes, as over few prompts they may, alone."""
        return (self.default, self.chain) > (other.default, other.chain)


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
        for number, conversation in enumerate(conversations)
    ]

    def tokens(draft: Path | str | None, method: str) -> float:
        num_prompts, num_tokens = _OF[method]
        plan = BenchPlan(
            methods=(method,),
            targets=(config.target,),
            drafts=(str(draft or "none"),),
            config=replace(config, num_slots=1),
            max_tokens=min(num_tokens, params.max_tokens or num_tokens),
            simulate_ms=forward_ms,
            draft_ms=_EVEN_MS if method == CHAIN else None,
            sampling=replace(params, max_tokens=None, logprobs=None),
        )
        found = simulate(plan, prompts[:num_prompts], on_progress).generations
        return _tokens_a_pass(found)

    def verdict(draft: Path | str | None) -> Verdict:
        if draft is None:
            return Verdict(None, 1.0, tokens(None, WITHOUT))
        return Verdict(str(draft), tokens(draft, CHAIN), tokens(draft, DEFAULT))

    return [verdict(draft) for draft in drafts]


def _tokens_a_pass(generations: Sequence[Generation]) -> float:
    """Over all completions."""
    rounds = sum(g.rounds or 0 for g in generations)
    if not rounds:
        error = next((g.error for g in generations if g.error), "every completion is empty")
        raise ComputeFailed(f"no held-out prompt can be judged: {error}")
    return sum(g.new_tokens or 0 for g in generations) / rounds

"""Judge drafts by tokens a forward pass on held-out prompts, on the benchmark's virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from duodec.core.sampling.sampler import SamplingParams
from duodec.errors import ComputeFailed
from duodec.loading.config import EngineConfig
from duodec_lab.bench.plan import BenchPlan
from duodec_lab.bench.results import Generation
from duodec_lab.bench.run import simulate
from duodec_lab.bench.tasks import Prompt
from duodec_lab.distill.prompts.collect import Conversation

CHAIN, DEFAULT, WITHOUT = "sps:4", "stream", "lookup"
HEAD_CHAIN, AUTO = "eagle3:4", "auto"
# prompts, and tokens of each: rows off the text, which the default method reads, are computed
COUNTS = {CHAIN: (16, 64), HEAD_CHAIN: (16, 64), DEFAULT: (8, 32), AUTO: (8, 32), WITHOUT: (8, 32)}
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
    bed = _Bed(config, conversations, params, forward_ms, on_progress)

    def verdict(draft: Path | str | None) -> Verdict:
        if draft is None:
            return Verdict(None, 1.0, bed.tokens(WITHOUT))
        own = replace(bed, draft=str(draft))
        return Verdict(str(draft), own.tokens(CHAIN, draft_ms=_EVEN_MS), own.tokens(DEFAULT))

    return [verdict(draft) for draft in drafts]


def judged_heads(
    config: EngineConfig,
    heads: Sequence[Path | None],
    conversations: Sequence[Conversation],
    params: SamplingParams,
    *,
    forward_ms: float,
    on_progress: OnProgress,
) -> list[Verdict]:
    """The same for EAGLE-3 heads, without a draft model; None: without a head."""
    bed = _Bed(config, conversations, params, forward_ms, on_progress)

    def verdict(head: Path | None) -> Verdict:
        if head is None:
            return Verdict(None, 1.0, bed.tokens(AUTO))
        own = replace(bed, config=replace(config, heads=str(head)))
        return Verdict(str(head), own.tokens(HEAD_CHAIN), own.tokens(AUTO))

    return [verdict(head) for head in heads]


@dataclass(frozen=True)
class _Bed:
    """A simulation of held-out prompts."""

    config: EngineConfig
    conversations: Sequence[Conversation]
    params: SamplingParams
    forward_ms: float
    on_progress: OnProgress
    draft: str = "none"

    def tokens(self, method: str, *, draft_ms: str | None = None) -> float:
        """Tokens a forward pass by this method."""
        num_prompts, num_tokens = COUNTS[method]
        plan = BenchPlan(
            methods=(method,),
            targets=(self.config.target,),
            drafts=(self.draft,),
            config=replace(self.config, num_slots=1),
            max_tokens=min(num_tokens, self.params.max_tokens or num_tokens),
            simulate_ms=self.forward_ms,
            draft_ms=draft_ms,
            sampling=replace(self.params, max_tokens=None, logprobs=None),
        )
        prompts = [
            Prompt("held-out", str(number), conversation.turns[:1], None, None)
            for number, conversation in enumerate(self.conversations[:num_prompts])
        ]
        return _tokens_a_pass(simulate(plan, prompts, self.on_progress).generations)


def _tokens_a_pass(generations: Sequence[Generation]) -> float:
    """Over all completions."""
    rounds = sum(g.rounds or 0 for g in generations)
    if not rounds:
        error = next((g.error for g in generations if g.error), "every completion is empty")
        raise ComputeFailed(f"no held-out prompt can be judged: {error}")
    return sum(g.new_tokens or 0 for g in generations) / rounds

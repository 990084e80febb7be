"""Try drafts on a target for a few seconds each, and expect a speed-up of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from duodec.backends.llamacpp.recipe import LlamaRecipe
from duodec.chat.prompting import chat_tokens
from duodec.cli.speed import NUM_SCORED, Speed
from duodec.core.draft import Draft
from duodec.core.protocols import Query, RowQuery
from duodec.core.round import median
from duodec.core.sampling import Tokens
from duodec.drafts import recipe_for
from duodec.machine.cores import CorePlan
from duodec.models.discovery import Candidate

if TYPE_CHECKING:
    from duodec.models.targets import LoadedTarget

_PROMPTS = (
    "Why is the sky blue?",
    "Write a Python function that adds two numbers.",
    "Translate into German: The weather is fine today.",
)
_NUM_TOKENS = 24  # of each answer
_NUM_CONTEXT = 1024


@dataclass(frozen=True)
class DraftTrial:
    """A draft's part of right first guesses, its seconds a step, and the speed to expect."""

    candidate: Candidate
    agreement: float
    step_s: float
    speedup: float


def tried(
    target: LoadedTarget, found: Sequence[Candidate], speed: Speed, plan: CorePlan
) -> list[DraftTrial]:
    """Each draft's trial, the best first. Raises what is wrong with a draft."""
    texts = [*_answers(target, plan)]
    trials = [_trial(target, candidate, texts, speed, plan) for candidate in found]
    return sorted(trials, key=lambda trial: -trial.speedup)


def expected(agreement: float, step_s: float, speed: Speed, *, shares_cores: bool) -> float:
    """Speed over plain decoding with chains of the best length: one forward pass of the target
    checks a chain while the next is drafted, or after it where they share cores."""
    best = 1.0
    for length in range(1, NUM_SCORED + 1):
        num_tokens = sum(agreement**i for i in range(length + 1))
        part = length / NUM_SCORED
        verify_s = speed.plain_s + part * (speed.verify_s - speed.plain_s)
        draft_s = length * step_s
        round_s = verify_s + draft_s if shares_cores else max(verify_s, draft_s)
        best = max(best, num_tokens * speed.plain_s / round_s)
    return best


def _answers(loaded: LoadedTarget, plan: CorePlan) -> list[tuple[Tokens, int]]:
    """The target's greedy texts, each with the length of its prompt."""
    target = loaded.start(_NUM_CONTEXT, plan)
    texts = []
    try:
        for prompt in _PROMPTS:
            if loaded.model.chat_template:
                tokens = chat_tokens(loaded.model, [{"role": "user", "content": prompt}])
            else:
                tokens = loaded.model.tokenize(prompt, is_templated=False)
            num_prompt = len(tokens)
            for _ in range(_NUM_TOKENS):
                (scores,) = target.score([Query(0, np.array(tokens, dtype=np.int32))])
                tokens.append(scores.draw(0).token)
                if loaded.model.is_end(tokens[-1]):
                    break
            texts.append((np.array(tokens, dtype=np.int32), num_prompt))
    finally:
        target.close()
    return texts


def _trial(
    target: LoadedTarget,
    candidate: Candidate,
    texts: Sequence[tuple[Tokens, int]],
    speed: Speed,
    plan: CorePlan,
) -> DraftTrial:
    recipe = LlamaRecipe(
        candidate.path, _NUM_CONTEXT, len(plan.draft_cores), target.model.num_vocab
    )
    model = recipe_for(target.model, recipe).load()
    num_right, seconds = 0, []
    for text, num_prompt in texts:
        for end in range(num_prompt, len(text)):
            start_s = perf_counter()
            (row,) = model.rows(RowQuery(0, text[:end], Draft(), (0,)))
            if end > num_prompt:  # the first step reads the prompt
                seconds.append(perf_counter() - start_s)
            num_right += int(row.argmax()) == int(text[end])
    agreement = num_right / max(1, sum(len(text) - begin for text, begin in texts))
    step_s = median(seconds) if seconds else 0.0
    speedup = expected(agreement, step_s, speed, shares_cores=plan.shares_cores)
    return DraftTrial(candidate, agreement, step_s, speedup)

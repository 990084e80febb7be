"""Find out whether a draft pays here: time a target and a draft, and estimate a speed-up from
both."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from duodec.backends.llamacpp.drafts.recipe import LlamaRecipe
from duodec.chat.prompting import chat_tokens
from duodec.cli.checks import Check
from duodec.cli.summary import rate, seconds
from duodec.core.draft import Draft
from duodec.core.drafters import RowQuery
from duodec.core.round import median
from duodec.core.rows import check_finite
from duodec.core.sampling.sampler import Tokens
from duodec.core.targets import Query
from duodec.errors import BadOption
from duodec.loading.drafter import recipe_for
from duodec.machine.core_plan import CorePlan
from duodec.models.discovery import Candidate

if TYPE_CHECKING:
    from duodec.backends.loaded import LoadedTarget, RunningTarget
    from duodec.core.targets import Target
    from duodec.loading.profile import Profile

NUM_SCORED = 7  # draft tokens of the measured verification
NUM_LEAVES = 4  # leaves of the measured wide draft step
_PROMPTS = (
    "Why is the sky blue?",
    "Write a Python function that adds two numbers.",
    "Translate into German: The weather is fine today.",
)
_NUM_TOKENS = 24  # tokens of each response
_NUM_CONTEXT = 1024
_WORTH = 1.1  # best case below which drafts are not worth it
_MOST, _FEWEST, _BUDGET_S = 9, 3, 1.5  # runs of a measurement; seconds after which it ends


@dataclass(frozen=True)
class Speed:
    """Hold the seconds of one forward pass each; the draft's are None without a draft."""

    plain_s: float  # one token of the target
    verify_s: float  # the target over NUM_SCORED draft tokens
    draft_s: float | None  # one draft token
    wide_s: float | None  # a draft step over NUM_LEAVES leaves

    @classmethod
    def of(cls, profile: Profile) -> Speed:
        """Return the same figures from the shortest context of a profile."""
        context = min(forward.context for forward in profile.forwards)
        forwards = {f.width: f.seconds for f in profile.forwards if f.context == context}
        steps = {s.leaves: s.seconds for s in profile.steps if s.context == context}
        return cls(forwards[0], forwards[NUM_SCORED], steps.get(1), steps.get(NUM_LEAVES))

    @property
    def verify_cost(self) -> float:
        """Return the cost of a verification in plain forward passes."""
        return self.verify_s / self.plain_s

    @property
    def draft_cost(self) -> float:
        """Return the cost of NUM_SCORED draft tokens in plain forward passes."""
        return NUM_SCORED * (self.draft_s or 0.0) / self.plain_s

    def round_s(self, length: int, *, shares_cores: bool) -> float:
        """Return the seconds of a forward pass over a chain of draft tokens while the next one is
        drafted, or after it if target and drafter share cores."""
        verify_s = self.plain_s + length / NUM_SCORED * (self.verify_s - self.plain_s)
        draft_s = length * (self.draft_s or 0.0)
        return verify_s + draft_s if shares_cores else max(verify_s, draft_s)

    def num_needed(self, *, shares_cores: bool) -> float:
        """Return how many of NUM_SCORED tokens must be accepted for a round to be as fast as plain
        decoding."""
        return max(0.0, self.round_s(NUM_SCORED, shares_cores=shares_cores) / self.plain_s - 1)

    def expected(self, agreement: float, *, shares_cores: bool) -> float:
        """Return the speed over plain decoding with chains of the best length, where each draft
        token is accepted with the probability ``agreement``. It is at least 1: plain decoding is a
        choice."""
        return max(
            1.0,
            *(
                sum(agreement**i for i in range(length + 1))
                * self.plain_s
                / self.round_s(length, shares_cores=shares_cores)
                for length in range(1, NUM_SCORED + 1)
            ),
        )


@dataclass(frozen=True)
class TargetTrial:
    """Hold a target's times, and its greedy responses, each with the length of its prompt."""

    plain_s: float
    verify_s: float
    texts: tuple[tuple[Tokens, int], ...]


@dataclass(frozen=True)
class DraftTrial:
    """Hold what a draft costs next to a target, and the share of its first guesses that are
    right."""

    candidate: Candidate
    speed: Speed
    agreement: float
    shares_cores: bool

    @property
    def speedup(self) -> float:
        """Return the expected speed-up over plain decoding."""
        return self.speed.expected(self.agreement, shares_cores=self.shares_cores)


def try_target(loaded: LoadedTarget, plan: CorePlan) -> TargetTrial:
    """Let a target complete three short prompts, and time it. Raises ComputeFailed for logits that
    are not finite."""
    with _started(loaded, plan) as target:
        texts = tuple(_response(loaded, target, prompt) for prompt in _PROMPTS)
        text, num_prompt = texts[0]
        plain_s = _median_s(lambda i: target.score([Query(0, _text(text, num_prompt + i))]))
        chains = _unseen_tokens(loaded.model.num_vocab)
        verify_s = _median_s(
            lambda i: target.score(
                [Query(0, _text(text, num_prompt + _MOST + i), Draft.chain(chains[i]))]
            )
        )
    return TargetTrial(plain_s, verify_s, texts)


def check_numbers(loaded: LoadedTarget, plan: CorePlan) -> None:
    """Let a target complete one short prompt, where timings would be meaningless. Raises
    ComputeFailed for logits that are not finite."""
    with _started(loaded, plan) as target:
        _response(loaded, target, _PROMPTS[0])


def _started(loaded: LoadedTarget, plan: CorePlan) -> closing[RunningTarget]:
    return closing(loaded.start(min(_NUM_CONTEXT, loaded.model.num_context_train), plan))


def try_draft(
    loaded: LoadedTarget, candidate: Candidate, target: TargetTrial, plan: CorePlan
) -> DraftTrial:
    """Ask a draft model for every token of the target's responses, and time it. Raises an error if
    something is wrong with the draft."""
    num_vocab = loaded.model.num_vocab
    recipe = LlamaRecipe(candidate.path, _NUM_CONTEXT, len(plan.draft_cores), num_vocab)
    model = recipe_for(loaded.model, recipe).load()
    num_right, steps = 0, []
    for text, num_prompt in target.texts:
        for end in range(num_prompt, len(text)):
            start_s = perf_counter()
            (row,) = model.rows(RowQuery(0, text[:end], Draft(), (0,)))
            if end > num_prompt:  # the first step reads the prompt
                steps.append(perf_counter() - start_s)
            check_finite(row)
            num_right += int(row.argmax()) == int(text[end])
    leaves = [[[token] for token in chain[:NUM_LEAVES]] for chain in _unseen_tokens(num_vocab)]
    rows = tuple(range(1, NUM_LEAVES + 1))
    text, _ = target.texts[-1]
    wide_s = _median_s(lambda i: model.rows(RowQuery(0, text, Draft.sequences(leaves[i]), rows)))
    draft_s = median(steps) if steps else wide_s
    agreement = num_right / max(1, sum(len(text) - begin for text, begin in target.texts))
    speed = Speed(target.plain_s, target.verify_s, draft_s, wide_s)
    return DraftTrial(candidate, speed, agreement, plan.shares_cores)


def _response(loaded: LoadedTarget, target: Target, prompt: str) -> tuple[Tokens, int]:
    """Return the greedy response to a prompt, with the prompt before it."""
    tokens = loaded.model.tokenize(prompt, is_templated=False)
    if loaded.model.chat_template:
        with suppress(BadOption):  # a template that refuses it belongs to another check
            tokens = chat_tokens(loaded.model, [{"role": "user", "content": prompt}])
    num_prompt = len(tokens)
    for _ in range(_NUM_TOKENS):
        (scores,) = target.score([Query(0, np.array(tokens, dtype=np.int32))])
        tokens.append(scores.draw(0).token)
        if loaded.model.is_end(tokens[-1]):
            break
    return np.array(tokens, dtype=np.int32), num_prompt


def _text(tokens: Tokens, length: int) -> Tokens:
    """Return ``length`` tokens of a text, repeated if it is shorter."""
    return np.resize(tokens, length).astype(np.int32)


def _unseen_tokens(num_vocab: int) -> list[list[int]]:
    """Return for each run draft tokens that no earlier run had, so that none of them is cached."""
    return [
        [(num_vocab // 2 + NUM_SCORED * i + j) % num_vocab for j in range(NUM_SCORED)]
        for i in range(_MOST)
    ]


def _median_s(run: Callable[[int], object]) -> float:
    """Return the median of some runs, each called with its number; the first is a warm-up."""
    times: list[float] = []
    end_s = perf_counter() + _BUDGET_S
    for i in range(_MOST):
        start_s = perf_counter()
        run(i)
        times.append(perf_counter() - start_s)
        if len(times) > _FEWEST and perf_counter() > end_s:
            break
    return median(times[1:])


# What it means, in words


def check_speed(speed: Speed, agreement: float | None = None, *, shares_cores: bool) -> list[Check]:
    """Check the measured times, and whether drafts can pay. With the share of a draft's first
    guesses that are right, also estimate the speed."""
    plain = Check(
        "plain decoding", "ok", f"{seconds(speed.plain_s)} a token, {rate(1 / speed.plain_s)}"
    )
    if speed.draft_s is None or speed.wide_s is None:
        return [plain]
    steps = Check(
        "draft steps",
        "ok",
        f"{seconds(speed.draft_s)} for one token, {seconds(speed.wide_s)} for {NUM_LEAVES} leaves",
    )
    how = "in turn" if shares_cores else "in parallel"
    costs = (
        f"scoring {NUM_SCORED} draft tokens takes {seconds(speed.verify_s)}, "
        f"{speed.verify_cost:.1f} plain passes, and drafting them {speed.draft_cost:.1f}, {how}"
    )
    best = speed.expected(1.0, shares_cores=shares_cores)
    if best < _WORTH:
        words = f"{costs}: drafts cannot pay here, at best {best:.1f}x plain decoding"
        return [plain, steps, Check("drafts", "warn", words, "use --method ar or lookup")]
    needed = max(1, math.ceil(speed.num_needed(shares_cores=shares_cores)))
    words = f"{costs}: they pay from {needed} accepted of {NUM_SCORED} on, at best {best:.1f}x"
    if agreement is not None:
        about = speed.expected(agreement, shares_cores=shares_cores)
        words += f"; with {agreement:.0%} of first guesses right about {about:.1f}x"
    return [plain, steps, Check("drafts", "ok", f"{words} plain decoding")]


def check_trials(target: str, trials: Sequence[DraftTrial]) -> list[Check]:
    """List drafts on this machine, the best first, and the command that uses each."""
    return [
        Check(
            "draft found" if i else "best draft",
            "ok",
            f"{one.candidate.name} ({one.candidate.place}, "
            f"{'same' if one.candidate.is_same else 'another'} vocabulary): {one.agreement:.0%} of "
            f"first guesses right, {seconds(one.speed.draft_s or 0.0)} a step, about "
            f"{one.speedup:.1f}x plain decoding; duodec chat --target {target} "
            f"--draft {one.candidate.reference}",
        )
        for i, one in enumerate(sorted(trials, key=lambda trial: -trial.speedup))
    ]


def check_skipped(found: Sequence[Candidate]) -> list[Check]:
    """List files that cannot draft here, and why; those that are only too large are omitted."""
    return [
        Check("draft skipped", "ok", f"{one.reference} ({one.place}): {one.fault}")
        for one in found
        if one.fault and "large" not in one.fault
    ]

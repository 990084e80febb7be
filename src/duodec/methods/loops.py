"""Run the loops that methods are made of: draft then verify, and draft while verifying.

A loop is a coroutine over one `Request`: it yields what it needs next, is sent the result, and
runs until the text is full.
"""

from __future__ import annotations

from collections.abc import Callable

from duodec.core.draft import NO_DRAFT, Draft
from duodec.core.drafters import Drafted, Plan
from duodec.core.sampling.sampler import Tokens
from duodec.core.targets import HeadPlan, Scores
from duodec.core.verify import Rule, keyed, verify
from duodec.methods.request import Forward, Loop, Request, Score

Propose = Callable[[Request], Draft | Plan]
"""Return what to score after the text: a draft, or a plan for the draft model."""
Learn = Callable[[Tokens, Draft, Scores], None]


def serial(
    request: Request,
    propose: Propose,
    rule: Callable[[Request], Rule] = lambda _: keyed,
    learn: Learn = lambda text, draft, scores: None,
    num_candidates: int = 0,
    heads: HeadPlan | None = None,
) -> Loop:
    """Draft, score, verify. The first forward pass, which prefills the prompt, waits for no draft.

    ``learn`` is shown each text, its draft and its scores, with ``num_candidates`` of each row,
    and what the target's ``heads`` propose.
    """
    request.prefill_ahead()
    while request.remaining:
        draft, is_of_model = NO_DRAFT, False
        if request.num_rounds and request.room:
            proposed = propose(request)
            is_of_model = heads is not None or not isinstance(proposed, Draft)
            draft = (
                proposed if isinstance(proposed, Draft) else (yield from request.draft(proposed))
            )
        draft = draft.within(request.max_width, request.remaining - 1)
        text = request.text
        forward: Forward = yield Score(draft, num_candidates, heads=heads)
        verdict = verify(draft, forward.scores, rule(request))
        num_from_model = len(verdict.accepted) if is_of_model else 0
        request.commit(
            draft, verdict, forward, num_drafted=len(draft), num_from_model=num_from_model
        )
        learn(text, draft, forward.scores)


def overlapped(
    request: Request, plan: Callable[[int], Plan], num_tokens: int | None = None
) -> Loop:
    """While the target scores the chain in flight, draft what follows if all of it is accepted.

    ``plan`` shapes a budget of draft tokens: ``num_tokens``, or as many as fit in one forward pass
    of the target; one in the first round, so that neither side's reading of the prompt waits for
    the other. The target takes what has been drafted when its forward pass ends; it waits, with
    patience, only where that was right to its last token, so that nothing but the rest of the draft
    could follow. An empty chain in flight is the papers' pre-verify step.
    """
    pending = Draft()
    while request.remaining:
        budget = request.costs.budget() if num_tokens is None else num_tokens
        budget = budget if request.num_rounds else 1
        asked = plan(max(0, min(budget, request.max_width, request.remaining - len(pending) - 1)))
        # On shared cores the drafter prefills the prompt after the first token.
        is_drafting = asked.num_tokens > 0 and not (request.shares_cores and not request.num_rounds)
        request.is_drafting = is_drafting
        if is_drafting:
            request.submit(asked, pending)
        forward: Forward = yield Score(pending)
        ahead = request.peek() if is_drafting else Drafted()

        tree = pending.graft(pending.leaf(), ahead.draft)
        verdict = verify(tree, forward.scores)
        # The walk went past what was scored: the chain was accepted whole, and its next token opens
        # one of the new sequences, whose rest is the next chain in flight.
        rest = tree.subtree(verdict.end) if verdict.final is None else Draft()
        request.commit(
            tree,
            verdict,
            forward,
            num_from_model=len(verdict.accepted),
            num_drafted=len(tree) - len(rest),  # what stays in flight counts when it is judged
            overlap_s=ahead.read_s + ahead.draft_s,
            num_sequences=ahead.draft.num_leaves,
        )
        if verdict.final is None and not rest and request.remaining:
            drafted = yield from request.collect(asked)
            tree = pending.graft(pending.leaf(), drafted.draft)
            rest = tree.subtree(verdict.end)
        pending = rest

"""Run the loops that methods are made of: draft then verify, and draft while verifying.

A loop is a coroutine over one `Request`: it yields what it needs next, is sent the result, and
runs until the text is full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from duodec.core.candidates import CandidateTree
from duodec.core.draft import NO_DRAFT, Draft
from duodec.core.protocols import NUM_CANDIDATES, Drafted, HeadPlan, Plan, Scores
from duodec.core.sampling.sampler import Tokens
from duodec.core.traits import Widths
from duodec.core.verify import Rule, keyed, verify
from duodec.drafting.growth import Tree
from duodec.drafting.heads import Likeliest
from duodec.methods.draft_selector import NO_OFFER, DraftSelector
from duodec.methods.request import Forward, Loop, Request, Score
from duodec.planning.governor import Governor, Sources
from duodec.planning.planner import Planner
from duodec.planning.sources import TextSources

_DEAR = 32  # rounds of rest before a draft model is tried, for each round that a step of it takes
_NEAR = 2048  # tokens of a text that change a forward pass by a few per cent
LIKELIEST = Likeliest(num_tokens=Planner.num_tokens)
"""What a target's own heads propose; the planner decides how deep, and how much is scored."""
Propose = Callable[[Request], Draft | Plan]
"""What to score after the text: a draft, or a plan for the draft model."""
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


def streaming(
    request: Request, planner: Planner, plan: Tree, texts: TextSources, governor: Governor
) -> Loop:
    """The drafter never stops: its tree grows under the text while the target scores a part of it.

    When the target is free it takes the likeliest candidates of that tree and of all other
    sources. The verdict moves the root: what lies under it survives, on both sides. Where little
    is left, the target waits for draft steps as long as they bring tokens faster than decoding
    does. ``governor`` says, round by round, which sources take part. Nothing is scored before it
    is known what plain decoding costs.
    """
    selector = DraftSelector(request, planner, plan, texts)
    begin_s, decoding_s = request.now(), 0.0
    while request.remaining:
        most, knows_plain = request.costs.sources(), request.costs.knows_plain
        if request.takes_turns and not selector.repays_reading(decoding_s, governor):
            most = min(most, Sources.HEADS)
        can_pay = selector.can_pay and most != Sources.NONE
        if governor.first_rests and knows_plain:
            governor.cut_first_rest(Sources.ALL, _DEAR * request.costs.step_share())
        sources = governor.sources(most) if can_pay else Sources.NONE
        planner.allowance = governor.allowance
        is_early = not request.num_rounds or not knows_plain
        # on shared cores the drafter prefills the prompt after that, and slows nothing before
        selector.draft_with_model(
            sources == Sources.ALL and not (is_early and request.shares_cores)
        )
        if is_early:
            sources = Sources.NONE
        offer, heads = NO_OFFER, None
        has_heads = sources >= Sources.HEADS and request.traits.heads
        if has_heads and texts.memory.beside_others.takes_part():
            heads = replace(LIKELIEST, least=planner.least_head)
        planner.heads_s = request.costs.heads_s() if heads else 0.0
        if sources != Sources.NONE:
            offer = yield from selector.best()
        selector.launch(offer, with_heads=heads is not None)
        draft = offer.draft
        forward: Forward = yield Score(draft, NUM_CANDIDATES if can_pay else 0, heads=heads)
        verdict = verify(draft, forward.scores)
        overlap_s = selector.overlap_s()
        done = request.commit(
            draft,
            verdict,
            forward,
            num_drafted=len(draft),
            num_from_model=offer.num_from_model(verdict.accepted),
            overlap_s=overlap_s,
        )
        reading_s = selector.take_reading_s()
        seconds, begin_s = request.now() - begin_s - reading_s, request.now()
        if reading_s:
            governor.charge(Sources.ALL, reading_s)
        if request.num_rounds > 1:
            decoding_s += seconds
        # the first round prefills the prompt, and what others forbid was not this request's choice
        if request.num_rounds > 1 and most != Sources.NONE and not request.is_contended:
            planner.observe(len(done.tokens), seconds)
            governor.observe(sources, len(done.tokens), seconds, most if can_pay else sources)
            if sources == Sources.NONE:
                governor.plain_length = len(request.text)
            elif draft and (plain_s := inferred_plain_s(draft, forward, request, governor)):
                governor.infer_plain(plain_s)
        selector.finish_forward(
            offer,
            done.tokens,
            verdict.end,
            forward if can_pay else None,
            forward.scores.proposed().tree if heads else CandidateTree(),
        )
    texts.memory.decoding.observe(decoding_s, 1)


def inferred_plain_s(
    draft: Draft, forward: Forward, request: Request, governor: Governor
) -> float | None:
    """Seconds that a forward pass would have taken without its draft, where that needs no trial:
    one that is padded to as many rows, or one on a device where nothing computes beside it, as long
    as the text is about as long as when plain decoding was measured."""
    if costs_no_rows(draft, request.traits.widths):
        return forward.duration_s
    if not request.takes_turns or request.shares_cores:
        return None
    if abs(len(request.text) - governor.plain_length) > _NEAR:
        return None
    costs = request.costs
    return forward.duration_s * costs.forward_s(0) / costs.forward_s(len(draft))


def costs_no_rows(draft: Draft, widths: Widths) -> bool:
    """Whether a pass without the draft would have been padded to as many rows."""
    return bool(widths) and widths.padded(1) == widths.padded(len(draft) + 1)


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
        # on shared cores the drafter prefills the prompt after the first token
        is_drafting = asked.num_tokens > 0 and not (request.shares_cores and not request.num_rounds)
        request.is_drafting = is_drafting
        if is_drafting:
            request.submit(asked, pending)
        forward: Forward = yield Score(pending)
        ahead = request.peek() if is_drafting else Drafted()

        tree = pending.graft(pending.leaf(), ahead.draft)
        verdict = verify(tree, forward.scores)
        # past what was scored: the chain was accepted whole and its next token opens one of the
        # new sequences, whose rest is the next chain in flight
        rest = tree.subtree(verdict.end) if verdict.final is None else Draft()
        request.commit(
            tree,
            verdict,
            forward,
            num_from_model=len(verdict.accepted),
            num_drafted=len(tree) - len(rest),  # what goes on in flight counts when it is judged
            overlap_s=ahead.read_s + ahead.draft_s,
            num_sequences=ahead.draft.num_leaves,
        )
        if verdict.final is None and not rest and request.remaining:
            drafted = yield from request.collect(asked)
            tree = pending.graft(pending.leaf(), drafted.draft)
            rest = tree.subtree(verdict.end)
        pending = rest

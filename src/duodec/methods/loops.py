"""Run the loops that methods are made of: draft then verify, and draft while verifying.

A loop is a coroutine over one `Request`: it yields what it needs next, is sent the result, and
runs until the text is full.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Any

from duodec.core.candidates import CandidateTree
from duodec.core.draft import Draft
from duodec.core.protocols import NUM_CANDIDATES, Drafted, Plan, Scores
from duodec.core.sampling import Tokens
from duodec.core.verify import Rule, keyed, verify
from duodec.drafting.growth import Tree
from duodec.methods.request import PATIENCE, Forward, Loop, Need, Request, Score, Wait
from duodec.planning.governor import Governor, Sources
from duodec.planning.planner import Planner, best_width
from duodec.planning.selection import Selection
from duodec.planning.sources import TextSources, TreeSource

LEARNING_SHARE = 0.03  # of a forward pass: for reading what the target held likely in its rows

Propose = Callable[[Request], Draft | Plan]
"""What to score after the text: a draft, or a plan for the draft model."""
Learn = Callable[[Tokens, Draft, Scores], None]


def serial(
    request: Request,
    propose: Propose,
    rule: Callable[[Request], Rule] = lambda _: keyed,
    learn: Learn = lambda text, draft, scores: None,
    num_candidates: int = 0,
) -> Loop:
    """Draft, score, verify. The first forward pass, which reads the prompt, waits for no draft.

    ``learn`` is shown each text, its draft and its scores, with ``num_candidates`` of each row.
    """
    request.read_ahead()
    while request.remaining:
        start = request.clock()
        draft = Draft()
        if request.num_rounds and request.room:
            proposed = propose(request)
            draft = (
                proposed if isinstance(proposed, Draft) else (yield from request.draft(proposed))
            )
        draft = draft.within(request.max_width, request.remaining - 1)
        draft_wait_s = request.clock() - start
        text = request.text
        forward: Forward = yield Score(draft, num_candidates)
        verdict = verify(draft, forward.scores, rule(request))
        request.commit(
            draft,
            verdict,
            forward,
            num_scored=len(draft),
            num_drafted=len(draft),
            draft_wait_s=draft_wait_s,
        )
        learn(text, draft, forward.scores)


def streaming(
    request: Request, planner: Planner, plan: Tree, texts: TextSources, governor: Governor
) -> Loop:
    """The drafter never stops: its tree grows under the text while the target scores a part of it.

    When the target is free it takes the likeliest candidates of that tree and of all other
    sources. The verdict moves the root: what lies under it survives, on both sides. Where little
    is left, the target waits for draft steps as long as they bring tokens faster than decoding
    does. ``governor`` says, round by round, which sources take part.
    """
    tree, begin_s = CandidateTree(), request.now()
    while request.remaining:
        most = request.costs.sources()
        can_pay = most != Sources.NONE and planner.can_pay()
        sources = governor.sources(most) if can_pay else Sources.NONE
        # on shared cores the drafter reads the prompt after the first token
        is_drafting = sources == Sources.ALL and not (
            request.shares_cores and not request.num_rounds
        )
        if request.is_drafting and not is_drafting:
            tree = CandidateTree()
            request.rest()
        request.is_drafting = is_drafting
        if is_drafting:
            request.submit(replace(plan, depth=min(plan.depth, request.remaining - 1)))
        start_s = request.clock()
        draft, selection, before = Draft(), None, Drafted()
        if request.num_rounds and sources != Sources.NONE:
            planner.has_branches = request.has_branches
            before, tree, selection = yield from _selected(request, planner, tree, texts)
            draft = selection.draft(best_width(selection.values, request.costs))
        elif is_drafting:
            before = request.peek_tree()
        draft_wait_s = request.clock() - start_s
        text = request.text
        forward: Forward = yield Score(draft, NUM_CANDIDATES if can_pay else 0)
        after = request.peek_tree() if is_drafting else Drafted()
        verdict = verify(draft, forward.scores)
        done = request.commit(
            draft,
            verdict,
            forward,
            num_scored=len(draft),
            num_drafted=len(draft),
            draft_wait_s=draft_wait_s,
            overlap_s=max(0.0, after.busy_s - before.busy_s),  # less after a restart
        )
        grown = _newer(after, tree)
        seconds, begin_s = request.now() - begin_s, request.now()
        # the first round reads the prompt, and what others forbid was not this request's choice
        if request.num_rounds > 1 and most != Sources.NONE:
            planner.observe(len(done.tokens), seconds)
            governor.observe(sources, len(done.tokens), seconds, most if can_pay else sources)
        if is_drafting:
            request.defer(partial(planner.acceptance.learn, grown, done.tokens))
            tree = grown.follow(done.tokens)
        if selection is not None:
            request.defer(partial(planner.learn, selection, done.tokens))
        if can_pay:
            learn = partial(
                texts.learn,
                text,
                draft,
                forward.scores,
                verdict.end,
                clock=request.clock,
                budget_s=LEARNING_SHARE * request.costs.forward_s(0),
            )
            # where they are not, scores do not outlive the next forward pass
            if getattr(forward.scores, "candidates_are_ready", False):
                request.defer(learn)
            else:
                learn()


def _selected(
    request: Request, planner: Planner, tree: CandidateTree, texts: TextSources
) -> Generator[Need, Any, tuple[Drafted, CandidateTree, Selection]]:
    """How far the drafter is after the draft steps that are worth waiting for, its tree, and the
    likeliest candidates of all sources."""
    others = texts.sources(request.text)

    def select() -> Selection:
        return planner.select(
            [TreeSource(tree, planner.acceptance, learns=False), *others],
            texts.memory.agreement,
            request.max_width,
            request.remaining - 1,
        )

    is_drafting = request.is_drafting
    drafted = request.peek_tree() if is_drafting else Drafted()
    tree = _newer(drafted, tree) if is_drafting else CandidateTree()
    selection = select()
    while is_drafting and planner.is_worth_waiting(tree, selection):
        num_known = len(tree)
        drafted = yield Wait(PATIENCE * planner.step_s(tree), num_known)
        request.learn_steps(drafted)
        tree = _newer(drafted, tree)
        if len(tree) == num_known:
            break  # it is dead, or reads, or has nothing more to say
        selection = select()
    return drafted, tree, selection


def _newer(drafted: Drafted, known: CandidateTree) -> CandidateTree:
    """The drafter's tree, once it has said what is in it; until then what is known of it."""
    if drafted.tree is None or len(drafted.tree) < len(known):
        return known
    return drafted.tree


def overlapped(request: Request, plan: Callable[[int], Plan]) -> Loop:
    """While the target scores the chain in flight, draft what follows if all of it is accepted.

    ``plan`` shapes a budget of draft tokens: as many as fit in one forward pass of the target, and
    one in the first round, so that neither side's reading of the prompt waits for the other. The
    target takes what has been drafted when its forward pass ends; it waits, with patience, only
    where that was right to its last token, so that nothing but the rest of the draft could follow.
    An empty chain in flight is the papers' pre-verify step.
    """
    pending, draft_wait_s = Draft(), 0.0
    while request.remaining:
        budget = request.costs.budget() if request.num_rounds else 1
        asked = plan(max(0, min(budget, request.max_width, request.remaining - len(pending) - 1)))
        # on shared cores the drafter reads the prompt after the first token
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
            num_scored=len(pending),
            num_drafted=len(tree) - len(rest),  # what goes on in flight counts when it is judged
            draft_wait_s=draft_wait_s,
            overlap_s=ahead.read_s + ahead.draft_s,
        )
        start = request.clock()
        if verdict.final is None and not rest and request.remaining:
            drafted = yield from request.collect(asked)
            tree = pending.graft(pending.leaf(), drafted.draft)
            rest = tree.subtree(verdict.end)
        pending = rest
        draft_wait_s = request.clock() - start

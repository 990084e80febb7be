"""The loops that methods are made of: draft then verify, and draft while verifying.

A loop yields a `Round` as soon as its tokens are drawn, before anything else is waited for,
and runs until the text is full; the caller closes it at the end of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from duodec.core.candidates import CandidateTree
from duodec.core.draft import Draft
from duodec.core.protocols import Drafted, Plan, Scores
from duodec.core.round import Round
from duodec.core.sampling import Tokens
from duodec.core.verify import Rule, keyed, verify
from duodec.decoding.session import PATIENCE, Session
from duodec.drafting.growth import Tree
from duodec.drafting.recycling import NUM_CANDIDATES
from duodec.planning.governor import Governor, Sources
from duodec.planning.planner import Planner, best_width
from duodec.planning.selection import Selection
from duodec.planning.sources import TextSources, TreeSource

LEARNING_SHARE = 0.03  # of a forward pass: for reading what the target held likely in its rows


def serial(
    session: Session,
    propose: Callable[[Session], Draft],
    rule: Callable[[Session], Rule] = lambda _: keyed,
    learn: Callable[[Tokens, Draft, Scores], None] = lambda text, draft, scores: None,
    num_candidates: int = 0,
) -> Iterator[Round]:
    """Draft, score, verify. The first forward, which reads the prompt, waits for no draft.

    ``learn`` is shown each text, its draft and its scores, with ``num_candidates`` of each row,
    once the tokens are out.
    """
    session.read_ahead()
    while session.remaining:
        start = session.clock()
        draft = propose(session) if session.num_rounds and session.room else Draft()
        draft = draft.within(session.max_width, session.remaining - 1)
        draft_wait_s = session.clock() - start
        text = session.text
        forward = session.score(draft, num_candidates)
        verdict = verify(draft, forward.scores, rule(session))
        yield session.commit(
            verdict,
            forward,
            num_scored=len(draft),
            num_drafted=len(draft),
            draft_wait_s=draft_wait_s,
        )
        learn(text, draft, forward.scores)


def streaming(
    session: Session, planner: Planner, plan: Tree, texts: TextSources, governor: Governor
) -> Iterator[Round]:
    """The drafter never stops: its tree grows under the text while the target scores a part of it.

    When the target is free it takes the likeliest candidates of that tree and of all other
    sources. The verdict moves the root: what lies under it survives, on both sides. Where little
    is left, the target waits for draft steps as long as they bring tokens faster than decoding
    does. ``governor`` says, round by round, which sources take part.
    """
    tree, begin_s = CandidateTree(), session.clock()
    is_beside: bool | None = None
    while session.remaining:
        most = session.costs.sources()
        can_pay = most != Sources.NONE and planner.can_pay()
        sources = governor.sources(most) if can_pay else Sources.NONE
        # on shared cores the drafter reads the prompt after the first token
        is_drafting = sources == Sources.ALL and not (
            session.shares_cores and not session.num_rounds
        )
        if is_drafting != is_beside:
            session.prepare(is_beside := is_drafting)  # a target alone has all the cores
            if not is_drafting:
                tree = CandidateTree()
                session.rest()
        if is_drafting:
            session.submit(replace(plan, depth=min(plan.depth, session.remaining - 1)))
        start_s = session.clock()
        draft, selection = Draft(), None
        if session.num_rounds and sources != Sources.NONE:
            planner.has_branches = session.has_branches
            tree, selection = _selected(session, planner, tree, texts, is_drafting=is_drafting)
            draft = selection.draft(best_width(selection.values, session.costs))
        draft_wait_s = session.clock() - start_s
        before = session.peek_tree() if is_drafting else Drafted()
        text = session.text
        forward = session.score(draft, NUM_CANDIDATES if can_pay else 0)
        after = session.peek_tree() if is_drafting else Drafted()
        verdict = verify(draft, forward.scores)
        done = session.commit(
            verdict,
            forward,
            num_scored=len(draft),
            num_drafted=len(draft),
            draft_wait_s=draft_wait_s,
            overlap_s=max(0.0, after.busy_s - before.busy_s),  # less after a restart
        )
        if is_drafting:
            tree = session.tree(tree)
        seconds = session.clock() - begin_s
        yield done
        begin_s = session.clock()  # what the caller did meanwhile is no part of a round
        # the first round reads the prompt, and what others forbid was not this answer's choice
        if session.num_rounds > 1 and most != Sources.NONE:
            planner.observe(len(done.tokens), seconds)
            governor.observe(sources, len(done.tokens), seconds, most if can_pay else sources)
        if is_drafting:
            planner.acceptance.learn(tree, done.tokens)
            tree = tree.follow(done.tokens)
        if selection is not None:
            planner.learn(selection, done.tokens)
        if can_pay:
            budget_s = LEARNING_SHARE * session.costs.forward_s(0)
            texts.learn(
                text, draft, forward.scores, verdict.end, clock=session.clock, budget_s=budget_s
            )


def _selected(
    session: Session,
    planner: Planner,
    tree: CandidateTree,
    texts: TextSources,
    *,
    is_drafting: bool,
) -> tuple[CandidateTree, Selection]:
    """The drafter's tree, after the draft steps that are worth waiting for, and the likeliest
    candidates of all sources."""
    others = texts.sources(session.text)

    def select() -> Selection:
        return planner.select(
            [TreeSource(tree, planner.acceptance, learns=False), *others],
            texts.memory.agreement,
            session.max_width,
            session.remaining - 1,
        )

    tree = session.tree(tree) if is_drafting else CandidateTree()
    selection = select()
    while is_drafting and planner.is_worth_waiting(tree, selection):
        num_known = len(tree)
        tree = session.tree(tree, PATIENCE * planner.step_s(tree))
        if len(tree) == num_known:
            break  # it is dead, or reads, or has nothing more to say
        selection = select()
    return tree, selection


def overlapped(session: Session, plan: Callable[[int], Plan]) -> Iterator[Round]:
    """While the target scores the chain in flight, draft what follows if all of it is accepted.

    ``plan`` shapes a budget of draft tokens: as many as fit in one target forward, and one in
    the first round, so that neither side's reading of the prompt waits for the other. The target
    takes what has been drafted when its forward ends; it waits, with patience, only where that
    was right to its last token, so that nothing but the rest of the draft could follow. An empty
    chain in flight is the papers' pre-verify step.
    """
    pending, draft_wait_s = Draft(), 0.0
    while session.remaining:
        budget = session.costs.budget() if session.num_rounds else 1
        asked = plan(max(0, min(budget, session.max_width, session.remaining - len(pending) - 1)))
        # on shared cores the drafter reads the prompt after the first token
        is_drafting = asked.num_tokens > 0 and not (session.shares_cores and not session.num_rounds)
        if is_drafting:
            session.submit(asked, pending)
        forward = session.score(pending)
        ahead = session.peek() if is_drafting else Drafted()

        tree = pending.graft(pending.leaf(), ahead.draft)
        verdict = verify(tree, forward.scores)
        # past what was scored: the chain was accepted whole and its next token opens one of the
        # new sequences, whose rest is the next chain in flight
        rest = tree.subtree(verdict.end) if verdict.final is None else Draft()
        yield session.commit(
            verdict,
            forward,
            num_scored=len(pending),
            num_drafted=len(tree) - len(rest),  # what goes on in flight counts when it is judged
            draft_wait_s=draft_wait_s,
            overlap_s=ahead.read_s + ahead.draft_s,
        )
        start = session.clock()
        if verdict.final is None and not rest and session.remaining:
            tree = pending.graft(pending.leaf(), session.collect(asked).draft)
            rest = tree.subtree(verdict.end)
        pending = rest
        draft_wait_s = session.clock() - start

"""The loops that methods are made of: draft then verify, and draft while verifying.

A loop yields a `Round` as soon as its tokens are drawn, before anything else is waited for,
and runs until the text is full; the caller closes it at the end of the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from duodec.core.draft import Draft
from duodec.core.protocols import Drafted, Plan, Scores
from duodec.core.round import Round
from duodec.core.sampling import Tokens
from duodec.core.verify import Rule, keyed, verify
from duodec.decoding.session import Session


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
        yield session.commit(
            verdict,
            forward,
            num_scored=len(pending),
            num_drafted=len(ahead.draft),
            draft_wait_s=draft_wait_s,
            overlap_s=ahead.read_s + ahead.draft_s,
        )
        start = session.clock()
        if verdict.final is not None:
            pending = Draft()
        else:
            # past what was scored: the chain was accepted whole and its next token opens one of
            # the new sequences, whose rest is the next chain in flight
            if not tree.subtree(verdict.end) and session.remaining:
                tree = pending.graft(pending.leaf(), session.collect(asked).draft)
            pending = tree.subtree(verdict.end)
        draft_wait_s = session.clock() - start

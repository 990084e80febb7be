"""One-line corruptions of the core that the tests must catch: tests of the tests.

A mutant is a function whose source has one expression replaced; the function that everybody
imported runs the mutant's code. A pattern that is no longer in the source fails here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from fakes.decoding import assert_decodes_like_ar, assert_perfect_drafts_are_kept
from fakes.dice import (
    CASES,
    DEEP_CASES,
    FULL_SUPPORT,
    assert_exact,
    assert_siblings_exact,
    distinct_siblings,
    distribution,
)
from fakes.mutants import Mutant

from duodec.core import verify
from duodec.core.draft import Draft
from duodec.core.sampling import Distribution, SamplingParams
from duodec.drafting import growth
from duodec.methods import loops
from duodec.methods.offers import Offers
from duodec.methods.request import Request
from duodec.planning.sources import TextSources

# what a corrupted walk trips over, besides the assertions themselves
CAUGHT = (AssertionError, IndexError, ZeroDivisionError)

ALL_CASES = {case.name: case for case in [*CASES, *DEEP_CASES]}


def exact_distributions(name: str, case: str = "full support") -> Callable[[], None]:
    """The exact distribution test of one method."""
    return partial(assert_exact, name, ALL_CASES[case])


def siblings() -> None:
    """The exact distribution test of the rejection rule over several children."""
    q = distribution(0.125, 0.125, 0.25, 0.5)
    assert_siblings_exact(distribution(0.5, 0.25, 0.125, 0.125), distinct_siblings(q, 3))


def identity(name: str) -> Callable[[], None]:
    """The text is that of plain decoding, by drafts that are fresh wherever they are scored."""
    return partial(assert_decodes_like_ar, name, SamplingParams(temperature=0.8, seed=5))


def perfection(name: str) -> Callable[[], None]:
    """Good drafts are kept. Keyed draws leave the text right whatever is drafted, so drafts made
    for another place are caught here or by `identity`, never by a distribution."""
    return partial(assert_perfect_drafts_are_kept, name)


def branches_are_followed() -> None:
    """`duo` in a text whose draw is often not the draft's first guess: what goes on in flight is
    what was drafted after the token that was drawn, and after no other."""
    for seed in range(6):
        params = SamplingParams(temperature=1.0, seed=seed)
        assert_decodes_like_ar("duo", params, draft_noise=0.55, num_tokens=120)


def trees_are_fresh() -> None:
    """A draft model that is the target: `stream` needs few rounds, wherever its tree was kept.
    Nothing else is proposed that could make up for a wrong tree."""
    params = SamplingParams(temperature=0.8, seed=5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextSources, "sources", lambda *words: [])
        rounds = assert_decodes_like_ar("stream", params, draft_noise=0.0, num_tokens=60)
    assert len(rounds) < 20


def counts_add_up() -> None:
    """A draft token counts once, in the round that judges it."""
    for name in ("pearl", "duo"):
        params = SamplingParams(temperature=0.8, seed=5)
        rounds = assert_decodes_like_ar(name, params, draft_noise=0.2, num_tokens=60)
        assert all(done.num_accepted <= done.num_drafted for done in rounds)


KEYED_DISTRIBUTIONS = tuple(exact_distributions(name) for name in ("sps", "pearl", "duo"))
REJECTION_DISTRIBUTION = exact_distributions("sps-rejection")
PERFECT = tuple(perfection(name) for name in ("sps", "pearl", "duo"))
TWO_LOOPS = (identity("pearl"), identity("duo"))

MUTANTS = [
    # --- the keyed rule
    Mutant(
        "row off by one: the row above",
        verify.keyed,
        "scores.draw(node + 1)",
        "scores.draw(max(node, 0))",
        (*KEYED_DISTRIBUTIONS, identity("sps"), *TWO_LOOPS),
    ),
    Mutant(
        "row off by one: the row below",
        verify.keyed,
        "scores.draw(node + 1)",
        "scores.draw(min(node + 2, scores.num_rows - 1))",
        (*KEYED_DISTRIBUTIONS, identity("sps"), *TWO_LOOPS),
    ),
    Mutant(
        "a child is accepted without comparing",
        verify.keyed,
        "draft.child(node, draw.token)",
        "next(draft.children(node), None)",
        (*KEYED_DISTRIBUTIONS, identity("sps"), *TWO_LOOPS),
    ),
    Mutant(
        "a child is accepted for what it proposes",
        verify.keyed,
        "Step(draw.token, draft.child(node, draw.token), draw.margin)",
        "Step(next((draft.tokens[i] for i in draft.children(node)), draw.token), "
        "next(draft.children(node), None), draw.margin)",
        (*KEYED_DISTRIBUTIONS, identity("sps"), *TWO_LOOPS),
    ),
    # --- the walk
    Mutant(
        "the final token is dropped",
        verify.verify,
        "node, step.token, margin)",
        "node, None, margin)",
        (*KEYED_DISTRIBUTIONS, exact_distributions("ar"), REJECTION_DISTRIBUTION),
    ),
    Mutant(
        "the final token is dropped after accepted ones",
        verify.Verdict.tokens.fget,
        "if self.final is None else",
        "if self.final is None or self.accepted else",
        (REJECTION_DISTRIBUTION, *PERFECT),
    ),
    Mutant(
        "the final token comes twice",
        verify.Verdict.tokens.fget,
        "(*self.accepted, self.final)",
        "(*self.accepted, self.final, self.final)",
        (*KEYED_DISTRIBUTIONS, exact_distributions("ar"), REJECTION_DISTRIBUTION, identity("sps")),
    ),
    Mutant(
        "the walk goes on past what was scored",
        verify.verify,
        "while node + 1 < scores.num_rows:",
        "while node < scores.num_rows:",
        TWO_LOOPS,
    ),
    Mutant(
        "the last row is not walked",
        verify.verify,
        "while node + 1 < scores.num_rows:",
        "while node + 2 < scores.num_rows:",
        (*KEYED_DISTRIBUTIONS, exact_distributions("ar"), REJECTION_DISTRIBUTION),
    ),
    Mutant(
        "the walk skips a node",
        verify.verify,
        "node = step.child\n",
        "node = len(draft) - 1\n",
        (exact_distributions("sps"), identity("sps")),
    ),
    # --- the rule with distributions
    Mutant(
        "p and q swapped",
        verify.rejection,
        "p.prob(token) / q.prob(token)",
        "q.prob(token) / p.prob(token)",
        (REJECTION_DISTRIBUTION, siblings),
    ),
    Mutant(
        "always accepted",
        verify.rejection,
        "min(1.0, p.prob(token) / q.prob(token))",
        "1.0",
        (REJECTION_DISTRIBUTION, siblings),
    ),
    Mutant(
        "accepted with probability p",
        verify.rejection,
        "p.prob(token) / q.prob(token)",
        "p.prob(token)",
        (REJECTION_DISTRIBUTION, siblings),
    ),
    Mutant(
        "wrong residual: p itself",
        verify.rejection,
        "p = p.residual(q)",
        "pass",
        (REJECTION_DISTRIBUTION, siblings),
    ),
    Mutant(
        "wrong residual: of q",
        verify.rejection,
        "p = p.residual(q)",
        "p = q.residual(p)",
        (REJECTION_DISTRIBUTION, siblings),
    ),
    Mutant(
        "the residual is not updated between siblings",
        verify.rejection,
        "p = p.residual(q)",
        "p = scores.distribution(node + 1).residual(q)",
        (siblings,),
    ),
    Mutant(
        "the residual is not normalised",
        Distribution.residual,
        "probs / total",
        "probs",
        (REJECTION_DISTRIBUTION, siblings),
    ),
    Mutant(
        "the residual is the difference either way",
        Distribution.residual,
        "np.maximum(",
        "np.hypot(",
        (REJECTION_DISTRIBUTION, siblings),
    ),
    Mutant(
        "distributions of the row above",
        verify.rejection,
        "p = scores.distribution(node + 1)",
        "p = scores.distribution(max(node, 0))",
        (REJECTION_DISTRIBUTION,),
    ),
    Mutant(
        "distributions of another node",
        verify.rejection,
        "draft.tokens[child], distributions[child]",
        "draft.tokens[child], distributions[-1 - child]",
        (REJECTION_DISTRIBUTION, siblings),
    ),
    Mutant(
        "every position of a draft takes the same dice",
        verify.rejection,
        "num_text_tokens + len(draft.path(node))",
        "num_text_tokens",
        (REJECTION_DISTRIBUTION,),
    ),
    # --- the loops
    Mutant(
        "stale draft: the last one is judged again",
        loops.serial,
        "draft = Draft()\n        if request.num_rounds and",
        "draft = draft if request.num_rounds > 1 else Draft()\n"
        "        if request.num_rounds == 1 and",
        (REJECTION_DISTRIBUTION, identity("sps")),
    ),
    Mutant(
        "stale scores: another draft is verified than the one that was scored",
        loops.serial,
        "verdict = verify(draft, forward.scores, rule(request))",
        "forward = yield Score(Draft.chain(draft.tokens[::-1])); "
        "verdict = verify(draft, forward.scores, rule(request))",
        (exact_distributions("sps", "deep, branches taken"), identity("sps")),
    ),
    Mutant(
        "a refused chain stays in flight",
        loops.overlapped,
        "if verdict.final is None else Draft()",
        "if verdict.final is None else pending",
        TWO_LOOPS,
    ),
    Mutant(
        "after a miss the draft that followed the refused chain is taken",
        loops.overlapped,
        "if verdict.final is None else Draft()",
        "if verdict.final is None else Draft.chain(ahead.draft.tokens)",
        TWO_LOOPS,
    ),
    Mutant(
        "the draft with the token that it was to come after",
        loops.overlapped,
        "rest = tree.subtree(verdict.end) if",
        "rest = Draft.chain(ahead.draft.tokens) if",
        (identity("pearl"),),
    ),
    Mutant(
        "the likeliest sequence goes on, whichever was opened",
        loops.overlapped,
        "rest = tree.subtree(verdict.end) if",
        "rest = tree.subtree(len(pending)) if",
        (branches_are_followed,),
    ),
    Mutant(
        "the draft is made after the text, not after the chain in flight",
        loops.overlapped,
        "request.submit(asked, pending)",
        "request.submit(asked)",
        (perfection("pearl"),),
    ),
    Mutant(
        "what was drafted meanwhile counts at once, though it goes on in flight",
        loops.overlapped,
        "num_drafted=len(tree) - len(rest)",
        "num_drafted=len(ahead.draft)",
        (counts_add_up,),
    ),
    # --- the request
    Mutant(
        "an old text is scored",
        Request.query,
        "Query(self.slot, self.text, need.draft,",
        "Query(self.slot, self.text[: -self.num_rounds or None], need.draft,",
        (*KEYED_DISTRIBUTIONS, exact_distributions("ar"), REJECTION_DISTRIBUTION, *TWO_LOOPS),
    ),
    Mutant(
        "the last token of a round does not join the text",
        Request.commit,
        "self._length += len(tokens)",
        "self._length += len(tokens) - (len(tokens) > 1)",
        (*KEYED_DISTRIBUTIONS, REJECTION_DISTRIBUTION, *TWO_LOOPS),
    ),
    # --- the tree that never stops growing
    Mutant(
        "the mirror stays where it was",
        Offers.land,
        "self._place = place.follow(tokens)",
        "self._place = place",
        (trees_are_fresh,),
    ),
    Mutant(
        "the drafter's tree stays where it was",
        growth._growth_of,
        "last.tree.follow(request.text[length:].tolist())",
        "last.tree",
        (trees_are_fresh,),
    ),
    Mutant(
        "a node's successors are those of its parent",
        growth._Growth.successors,
        "wanted = tuple(place[leaf] + 1 for leaf in leaves)",
        "wanted = tuple(place[leaf] for leaf in leaves) if ROOT not in leaves else (0,)",
        (trees_are_fresh,),
    ),
    # --- the tree
    Mutant(
        "any child is the child",
        Draft.child,
        "and tokens[i] == token",
        "",
        (*KEYED_DISTRIBUTIONS, identity("sps"), *TWO_LOOPS),
    ),
    Mutant(
        "nothing is left out of a subtree",
        Draft.subtree,
        "if self.parents[i] in placed:",
        "if placed.setdefault(self.parents[i], -1) is not None:",
        (identity("duo"),),
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutant.function, "__code__", mutant.code())
    missed = [check for check in mutant.checks if not is_caught(check)]
    assert not missed


def is_caught(check: Callable[[], None]) -> bool:
    try:
        check()
    except CAUGHT:
        return True
    return False


@pytest.mark.slow
def test_the_unchanged_code_passes_every_check() -> None:
    for check in dict.fromkeys(check for mutant in MUTANTS for check in mutant.checks):
        check()


def test_full_support_is_where_p_and_q_can_be_swapped() -> None:
    """No division by zero: the swap is caught by the distribution itself."""
    tables = (FULL_SUPPORT.target, FULL_SUPPORT.draft)
    assert all(min(table.cells((token,))) > 0 for table in tables for token in range(3))

"""One-line corruptions of the core that the tests must catch: tests of the tests.

A mutant is a function whose syntax tree has one expression or statement replaced; the function
that everybody imported runs the mutant's code. A pattern that is no longer in the tree fails here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType

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
from duodec.core.sampling.sampler import Distribution, SamplingParams
from duodec.drafting import growth
from duodec.methods import loops
from duodec.methods.draft_selector import DraftSelector
from duodec.methods.request import Request
from duodec.planning.sources import TextSources

# what earlier completions taught is copied
pytestmark = pytest.mark.usefixtures("loops_in_python")

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
        (("A.draw(B + 1)", "A.draw(max(B, 0))"),),
        (*KEYED_DISTRIBUTIONS, identity("sps"), *TWO_LOOPS),
    ),
    Mutant(
        "row off by one: the row below",
        verify.keyed,
        (("A.draw(B + 1)", "A.draw(min(B + 2, A.num_rows - 1))"),),
        (*KEYED_DISTRIBUTIONS, identity("sps"), *TWO_LOOPS),
    ),
    Mutant(
        "a child is accepted without comparing",
        verify.keyed,
        (("A.child(B, C)", "next(A.children(B), None)"),),
        (*KEYED_DISTRIBUTIONS, identity("sps"), *TWO_LOOPS),
    ),
    Mutant(
        "a child is accepted for what it proposes",
        verify.keyed,
        (
            (
                "(A, B.child(C, A.token))",
                (
                    "(Draw(next((B.tokens[i] for i in B.children(C)), A.token), A.margin), "
                    "next(B.children(C), None))"
                ),
            ),
        ),
        (*KEYED_DISTRIBUTIONS, identity("sps"), *TWO_LOOPS),
    ),
    # --- the walk
    Mutant(
        "the final token is dropped",
        verify.verify,
        (("Verdict(A, B, C.token, D)", "Verdict(A, B, None, D)"),),
        (*KEYED_DISTRIBUTIONS, exact_distributions("ar"), REJECTION_DISTRIBUTION),
    ),
    Mutant(
        "the final token is dropped after accepted ones",
        verify.Verdict.tokens.fget,
        (("A if P0.final is None else B", "A if P0.final is None or P0.accepted else B"),),
        (REJECTION_DISTRIBUTION, *PERFECT),
    ),
    Mutant(
        "the final token comes twice",
        verify.Verdict.tokens.fget,
        (("(*A, B)", "(*A, B, B)"),),
        (*KEYED_DISTRIBUTIONS, exact_distributions("ar"), REJECTION_DISTRIBUTION, identity("sps")),
    ),
    Mutant(
        "the walk goes on past what was scored",
        verify.verify,
        (("A + 1 < B.num_rows", "A < B.num_rows"),),
        TWO_LOOPS,
    ),
    Mutant(
        "the last row is not walked",
        verify.verify,
        (("A + 1 < B.num_rows", "A + 2 < B.num_rows"),),
        (*KEYED_DISTRIBUTIONS, exact_distributions("ar"), REJECTION_DISTRIBUTION),
    ),
    Mutant(
        "the walk skips a node",
        verify.verify,
        (("C.append(D.token); A = B", "C.append(D.token); A = len(P0) - 1"),),
        (exact_distributions("sps"), identity("sps")),
    ),
    # --- the rule with distributions
    Mutant(
        "p and q swapped",
        verify.rejection,
        (("A.prob(B) / C.prob(B)", "C.prob(B) / A.prob(B)"),),
        (REJECTION_DISTRIBUTION, siblings),
    ),
    Mutant(
        "always accepted",
        verify.rejection,
        (("min(1.0, A)", "1.0"),),
        (REJECTION_DISTRIBUTION, siblings),
    ),
    Mutant(
        "accepted with probability p",
        verify.rejection,
        (("A.prob(B) / C.prob(B)", "A.prob(B)"),),
        (REJECTION_DISTRIBUTION, siblings),
    ),
    Mutant(
        "wrong residual: p itself",
        verify.rejection,
        (("A = A.residual(B)", "pass"),),
        (REJECTION_DISTRIBUTION, siblings),
    ),
    Mutant(
        "wrong residual: of q",
        verify.rejection,
        (("A = A.residual(B)", "A = B.residual(A)"),),
        (REJECTION_DISTRIBUTION, siblings),
    ),
    Mutant(
        "the residual is not updated between siblings",
        verify.rejection,
        (
            ("A.distribution(B)", "A.distribution(B)"),
            ("C = C.residual(D)", "C = A.distribution(B).residual(D)"),
        ),
        (siblings,),
    ),
    Mutant(
        "the residual is not normalised",
        Distribution.residual,
        (("A / B", "A"),),
        (REJECTION_DISTRIBUTION, siblings),
    ),
    Mutant(
        "the residual is the difference either way",
        Distribution.residual,
        (("np.maximum(A, B)", "np.hypot(A, B)"),),
        (REJECTION_DISTRIBUTION, siblings),
    ),
    Mutant(
        "distributions of the row above",
        verify.rejection,
        (("A.distribution(B + 1)", "A.distribution(max(B, 0))"),),
        (REJECTION_DISTRIBUTION,),
    ),
    Mutant(
        "distributions of another node",
        verify.rejection,
        (("(A.tokens[B], C[B])", "(A.tokens[B], C[-1 - B])"),),
        (REJECTION_DISTRIBUTION, siblings),
    ),
    Mutant(
        "every position of a draft takes the same dice",
        verify.rejection,
        (("A + len(B.path(C))", "A"),),
        (REJECTION_DISTRIBUTION,),
    ),
    # --- the loops
    Mutant(
        "stale draft: the last one is judged again",
        loops.serial,
        (
            (
                "A, B = NO_DRAFT, False",
                "A, B = A if P0.num_rounds > 1 else NO_DRAFT, False",
            ),
            ("P0.num_rounds and C", "P0.num_rounds == 1 and C"),
        ),
        (REJECTION_DISTRIBUTION, identity("sps")),
    ),
    Mutant(
        "stale scores: another draft is verified than the one that was scored",
        loops.serial,
        (
            (
                "A = verify(B, C.scores, D)",
                "C = yield Score(Draft.chain(B.tokens[::-1]))\nA = verify(B, C.scores, D)",
            ),
        ),
        (exact_distributions("sps", "deep, branches taken"), identity("sps")),
    ),
    Mutant(
        "a refused chain stays in flight",
        loops.overlapped,
        (
            ("Score(C)", "Score(C)"),
            ("A if B.final is None else Draft()", "A if B.final is None else C"),
        ),
        TWO_LOOPS,
    ),
    Mutant(
        "after a miss the draft that followed the refused chain is taken",
        loops.overlapped,
        (
            ("C = P0.peek() if D else Drafted()", "C = P0.peek() if D else Drafted()"),
            (
                "A if B.final is None else Draft()",
                "A if B.final is None else Draft.chain(C.draft.tokens)",
            ),
        ),
        TWO_LOOPS,
    ),
    Mutant(
        "the draft with the token that it was to come after",
        loops.overlapped,
        (
            ("C = P0.peek() if D else Drafted()", "C = P0.peek() if D else Drafted()"),
            (
                "A if B.final is None else Draft()",
                "Draft.chain(C.draft.tokens) if B.final is None else Draft()",
            ),
        ),
        (identity("pearl"),),
    ),
    Mutant(
        "the likeliest sequence goes on, whichever was opened",
        loops.overlapped,
        (
            ("Score(C)", "Score(C)"),
            (
                "A.subtree(B.end) if B.final is None else D",
                "A.subtree(len(C)) if B.final is None else D",
            ),
        ),
        (branches_are_followed,),
    ),
    Mutant(
        "the draft is made after the text, not after the chain in flight",
        loops.overlapped,
        (("P0.submit(A, B)", "P0.submit(A)"),),
        (perfection("pearl"),),
    ),
    Mutant(
        "what was drafted meanwhile counts at once, though it goes on in flight",
        loops.overlapped,
        (
            ("C = P0.peek() if D else Drafted()", "C = P0.peek() if D else Drafted()"),
            ("len(A) - len(B)", "len(C.draft)"),
        ),
        (counts_add_up,),
    ),
    # --- the request
    Mutant(
        "an old text is scored",
        Request.query,
        (("P0.scored_text", "P0.scored_text[: -P0.num_rounds or None]"),),
        (*KEYED_DISTRIBUTIONS, exact_distributions("ar"), REJECTION_DISTRIBUTION, *TWO_LOOPS),
    ),
    Mutant(
        "the last token of a round does not join the text",
        Request.commit,
        (("P0._length += len(A)", "P0._length += len(A) - (len(A) > 1)"),),
        (*KEYED_DISTRIBUTIONS, REJECTION_DISTRIBUTION, *TWO_LOOPS),
    ),
    # --- the tree that never stops growing
    Mutant(
        "the mirror stays where it was",
        DraftSelector.follow_verdict,
        (("P0._cursor = A.follow(B)", "P0._cursor = A"),),
        (trees_are_fresh,),
    ),
    Mutant(
        "the drafter's tree stays where it was",
        growth._growth_of,
        (("A.tree.follow(B)", "A.tree"),),
        (trees_are_fresh,),
    ),
    Mutant(
        "a node's successors are those of its parent",
        growth._Growth.expand,
        (("[P0._place[A] + 1 for A in B]", "[max(0, P0._place[A]) for A in B]"),),
        (trees_are_fresh,),
    ),
    # --- the tree
    Mutant(
        "any child is the child",
        Draft.child,
        (("A and B == P2", "A"),),
        (*KEYED_DISTRIBUTIONS, identity("sps"), *TWO_LOOPS),
    ),
    Mutant(
        "nothing is left out of a subtree",
        Draft.subtree,
        (("A.parents[B] in C", "C.setdefault(A.parents[B], -1) is not None"),),
        (identity("duo"),),
    ),
]


@pytest.mark.slow
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


# --- what a corruption is


def first_word(words: list[str]) -> str:
    best = words[0]
    return best + "!"


def another(several):  # the same, written by somebody else
    found = several[
        0
    ]  # fmt: skip
    return (found  # a comment
            +
            "!")  # fmt: skip


@pytest.mark.parametrize("function", [first_word, another])
def test_neither_names_nor_format_matter(function: Callable) -> None:
    changes = (("A = P0[0]", "A = P0[1]"), ("return A + B", "return A"))
    code = Mutant("the second", function, changes).code()
    assert function(["a", "b"]) == "a!"
    assert FunctionType(code, {})(["a", "b"]) == "b"


@pytest.mark.parametrize("pattern", ["A[1]", "A", "return A", "B = P0[A]\nreturn B"])
def test_a_corruption_has_one_place(pattern: str) -> None:
    """Otherwise it corrupts something else, or nothing."""
    with pytest.raises(AssertionError, match="times, not once"):
        Mutant("unclear", two_ways, ((pattern, pattern),)).code()


def two_ways(words: list[str]) -> str:
    if words:
        return words[0]
    return "none"

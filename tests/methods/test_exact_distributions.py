"""Every method's distribution is the target's, exactly: all outcomes of scripted dice are added up.

No seeds and no tolerance for chance. A new method in the registry is tested by being there.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cache

import numpy as np
import pytest
from fakes.decoding import Session, chi_square_limit, decode_rounds
from fakes.dice import (
    CASES,
    DEEP_CASES,
    FULL_SUPPORT,
    Case,
    DistributionTable,
    Witness,
    assert_exact,
    assert_siblings_exact,
    distinct_siblings,
    distribution,
    distribution_of,
    independent_siblings,
    outcomes,
)

from duodec.core.rows import Row
from duodec.core.sampling.sampler import Context, Sampler, SamplingParams
from duodec.methods.registry import METHODS, method
from duodec.planning.sources import TextSources
from duodec.testing import InlineDrafter, TableModel, TableTarget

# what earlier completions taught is copied for each outcome
pytestmark = pytest.mark.usefixtures("loops_in_python")
ALL_CASES = [*CASES, *DEEP_CASES]
WIDE = ("draft is target", "unrelated", "full support", "masked")
QUICK = (*WIDE, "deep, draft is target", "deep, unrelated", "ending", "refused")
LEARNING = [name for name in METHODS if METHODS[name]().learns]
DRAFTING = [name for name in METHODS if name != "ar"]
WITH_SETTINGS = ("duo:3", "pearl:3", "recycling:3", "lookup:3:1", "sps:3:0.5")
ALIKE = (
    "hydra",
    "eagle",
    "eagle3",
    "dflash",
    "dflash2",
    "dspark",
)  # all heads share a loop with medusa's and mtp's
WITNESSED = [
    pytest.param(name, marks=pytest.mark.slow) if name in (*ALIKE, "pearl") else name
    for name in DRAFTING
]
# whose loops are others', and the one that is taken by default: `make test` has all cases of these
MODELS = ("sps", "sps-rejection", "lookup", "duo", "auto")
CHAINED = ["sps", "pearl", "duo"]  # their only drafts are the draft model's first guesses

# the cases are enumerated once for all tests of this file
exact = cache(assert_exact)


def case_named(name: str) -> Case:
    return next(case for case in ALL_CASES if case.name == name)


def quick_cases(name: str) -> list[Case]:
    """What `make test` enumerates too, by the tests of what it witnesses: of the wide cases, which
    take the longest, each other method has one in turn."""
    left_out = () if name in MODELS else set(WIDE) - {WIDE[DRAFTING.index(name) % len(WIDE)]}
    return [case_named(case) for case in QUICK if case not in left_out]


ENUMERATED = [
    pytest.param(
        name,
        case,
        id=f"{name}-{case.name}",
        marks=pytest.mark.soak if name in ALIKE and case.name not in QUICK else pytest.mark.slow,
    )
    for name in (*METHODS, *WITH_SETTINGS)
    for case in ALL_CASES
]


@pytest.mark.parametrize(("name", "case"), ENUMERATED)
def test_first_tokens_follow_the_targets_product_distribution(name: str, case: Case) -> None:
    exact(name, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("name", LEARNING)
def test_what_earlier_completions_taught_leaves_the_distribution(name: str, case: Case) -> None:
    exact(name, case, is_taught=True)


# --- the distribution tests above test something


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNING)
def test_what_earlier_completions_taught_is_scored_accepted_and_refused(name: str) -> None:
    """By itself: there is no draft model, and no datastore."""
    witnesses = [exact(name, case_named(case), is_taught=True) for case in QUICK]
    assert sum(witness.num_accepted for witness in witnesses) > 100
    assert sum(witness.num_refused for witness in witnesses) > 100
    assert max(witness.longest for witness in witnesses) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", WITNESSED)
def test_drafts_are_accepted_and_refused(name: str) -> None:
    cases = ALL_CASES if name in CHAINED else map(case_named, QUICK)  # these are quick
    witnesses = [exact(name, case) for case in cases]
    assert sum(witness.num_accepted for witness in witnesses) > 100
    assert sum(witness.num_refused for witness in witnesses) > 100


@pytest.mark.parametrize("name", WITNESSED)
def test_drafts_longer_than_a_token_are_scored(name: str) -> None:
    assert max(exact(name, case).longest for case in quick_cases(name)) > 1


@pytest.mark.parametrize("name", CHAINED)
def test_a_draft_that_is_the_target_is_never_refused(name: str) -> None:
    for case in ("draft is target", "deep, draft is target", "masked, draft is target"):
        witness = exact(name, case_named(case))
        assert witness.num_scored > 0
        assert witness.num_refused == 0


@pytest.mark.parametrize("name", ["sps", "stream"])
def test_drafts_made_in_turns_with_the_target_are_accepted_and_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Where text knows nothing, so that they are waited for. `auto` tries a draft model after more
    rounds than these."""
    rows_alone = TextSources.sources
    monkeypatch.setattr(TextSources, "sources", lambda texts, text: rows_alone(texts, text)[:1])
    monkeypatch.setattr(TextSources, "learn", lambda texts, lessons: None)
    witness = assert_exact(name, case_named("in turns"))
    assert witness.num_accepted > 20
    assert witness.num_refused > 20
    assert witness.num_contended == 0
    late = assert_exact(name, case_named("late in turns"))
    if name == "stream":  # the target goes on while the drafter is at its step
        assert late.num_contended > 20
    else:
        assert late.num_accepted > 20
        assert late.num_refused > 20


def test_a_disjoint_draft_is_always_refused() -> None:
    for name in CHAINED:
        assert exact(name, case_named("disjoint")).num_accepted == 0


def test_duo_drafts_several_sequences_and_goes_on_with_other_ones_than_the_likeliest() -> None:
    witness = exact("duo", case_named("deep, branches taken"))
    assert witness.widest > 1
    assert witness.longest > 1
    assert witness.num_branches_taken > 20
    assert exact("duo", case_named("wide")).widest > 2
    pearl: Witness = exact("pearl", case_named("deep, branches taken"))
    assert pearl.widest == 1
    assert pearl.num_branches_taken == 0


# --- the rejection rule over several children (2305.09781)

P = distribution(0.5, 0.25, 0.125, 0.125)
SIBLING_DISTRIBUTIONS = [
    (distribution(0.25, 0.25, 0.25, 0.25),) * 2,
    (distribution(0.25, 0.25, 0.25, 0.25),) * 3,
    (distribution(0.125, 0.125, 0.25, 0.5), distribution(0.0, 0.75, 0.25, 0.0)),
    (
        distribution(0.0, 0.0, 0.0, 1.0),
        distribution(0.0, 0.0, 0.5, 0.5),
        distribution(0.5, 0.5, 0.0, 0.0),
    ),
    (P, distribution(0.25, 0.25, 0.25, 0.25)),
    (),
]


@pytest.mark.parametrize("distributions", SIBLING_DISTRIBUTIONS, ids=len)
def test_siblings_drawn_independently_leave_the_distribution(distributions) -> None:
    assert_siblings_exact(P, independent_siblings(*distributions))
    assert_siblings_exact(distribution(0.0, 0.0, 0.5, 0.5), independent_siblings(*distributions))


@pytest.mark.parametrize("num_siblings", [1, 2, 3, 4])
def test_siblings_drawn_without_replacement_leave_the_distribution(num_siblings: int) -> None:
    q = distribution(0.125, 0.125, 0.25, 0.5)
    assert_siblings_exact(P, distinct_siblings(q, num_siblings))
    assert_siblings_exact(q, distinct_siblings(q, num_siblings))


# --- the rejection rule with the dice it has outside of tests


class LogTable(TableModel):
    """The distributions of a `DistributionTable` as logits."""

    def __init__(self, table: DistributionTable) -> None:
        super().__init__(num_vocab=table.num_vocab)
        object.__setattr__(self, "table", table)

    def logits(self, context: Context) -> Row:
        with np.errstate(divide="ignore"):
            return np.log(self.table.logits(context))


def test_rejection_with_keyed_dice_follows_the_distribution_over_seeds() -> None:
    """Chance was thrown once, in the choice of the seeds: alpha 1e-6, the same each run."""
    case, num_seeds, num_tokens = FULL_SUPPORT, 3000, 3
    target, drafter = TableTarget(LogTable(case.target)), InlineDrafter(LogTable(case.draft).load())
    counts: Counter[tuple[int, ...]] = Counter()
    num_refused = 0
    for seed in range(num_seeds):
        session = Session(
            target=target,
            prompt=case.prompt,
            capacity=len(case.prompt) + num_tokens,
            drafter=drafter,
            sampler=Sampler(SamplingParams(temperature=1.0, seed=seed)),
        )
        rounds = list(decode_rounds(method("sps-rejection"), session))
        num_refused += sum(done.num_accepted < done.num_scored for done in rounds)
        counts[tuple(session.text[len(case.prompt) :].tolist())] += 1
    wanted = case.target.product_distribution(case.prompt, num_tokens)
    assert num_refused > 100
    assert set(counts) <= set(wanted)
    chi_square = sum(
        (counts[tokens] - num_seeds * p) ** 2 / (num_seeds * p) for tokens, p in wanted.items()
    )
    assert chi_square < chi_square_limit(len(wanted) - 1)


# --- the enumerator itself


def test_every_outcome_is_visited_once_with_its_probability() -> None:
    def run(dice):
        first = dice.choice([0.5, 0.0, 0.25, 0.25])
        return (first, dice.choice([0.75, 0.25])) if first != 2 else (first,)

    found = list(outcomes(run))
    assert sorted(found, key=lambda pair: pair[1]) == [
        (0.375, (0, 0)),
        (0.125, (0, 1)),
        (0.25, (2,)),
        (0.1875, (3, 0)),
        (0.0625, (3, 1)),
    ]


def test_a_position_is_thrown_once() -> None:
    found = distribution_of(lambda dice: (dice.cell(4, 2), dice.cell(5, 2), dice.cell(4, 2)))
    assert found == {(a, b, a): 0.25 for a in (0, 1) for b in (0, 1)}


def test_product_distributions_sum_to_one() -> None:
    for case in ALL_CASES:
        for table in (case.target, case.draft):
            total = math.fsum(table.product_distribution(case.prompt, 3).values())
            assert total == pytest.approx(1, abs=1e-12)

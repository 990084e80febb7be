"""The loops: nobody waits who need not, and whatever the drafter does, the text is the target's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from fakes.decoding import (
    PROMPT,
    CountingModel,
    DyingDrafter,
    FakeClock,
    FixedBudget,
    LoggedDrafter,
    LoggedTarget,
    Session,
    SlowDrafter,
    StrictTarget,
    assert_decodes_like_ar,
    assert_perfect_drafts_are_kept,
    decode,
    decode_rounds,
    known_texts,
    plain_text,
    proven,
)
from fakes.targets import Chains
from hypothesis import given
from hypothesis import strategies as st

from duodec.core.draft import Draft
from duodec.core.drafters import Drafter, DraftRequest
from duodec.core.round import Round, Stats
from duodec.core.sampling.sampler import Context, Sampler, SamplingParams
from duodec.core.targets import Query, Scores
from duodec.core.traits import TargetTraits, Widths
from duodec.drafting import plans
from duodec.drafting.growth import Tree
from duodec.drafting.plans import MAX_SEQUENCES, Chain, SampledChain, Sequences
from duodec.errors import BadOption
from duodec.methods.lookup import continuation
from duodec.methods.registry import METHODS, method
from duodec.methods.request import Forward, NoDrafter, Wait
from duodec.methods.stream import inferred_plain_s
from duodec.planning.costs import Costs
from duodec.planning.governor import Governor, Sources
from duodec.testing import InlineDrafter, TableModel, TableTarget

KEYED = [name for name in METHODS if name != "sps-rejection"]
KEYED += ["duo:5", "pearl:5", "recycling:7", "lookup:4:1", "sps:5:0.5"]
DRAFTED = [name for name in METHODS if METHODS[name]().needs_draft_model]
LEARNING = [name for name in KEYED if method(name).learns]
CHAINS_ONLY = [name for name in DRAFTED if name != "stream"]  # which has free candidates too
OVERLAPPED = ["pearl", "duo"]
CHAINED = ["sps", "pearl", "duo"]

TARGET = TableModel(seed=7)
DRAFT = replace(TARGET, noise=0.4)
WARM = SamplingParams(temperature=0.8, seed=5)


# --- one seed, one text


@pytest.mark.parametrize("temperature", [0.0, pytest.param(0.7, marks=pytest.mark.slow), 1.2])
@pytest.mark.parametrize("name", KEYED)
def test_the_text_is_plain_decodings(name: str, temperature: float) -> None:
    for seed, draft_noise in enumerate([0.0, 0.3, 1.0]):
        params = SamplingParams(temperature=temperature, top_p=0.95, seed=seed)
        rounds = assert_decodes_like_ar(name, params, draft_noise=draft_noise)
        if draft_noise == 0 and method(name).needs_draft_model:
            assert sum(done.num_accepted for done in rounds) > 0


@pytest.mark.parametrize("name", KEYED)
def test_the_text_is_plain_decodings_under_penalties(name: str) -> None:
    params = SamplingParams(
        temperature=0.9, repetition_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.3, seed=2
    )
    assert_decodes_like_ar(name, params, draft_noise=0.2)


DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "nothing seen, nothing waited for": lambda: SlowDrafter(DRAFT.load(), 0, 0),
    "nothing seen, a step waited for": lambda: SlowDrafter(DRAFT.load(), 0, 1),
    "nothing seen, all waited for": lambda: SlowDrafter(DRAFT.load(), 0, 99),
    "a step seen, two waited for": lambda: SlowDrafter(DRAFT.load(), 1, 2),
    "two steps seen, no more waited for": lambda: SlowDrafter(DRAFT.load(), 2, 2),
    "dead before its first word": lambda: DyingDrafter(DRAFT.load(), 0),
    "dies after a few answers": lambda: DyingDrafter(DRAFT.load(), 5),
    "none": NoDrafter,
}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", [name for name in DRAFTED if name in KEYED])
def test_a_slow_or_dead_drafter_changes_no_text(name: str, drafter: str) -> None:
    found, _ = decode(name, target=TableTarget(TARGET), drafter=DRAFTERS[drafter](), params=WARM)
    assert found == plain_text(TARGET, WARM)


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", [*(name for name in DRAFTED if name in KEYED), "auto"])
def test_nor_does_one_that_takes_turns_with_the_target(name: str, drafter: str) -> None:
    session = Session(
        target=TableTarget(TARGET),
        prompt=PROMPT,
        capacity=len(PROMPT) + 40,
        drafter=DRAFTERS[drafter](),
        sampler=Sampler(WARM, 0, len(PROMPT)),
        costs=FixedBudget(6),
        shares_cores=True,
        takes_turns=True,
    )
    for _ in decode_rounds(method(name), session):
        pass
    assert session.text[len(PROMPT) :].tolist() == plain_text(TARGET, WARM)


@pytest.mark.parametrize("name", CHAINS_ONLY)
def test_a_drafter_with_nothing_to_say_leaves_plain_decoding(name: str) -> None:
    _, rounds = decode(
        name, target=TableTarget(TARGET), drafter=SlowDrafter(DRAFT.load()), params=WARM
    )
    assert all(done.num_scored == done.num_drafted == done.num_accepted == 0 for done in rounds)
    assert len(rounds) == 40


@pytest.mark.parametrize("name", METHODS)
def test_the_text_fills_its_capacity_and_never_exceeds_it(name: str) -> None:
    for num_tokens in range(12):
        target = StrictTarget(TARGET, capacity=len(PROMPT) + num_tokens)
        drafter = InlineDrafter(TARGET.load())
        found, rounds = decode(
            name, target=target, drafter=drafter, params=WARM, num_tokens=num_tokens
        )
        assert len(found) == sum(len(done.tokens) for done in rounds) == num_tokens
        if name != "sps-rejection":
            assert found == plain_text(TARGET, WARM, num_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("name", LEARNING)
def test_nor_does_one_where_earlier_completions_are_remembered(name: str, drafter: str) -> None:
    """Another prompt, then the same one twice, over one memory: rows and texts are proposed that
    earlier completions taught, while the drafter is as it is."""
    learned, num_rounds = method(name), []
    for prompt in (PROMPT[1:], PROMPT, PROMPT):
        session = Session(
            target=TableTarget(TARGET),
            prompt=prompt,
            capacity=len(prompt) + 40,
            drafter=DRAFTERS[drafter](),
            sampler=Sampler(WARM, 0, len(prompt)),
            costs=FixedBudget(6),
        )
        rounds = list(decode_rounds(learned, session))
        assert session.text[len(prompt) :].tolist() == plain_text(TARGET, WARM, 40, prompt)
        num_rounds.append(len(rounds))
    if name != "auto":  # which may find that this does not pay here
        assert sum(done.num_accepted for done in rounds) > 5
        assert num_rounds[2] < num_rounds[1]


# --- who waits for whom


def logged(name: str, *, shares_cores: bool = False, num_tokens: int = 30) -> list[str]:
    """Who was asked what, with a line for each round."""
    log: list[str] = []
    session = Session(
        target=LoggedTarget(TARGET, log),
        prompt=PROMPT,
        capacity=len(PROMPT) + num_tokens,
        drafter=LoggedDrafter(DRAFT.load(), log),
        sampler=Sampler(WARM),
        costs=FixedBudget(6),
        shares_cores=shares_cores,
    )
    log.extend(f"round {done.num_scored}" for done in decode_rounds(method(name), session))
    return log


@pytest.mark.parametrize("name", METHODS)
def test_the_first_forward_waits_for_no_draft(name: str) -> None:
    log = logged(name)
    first = log.index("round 0")
    assert "wait" not in log[:first]
    assert "score 0" in log[:first]
    reads = {"pearl": "submit 1", "duo": "submit 1", "stream": f"submit {Tree().num_tokens}"}
    if name in DRAFTED or name == "ar":
        assert log[0] == reads.get(name, "submit 0")


@pytest.mark.parametrize("name", METHODS)
def test_a_round_is_given_out_as_soon_as_it_is_drawn(name: str) -> None:
    log = logged(name)
    for i, line in enumerate(log):
        if line.startswith("round"):
            since = log[len(log[:i]) - log[:i][::-1].index(f"score {line[6:]}") : i]
            assert "wait" not in since
            assert not any(event.startswith("score") for event in since)
            assert sum(event.startswith("submit") for event in since) <= 1, "the next one, at once"


@pytest.mark.parametrize("name", METHODS)
def test_on_shared_cores_the_drafter_starts_after_the_first_token(name: str) -> None:
    log = logged(name, shares_cores=True)
    assert log[0] == "score 0"
    assert (name in (*DRAFTED, "auto")) == any(line.startswith("submit") for line in log)


@pytest.mark.parametrize("name", OVERLAPPED)
def test_overlapped_methods_draft_while_the_target_scores(name: str) -> None:
    log = [line for line in logged(name) if not line.startswith("round")]
    for i, line in enumerate(log[: len(log) // 2]):  # at the end there is nothing left to draft
        if line.startswith("score"):
            assert log[i - 1].startswith("submit")
            assert log[i + 1] == "look"


def test_a_draft_is_waited_for_with_patience_and_no_more() -> None:
    costs = Costs()
    costs.observe_draft(10, 0.1)
    session = Session(TableTarget(TARGET), PROMPT, len(PROMPT) + 9, costs=costs)
    need = next(session.collect(Chain(4)))
    assert need == Wait(pytest.approx(3 * 4 * 0.01))


# --- what is in flight


@pytest.mark.parametrize("name", OVERLAPPED)
def test_a_refusal_leaves_nothing_in_flight(name: str) -> None:
    """The pre-verify step: an empty chain, one token."""
    rounds = assert_decodes_like_ar(name, WARM, draft_noise=0.4, num_tokens=80)
    num_refused = 0
    for done, after in pairwise(rounds):
        if done.num_accepted < done.num_scored:
            num_refused += 1
            assert after.num_scored == 0
    assert num_refused > 3


@pytest.mark.parametrize("name", CHAINED)
def test_perfect_drafts_are_kept(name: str) -> None:
    assert_perfect_drafts_are_kept(name)


def test_a_chain_accepted_whole_is_followed_by_the_one_drafted_meanwhile() -> None:
    _, rounds = decode(
        "pearl", target=TableTarget(TARGET), drafter=InlineDrafter(TARGET.load()), params=WARM
    )
    # budgets 1, 6, 6, ...: the first token of each chain is drawn with the chain before
    assert [done.num_scored for done in rounds[:6]] == [0, 0, 5, 5, 5, 5]
    assert [len(done.tokens) for done in rounds[:6]] == [1, 1, 6, 6, 6, 6]
    assert [done.num_accepted for done in rounds[:4]] == [1, 1, 6, 6]
    assert all(done.num_accepted <= len(done.tokens) for done in rounds)


@pytest.mark.parametrize("name", OVERLAPPED)
def test_the_target_waits_for_no_draft_in_flight(name: str) -> None:
    """What has been drafted when the forward ends is taken, if it is less than was asked for."""
    drafter = SlowDrafter(TARGET.load(), 3, 99)
    _, rounds = decode(name, target=TableTarget(TARGET), drafter=drafter, params=WARM)
    assert max(done.num_scored for done in rounds) == 2


@pytest.mark.parametrize("name", OVERLAPPED)
def test_a_draft_that_was_right_to_its_last_token_is_waited_for(name: str) -> None:
    """One step is seen, and it is right: without its rest there would be nothing in flight."""
    drafter = SlowDrafter(TARGET.load(), 1, 99)
    _, rounds = decode(name, target=TableTarget(TARGET), drafter=drafter, params=WARM)
    assert max(done.num_scored for done in rounds) == 5


@pytest.mark.parametrize("name", OVERLAPPED)
def test_budgets_are_kept_and_the_first_is_one_token(name: str) -> None:
    for budget in (1, 2, 5, 13):
        drafter = LoggedDrafter(TARGET.load())
        _, rounds = decode(
            name, target=TableTarget(TARGET), drafter=drafter, params=WARM, budget=budget
        )
        asked = [request.plan.num_tokens for request in drafter.requests]
        assert asked[0] == 1
        assert max(asked[1:]) == budget
        length = len(PROMPT)
        capacity = length + 40
        for done, request in zip(rounds, drafter.requests, strict=False):
            # what was in flight is judged, and of what was drafted meanwhile the rest goes on
            assert done.num_drafted <= done.num_scored + request.plan.num_tokens
            assert len(request.text) == length + done.num_scored
            assert len(request.text) + request.plan.num_tokens < capacity
            length += len(done.tokens)


@pytest.mark.parametrize("name", OVERLAPPED)
def test_a_budget_that_is_given_is_kept_whatever_is_measured(name: str) -> None:
    drafter = LoggedDrafter(TARGET.load())
    decode(f"{name}:9", target=TableTarget(TARGET), drafter=drafter, params=WARM, budget=3)
    asked = [request.plan.num_tokens for request in drafter.requests]
    assert asked[0] == 1
    assert max(asked[1:]) == 9


def test_pearl_is_duo_with_one_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    def rounds_of(name: str) -> list[Round]:
        drafter = InlineDrafter(replace(TARGET, noise=0.8).load())
        _, rounds = decode(name, target=TableTarget(TARGET), drafter=drafter, params=WARM)
        return [replace(done, start_s=0.0, end_s=0.0, overlap_s=0.0) for done in rounds]

    chains, several = rounds_of("pearl:9"), rounds_of("duo:9")
    assert max(done.num_sequences for done in chains) == 1
    assert max(done.num_sequences for done in several) > 1
    monkeypatch.setattr(plans, "MAX_SEQUENCES", 1)
    assert rounds_of("duo:9") == chains != several


def test_a_round_says_how_many_sequences_were_drafted_in_parallel() -> None:
    drafter = LoggedDrafter(replace(TARGET, noise=0.8).load())
    _, rounds = decode("duo", target=TableTarget(TARGET), drafter=drafter, params=WARM, budget=12)
    tips = [len(set(range(len(d.draft))) - set(d.draft.parents)) for d in drafter.made]
    assert [n for done in rounds if (n := done.num_sequences)] == tips
    assert max(tips) > 2
    counted = Stats(len(PROMPT), tuple(rounds), 0.0, 1.0, 2.0).sequence_histogram
    assert counted == [tips.count(n) for n in range(1, max(tips) + 1)]
    _, serial = decode("sps", target=TableTarget(TARGET), drafter=InlineDrafter(DRAFT.load()))
    assert Stats(len(PROMPT), tuple(serial), 0.0, 1.0, 2.0).sequence_histogram == []


def test_sps_drafts_no_more_than_can_be_used() -> None:
    drafter = LoggedDrafter(TARGET.load())
    decode("sps", target=TableTarget(TARGET), drafter=drafter, params=WARM, num_tokens=8)
    assert [request.plan for request in drafter.requests] == [Chain(0), Chain(4), Chain(1)]


# --- the records


@pytest.mark.parametrize("name", METHODS)
def test_statistics_add_up(name: str) -> None:
    tokens, rounds = decode(
        name, target=TableTarget(TARGET), drafter=InlineDrafter(DRAFT.load()), params=WARM
    )
    stats = Stats(len(PROMPT), tuple(rounds), 1.0, 2.0, 6.0)
    assert [token for done in rounds for token in done.tokens] == tokens
    assert stats.num_new_tokens == len(tokens) == 40
    assert stats.num_accepted_tokens == sum(done.num_accepted for done in rounds)
    assert stats.num_accepted_tokens <= stats.num_new_tokens
    assert stats.num_accepted_tokens <= stats.num_draft_tokens
    assert stats.mean_accepted == pytest.approx(40 / len(rounds))
    histogram = stats.acceptance_histogram
    assert sum(histogram) == len(rounds)
    assert sum(n * count for n, count in enumerate(histogram)) == stats.num_accepted_tokens
    assert stats.ttft_s == 1
    assert stats.decode_s == 4
    assert stats.tokens_per_second == pytest.approx((40 - len(rounds[0].tokens)) / 4)
    assert 0 <= stats.overlap <= 1
    for done in rounds:
        assert 0 <= done.num_accepted <= len(done.tokens)
        assert done.num_accepted <= done.num_scored + 1
        assert len(done.tokens) <= done.num_scored + 1
        assert done.margin >= 0
        assert done.end_s >= done.start_s
    if name == "ar":
        assert histogram == [40]
        assert stats.mean_accepted == 1


@pytest.mark.parametrize("name", METHODS)
def test_no_more_is_accepted_than_was_drafted(name: str) -> None:
    """In all and in every round: a draft token counts in the round that judges it, and once."""
    for seed, draft_noise in enumerate([0.0, 0.2, 0.5, 1.0]):
        for budget in (1, 6):
            model = CountingModel(replace(TARGET, noise=draft_noise))
            drafter = LoggedDrafter(model)
            _, rounds = decode(
                name,
                target=TableTarget(TARGET),
                drafter=drafter,
                params=SamplingParams(temperature=0.8, seed=seed),
                budget=budget,
            )
            for done in rounds:
                assert done.num_accepted <= done.num_drafted
            stats = Stats(len(PROMPT), tuple(rounds), 0.0, 1.0, 2.0)
            assert stats.num_accepted_tokens <= stats.num_draft_tokens
            if name in CHAINED:
                made = sum(len(drafted.draft) for drafted in drafter.made)
                assert stats.num_draft_tokens <= made
            if name == "ar":
                assert stats.num_draft_tokens == 0


def test_times_are_those_of_the_sessions_clock() -> None:
    clock = FakeClock()
    target = LoggedTarget(TARGET, clock=clock)
    _, rounds = decode("ar", target=target, params=WARM, num_tokens=3, clock=clock)
    assert [(done.start_s, done.end_s) for done in rounds] == [(100, 101), (101, 102), (102, 103)]
    stats = Stats(len(PROMPT), tuple(rounds), 99.5, 101.0, 103.0)
    assert stats.median_forward_s == 1
    assert stats.median_gap_s == 0
    assert stats.ttft_s == 1.5


def test_statistics_of_nothing_are_no_numbers() -> None:
    stats = Stats(3, (), 0.0, 0.0, 0.0)
    assert math.isnan(stats.mean_accepted)
    assert math.isnan(stats.tokens_per_second)
    assert stats.acceptance_histogram == []
    assert stats.overlap == 0


def test_near_ties_are_counted() -> None:
    rounds = tuple(Round((1,), 0, 0, 0, margin, 0.0, 1.0) for margin in (1e-4, 0.5, 9e-4))
    assert Stats(1, rounds, 0.0, 1.0, 2.0).num_near_ties == 2


def test_the_session_learns_what_things_cost() -> None:
    clock = FakeClock()
    costs = Costs()
    target = LoggedTarget(TARGET, clock=clock)
    session = Session(target, PROMPT, len(PROMPT) + 4, costs=costs, clock=clock)
    list(decode_rounds(method("ar"), session))
    assert costs.budget() == 4  # nothing is known of drafts
    costs.observe_draft(10, 1.0)
    assert costs.budget() == 10  # forwards of a second, tokens of a tenth
    costs.observe_draft(1, 60.0)
    costs.observe_draft(1, 60.0)
    assert costs.budget() == 1
    assert costs.draft_s(2) == 120


# --- plans


def table_likelihoods(model: TableModel, text: list[int]) -> np.ndarray:
    logits = model.logits(Context(np.array(text, dtype=np.int32))).astype(np.float64)
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def best(model: TableModel, text: list[int]) -> int:
    return int(table_likelihoods(model, text).argmax())


@pytest.mark.parametrize("budget", range(1, 31))
def test_sequences_follow_the_uncertainty_rule_at_any_budget(budget: int) -> None:
    """2503.00784: a sequence for every first token likelier than the best two-token path."""
    seen = set()
    for seed in range(25):
        spread = (0.0, 0.5, 0.8)[seed % 3]  # blending two tables makes flatter distributions
        model = TableModel(num_vocab=24, seed=seed, noise=spread)
        text = [1, 2, seed % 24]
        q = table_likelihoods(model, text)
        first = int(q.argmax())
        theta = q[first] * table_likelihoods(model, [*text, first]).max()
        others = [t for t in np.argsort(-q, kind="stable").tolist() if t != first and q[t] > theta]
        openings = [first, *others][: min(MAX_SEQUENCES, budget)]
        wanted = []
        for opening in openings:
            sequence = [opening]
            while len(sequence) < budget // len(openings):
                sequence.append(best(model, [*text, *sequence]))
            wanted.append(tuple(sequence))

        tree = grown(Sequences(budget), model, text)
        leaves = [node for node in range(len(tree)) if node not in tree.parents]
        found = [tuple(tree.path_tokens(leaf)) for leaf in leaves]
        assert set(found) == set(wanted)
        assert len(tree) == len(openings) * (budget // len(openings)) <= budget
        assert [tree.tokens[node] for node in tree.children(-1)] == openings
        seen.add(len(openings))
    assert len(seen) > min(budget, 3) - 1


def grown(plan, model: TableModel, text: list[int], params: SamplingParams | None = None) -> Draft:
    tree = Draft()
    for tree in plan.grow(model.load(), request(plan, text, params)):  # noqa: B007
        pass
    return tree


def request(plan, text: list[int], params: SamplingParams | None = None) -> DraftRequest:
    return DraftRequest(
        0, np.array(text, dtype=np.int32), plan, Sampler(params or SamplingParams())
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("budget", [1, 2, 3, 7, 16, 30])
@pytest.mark.parametrize("plan_type", [Chain, SampledChain, Sequences])
def test_a_step_is_one_batched_forward(plan_type, budget: int, temperature: float) -> None:
    for seed in range(8):
        model = CountingModel(TableModel(num_vocab=16, seed=seed, noise=0.5))
        plan = plan_type(budget)
        params = SamplingParams(temperature=temperature, seed=seed)
        sizes = [0]
        for steps, tree in enumerate(plan.grow(model, request(plan, [1, 2, 3], params)), 1):
            assert len(model.queries) == steps
            sizes.append(len(tree))
        num_leaves = max(1, sum(node not in tree.parents for node in range(len(tree))))
        assert all(0 < b - a <= num_leaves for a, b in pairwise(sizes)) or (
            plan_type is Sequences  # the second forward may show that breadth takes it all
            and sizes[1] == sizes[2] == 1
        )
        assert len(tree) <= budget
        depth = max(len(tree.path(node)) for node in range(len(tree)))
        # the likeliest sequence is a step ahead of the others
        assert len(model.queries) <= depth + 1
        for query in model.queries:
            assert len(query.rows) == len(set(query.rows)) <= num_leaves


def test_drafts_grow_and_never_change_what_was_sent() -> None:
    for seed in range(10):
        model = TableModel(num_vocab=16, seed=seed, noise=0.5)
        plan = Sequences(20)
        before = Draft()
        for tree in plan.grow(model.load(), request(plan, [1, 2, 3])):
            assert tree.tokens[: len(before)] == before.tokens
            assert tree.parents[: len(before)] == before.parents
            before = tree


def test_plans_of_no_tokens_draft_nothing() -> None:
    model = CountingModel(TARGET)
    for plan in (Chain(0), Sequences(0), SampledChain(0)):
        assert list(plan.grow(model, request(plan, [1, 2]))) == []
    # a chain of none reads the text
    assert [query.rows for query in model.queries] == [()]


def test_sampled_chains_come_with_their_distributions() -> None:
    tree = grown(SampledChain(5), TARGET, [1, 2], SamplingParams(temperature=1.0, top_p=0.9))
    assert len(tree) == len(tree.distributions) == 5
    assert all(
        distribution.prob(token) > 0
        for distribution, token in zip(tree.distributions, tree.tokens, strict=True)
    )


# --- n-grams


def naive_continuation(text: list[int], max_ngram: int, num_tokens: int) -> list[int]:
    for n in range(max_ngram, 0, -1):
        for start in range(len(text) - n):
            if n < len(text) and text[start : start + n] == text[-n:]:
                return text[start + n : start + n + num_tokens]
    return []


@proven
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 5), st.integers(0, 8))
def test_lookup_takes_what_followed_the_first_longest_match(text, max_ngram, num_tokens) -> None:
    found = continuation(np.array(text, dtype=np.int32), max_ngram, num_tokens)
    assert found == naive_continuation(text, max_ngram, num_tokens)


def test_lookup_accepts_what_repeats() -> None:
    model = TableModel(num_vocab=6, order=1, seed=3)  # greedy text of order 1 runs in circles
    found, rounds = decode("lookup", target=StrictTarget(model), num_tokens=60, prompt=(1, 2))
    assert found == plain_text(model, SamplingParams(), 60, (1, 2))
    assert max(done.num_accepted for done in rounds) == 10


# --- the registry


def test_an_unknown_method_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(BadOption, match=r"unknown method 'perl' \(did you mean pearl\?\)") as error:
        method("perl")
    assert all(name in str(error.value) for name in METHODS)


@pytest.mark.parametrize("name", ["lookahead", "recycling", "rest", "sps", "pearl", "duo", "auto"])
def test_only_what_was_scored_is_counted_as_scored(name: str) -> None:
    """A target that cuts chains scores fewer draft tokens than it is sent."""
    model, num_rows = TableModel(seed=7), list[int]()

    class Counted(Chains):
        def score(self, queries: Sequence[Query]) -> list[Scores]:
            scores = super().score(queries)
            num_rows.extend(own.num_rows for own in scores)
            return scores

    target = Counted(TableTarget(model))
    drafter = InlineDrafter(replace(model, noise=0.3).load())
    _, rounds = decode(name, target=target, drafter=drafter, datastore=known_texts(model))
    assert [done.num_scored + 1 for done in rounds] == num_rows
    assert sum(done.num_scored for done in rounds) > 0
    if name in ("lookahead", "recycling"):
        assert target.num_branches_left_out > 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_chain_ends_after_a_token_that_its_draft_model_doubts(temperature: float) -> None:
    model = TableModel(seed=7)
    drafter = InlineDrafter(replace(model, noise=0.3).load())
    drafted = {}
    for name in ("sps:6", "sps:6:0.5", "sps:6:1"):
        params = SamplingParams(temperature=temperature, seed=1)
        found, rounds = decode(name, target=TableTarget(model), drafter=drafter, params=params)
        assert found == plain_text(model, params, len(found))
        drafted[name] = [done.num_drafted for done in rounds[1:-6]]  # then little is left
    assert set(drafted["sps:6"]) == {6}
    assert set(drafted["sps:6:1"]) == {1}
    assert 1 < sum(drafted["sps:6:0.5"]) / len(drafted["sps:6:0.5"]) < 6


@pytest.mark.parametrize(("num_rows", "num_inferred"), [(1, 0), (6, 0), (8, 1)])
def test_what_plain_decoding_takes_is_inferred_where_drafts_fill_padding(
    num_rows: int, num_inferred: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where they take rows of their own."""
    inferred = list[float]()
    monkeypatch.setattr(Governor, "infer_plain", lambda _, seconds: inferred.append(seconds))

    class Padded(Chains):
        traits = TargetTraits(has_branches=False, widths=Widths.only(num_rows))

    model = TableModel(seed=7)
    drafter = InlineDrafter(replace(model, noise=0.3).load())
    target = Padded(TableTarget(model))
    found, rounds = decode("auto", target=target, drafter=drafter, datastore=known_texts(model))
    assert found == plain_text(model, SamplingParams(), len(found))
    drafted = [done for done in rounds[1:] if done.num_drafted]
    wanted = [done.end_s - done.start_s for done in drafted if done.num_drafted < num_rows]
    assert inferred == wanted
    assert len(drafted) > len(wanted) == num_inferred


@pytest.mark.parametrize(
    ("takes_turns", "shares_cores", "plain_length", "expected_s"),
    [
        (True, False, 0, 0.02),  # on a device, where nothing computes beside it
        (True, True, 0, None),  # on cores, which others may use, too
        (False, False, 0, None),  # a draft model computes beside it
        (True, False, 9000, None),  # measured in a text of another length
    ],
)
def test_what_plain_decoding_takes_follows_from_a_pass_with_a_draft_on_a_device(
    takes_turns: bool, shares_cores: bool, plain_length: int, expected_s: float | None
) -> None:
    costs = Costs()
    costs.teach_rows({1: 0.01, 2: 0.012, 4: 0.015})
    request = SimpleNamespace(
        takes_turns=takes_turns, shares_cores=shares_cores, costs=costs,
        text=np.zeros(100, dtype=np.int32), traits=TargetTraits(has_branches=False),
    )  # fmt: skip
    governor = Governor([Sources.ALL], plain_length=plain_length)
    forward = Forward(cast(Any, None), 1.0, 1.03)  # the text is longer: twice as slow as measured
    found = inferred_plain_s(Draft.chain([1, 2, 3]), forward, cast(Any, request), governor)
    assert found == (None if expected_s is None else pytest.approx(expected_s))


def test_a_round_that_drafts_nothing_is_no_draft_in_padding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inferred = list[float]()
    monkeypatch.setattr(Governor, "infer_plain", lambda _, seconds: inferred.append(seconds))
    model = TableModel(num_vocab=4096, seed=7)  # nothing comes twice
    params = SamplingParams(temperature=1.5, seed=1)
    _, rounds = decode(
        "auto", target=TableTarget(model), params=params, datastore=known_texts(model)
    )
    assert len(rounds) > 4
    assert not any(done.num_drafted for done in rounds)
    assert not inferred

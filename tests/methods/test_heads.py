"""A target's own heads: what they propose is one more source, and changes speed alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import pytest
from fakes.decoding import (
    PROMPT,
    DyingDrafter,
    FixedBudget,
    Letters,
    Session,
    decode_rounds,
    plain_text,
)
from fakes.masks import MaskedModel

from duodec.backends.drafter.channel import Kind, Progress
from duodec.backends.drafter.requests import _Received
from duodec.core.candidates import CandidateTree
from duodec.core.draft import ROOT, Draft
from duodec.core.drafters import DraftModel, DraftRequest
from duodec.core.round import Round
from duodec.core.sampling.sampler import Context, Sampler, SamplingParams
from duodec.core.targets import HeadPlan, Proposed, Query, Scores
from duodec.core.traits import DraftTraits
from duodec.core.turns import InTurns
from duodec.core.verify import verify
from duodec.drafting.growth import Tree
from duodec.drafting.heads import Likeliest, Ranks
from duodec.errors import BadOption
from duodec.llm import LLM
from duodec.methods.medusa import TREE
from duodec.methods.mtp import MultiTokenPrediction
from duodec.methods.registry import METHODS, method
from duodec.planning.acceptance import Acceptance
from duodec.planning.costs import Costs
from duodec.planning.governor import Governor, Sources
from duodec.planning.planner import Planner, best_width
from duodec.testing import InlineDrafter
from duodec.testing.tables import NUM_HEADS, TableHeads, TableModel, TableScores, TableTarget

MODEL = TableModel(num_vocab=30, seed=9)
HEADS = replace(MODEL, noise=0.3)
GREEDY, WARM = SamplingParams(), SamplingParams(temperature=0.8, seed=4)
OF_HEADS = [name for name, kind in METHODS.items() if kind.needs_heads]
TEXT = np.array(PROMPT, np.int32)


def target_for(name: str, heads: TableModel = HEADS) -> TableTarget:
    if issubclass(METHODS[name], MultiTokenPrediction) and heads is HEADS:
        heads = replace(HEADS, noise=0.2)  # a chain has no second chance
    return TableTarget(MODEL, heads=heads, kind_of_heads=METHODS[name].needs_heads or "medusa")


def decoded(name: str, params: SamplingParams, **options: object) -> list[Round]:
    session = Session(
        target=options.pop("target", target_for(name)),
        prompt=PROMPT,
        capacity=len(PROMPT) + 40,
        sampler=Sampler(params, 0, len(PROMPT)),
        costs=FixedBudget(6),
        **options,
    )
    rounds = list(decode_rounds(method(name), session))
    assert session.text[len(PROMPT) :].tolist() == plain_text(MODEL, params, 40)
    return rounds


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("name", [*OF_HEADS, "auto", "stream"])
def test_good_heads_make_few_rounds_of_the_same_text(name: str, params: SamplingParams) -> None:
    rounds = decoded(name, params, drafter=DyingDrafter(MODEL.load(), 0))
    assert len(rounds) < 25
    assert sum(done.num_from_model for done in rounds) > 10


@pytest.mark.parametrize("num_answers", [0, 1, 5])
@pytest.mark.parametrize("name", [*OF_HEADS, "auto", "stream"])
def test_a_drafter_that_dies_changes_no_text(name: str, num_answers: int) -> None:
    decoded(name, WARM, drafter=DyingDrafter(HEADS.load(), num_answers))


@pytest.mark.parametrize("name", [*OF_HEADS, "auto"])
def test_wrong_heads_cost_speed_alone(name: str) -> None:
    rounds = decoded(name, WARM, target=target_for(name, TableModel(num_vocab=30, seed=1)))
    assert sum(done.num_from_model for done in rounds) < len(rounds)


@pytest.mark.parametrize("name", [*OF_HEADS, "auto"])
def test_three_requests_draft_with_heads_at_once(name: str) -> None:
    prompts = [[1, 2, 3], [4, 5], [6, 7, 8, 9]]
    model, heads = (replace(table, num_vocab=28) for table in (MODEL, HEADS))
    kind = METHODS[name].needs_heads or "medusa"
    llm = LLM(TableTarget(model, heads=heads, kind_of_heads=kind), Letters(), 200, num_slots=3)
    params = replace(WARM, max_tokens=20)
    found = llm.generate(prompts, params, method=name)
    alone = [llm.generate([prompt], params, method="ar")[0] for prompt in prompts]
    assert [one.tokens for one in found] == [one.tokens for one in alone]


@pytest.mark.parametrize("name", OF_HEADS)
def test_a_method_names_the_heads_that_a_target_lacks(name: str) -> None:
    llm = LLM(TableTarget(MODEL), Letters(), 200)
    with pytest.raises(BadOption, match=f"'{name}' needs {METHODS[name].needs_heads} heads"):
        llm.method(name)
    other = LLM(TableTarget(MODEL, heads=HEADS, kind_of_heads="others"), Letters(), 200)
    with pytest.raises(BadOption, match="has others"):
        other.method(name)


# --- what is proposed


def proposed(plan: HeadPlan | None, draft: Draft | None = None) -> tuple[Scores, CandidateTree]:
    query = Query(0, TEXT, draft or Draft(), Sampler(GREEDY), heads=plan)
    (scores,) = TableTarget(MODEL, heads=HEADS).score([query])
    return scores, scores.proposed().tree


@pytest.mark.parametrize("plan", [TREE, Likeliest()], ids=["ranks", "likeliest"])
def test_heads_propose_what_follows_the_verdict(plan: HeadPlan) -> None:
    right = plain_text(MODEL, GREEDY, 3)
    for draft in (Draft(), Draft.chain(right[:2]), Draft.sequences([[29, 3], right[:1]])):
        scores, tree = proposed(plan, draft)
        heads = TableHeads(HEADS, scores.query, verify(draft, scores).tokens)
        (first,) = heads.successors(CandidateTree(), [ROOT], 4)
        found = [tree.tokens[node] for node in tree.children(ROOT)]
        assert tuple(found[:4]) == first.tokens
    assert not len(proposed(None)[1])


def test_a_tree_of_ranks_is_the_published_one() -> None:
    _, tree = proposed(TREE)
    paths: list[tuple[int, ...]] = []
    for node in range(len(tree)):
        above = () if tree.parents[node] == ROOT else paths[tree.parents[node]]
        paths.append((*above, tree.ranks[node]))
    # the release's list, as far as so many heads reach
    assert {path for path in paths if len(path) == 1} == {(rank,) for rank in range(10)}
    assert sum(TREE.widths.values()) == 63
    assert len(paths) == sum(w for path, w in TREE.widths.items() if len(path) < NUM_HEADS) == 61
    assert {(0, 0, 9), (2, 0, 0), (1, 6), (3, 1), (0, 7, 0), (9, 0)} <= set(paths)
    assert not {(3, 2), (1, 7), (3, 0, 0), (8, 1)} & set(paths)


def test_the_likeliest_tokens_are_kept_and_hang_together() -> None:
    _, whole = proposed(Likeliest(10**6, 5, 6))
    _, tree = proposed(Likeliest(20, 5, 6))

    def values(tree: CandidateTree) -> list[float]:
        known: list[float] = []
        for node, parent in enumerate(tree.parents):
            assert parent < node
            known.append(tree.confidences[node] * (1.0 if parent == ROOT else known[parent]))
        return known

    assert len(tree) == 20
    assert sorted(values(tree)) == sorted(values(whole))[-20:]
    for node in range(ROOT, len(tree)):
        children = [tree.confidences[child] for child in tree.children(node)]
        assert children == sorted(children, reverse=True)
    levels = Ranks({(): 3, (0,): 2})
    assert len(proposed(levels)[1]) == 5


# --- what they cost


def test_a_round_that_asks_heads_pays_for_them_at_every_width() -> None:
    costs = Costs()
    for width, seconds in ((0, 1.0), (0, 1.0), (1, 1.2), (1, 1.2), (1, 1.2)):
        costs.observe_forward(seconds, width)
    assert best_width([0.15], costs) == 0
    assert best_width([0.15], costs, more_s=1.0) == 1  # the row is a smaller part of the round
    assert costs.heads_s() == 0.0
    costs.observe_heads(0.25, 5)
    assert costs.heads_s() == 0.25
    assert costs.head_level_s() == 0.05
    planner = Planner(costs, Acceptance())
    assert planner.least_head == 0.0  # nothing is known of the rate of decoding yet
    planner.observe(10, 1.0)
    assert 0.0 < planner.least_head <= 0.5
    assert costs.of_another_target().heads_s() == 0.0


def test_heads_that_do_not_pay_rest() -> None:
    governor = Governor([Sources.FREE, Sources.HEADS])
    for _ in range(200):
        sources = governor.sources()
        governor.observe(sources, 1, 1.5 if sources == Sources.HEADS else 1.0)
    used = [governor.sources() for _ in range(10)]
    assert Sources.HEADS not in used
    assert governor.sources(Sources.ALL) == Sources.FREE


@dataclass(frozen=True)
class Priced(TableTarget):
    """Its heads take so many seconds of each pass."""

    seconds: float = 0.0

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        return [_Priced(self.model, q, self.seconds, heads=self.heads) for q in queries]


@dataclass(frozen=True)
class _Priced(TableScores):
    seconds: float = 0.0

    def proposed(self) -> Proposed:
        return replace(super().proposed(), seconds=self.seconds)


def test_the_time_of_heads_is_no_part_of_the_targets() -> None:
    def costs_with(seconds: float) -> Costs:
        clock, costs = count(), Costs()
        session = Session(
            target=Priced(MODEL, heads=HEADS, seconds=seconds),
            prompt=PROMPT,
            capacity=len(PROMPT) + 20,
            sampler=Sampler(GREEDY),
            costs=costs,
            clock=lambda: float(next(clock)),
        )
        list(decode_rounds(method("medusa"), session))
        assert costs.heads_s() == seconds
        return costs

    free, dear = costs_with(0.0), costs_with(0.75)
    assert dear.soonest_s(61) == free.soonest_s(61) - 0.75 > 0


# --- the draft model grows its tree from what they propose


SOWN = Tree(least_confidence=0.0, num_candidates=3, num_leaves=1)


class Asked(MaskedModel):
    """Keeps what it is asked for."""

    traits = DraftTraits()


class Unbranched(Asked):
    traits = DraftTraits(has_branches=False)


def sown(model: DraftModel, plan: Tree, *more: int, num_steps: int = 1) -> CandidateTree:
    text = np.array([*PROMPT, *more], np.int32)
    steps = plan.grow(model, DraftRequest(0, text, plan, Sampler(GREEDY)))
    tree = next(steps)
    for _ in range(num_steps):
        tree = next(steps)
    return tree


def path(tree: CandidateTree, tokens: Sequence[int]) -> int:
    node = ROOT
    for token in tokens:
        below = tree.child(node, token)
        assert below is not None
        node = below
    return node


def test_one_pass_of_the_draft_model_reads_a_whole_chain_of_theirs() -> None:
    model, right = Asked(MODEL), plain_text(MODEL, GREEDY, 6)
    plan = replace(SOWN, seed=tuple((token, 0.9) for token in right[:3]))
    tree = sown(model, plan)
    (query,) = model.queries
    assert query.draft.tokens == tuple(right[:3])
    assert query.rows == (0, 1, 2, 3)
    slowly = sown(Asked(MODEL), SOWN, num_steps=60)  # each node on its own
    for num in range(4):
        node, other = path(tree, right[:num]), path(slowly, right[:num])
        found = {tree.tokens[n]: tree.confidences[n] for n in tree.children(node)}
        assert found == {slowly.tokens[n]: slowly.confidences[n] for n in slowly.children(other)}
    assert sown(model, plan, *right[:2], num_steps=0).is_expanded(ROOT), "it is kept"
    again = replace(SOWN, seed=((right[2], 0.9),))
    model.queries.clear()
    sown(model, again, *right[:2])
    assert len(model.queries) == 1, "what is known is not computed twice"
    assert model.queries[0].rows == (2,), "the step goes on below it"


def test_the_tree_grows_on_where_heads_are_sure_and_the_draft_model_is_not() -> None:
    rows = MODEL.logits(Context(TEXT))
    unlikely = np.argsort(rows)[:2].tolist()  # the model has other candidates
    model = Asked(MODEL)
    tree = sown(model, replace(SOWN, seed=tuple((token, 1.0) for token in unlikely)), num_steps=4)
    tip = path(tree, unlikely)
    assert tree.confidences[tip] == SOWN.least_confidence, "the model does not vouch for them"
    assert tree.is_expanded(tree.children(tip)[0])
    unhinted = sown(Asked(MODEL), SOWN, num_steps=4)
    assert unhinted.child(ROOT, unlikely[0]) is None


def test_what_heads_are_sure_of_is_grown_from_in_turns_too() -> None:
    """Then the drafter is asked for one step at a time."""
    unlikely = np.argsort(MODEL.logits(Context(TEXT)))[:2].tolist()
    plan = replace(SOWN, seed=tuple((token, 1.0) for token in unlikely))
    model = Asked(MODEL)
    for _ in range(4):
        *_, tree = InTurns(plan, 1).grow(model, DraftRequest(0, TEXT, plan, Sampler(GREEDY)))
    at_once = sown(Asked(MODEL), plan, num_steps=4)
    assert list(tree.tokens) == list(at_once.tokens)
    assert len(model.queries) == 4


def test_a_draft_model_without_branches_drafts_its_own_chain() -> None:
    model = Unbranched(MODEL)
    sown(model, replace(SOWN, seed=((5, 0.9), (6, 0.9))))
    assert model.queries[0].draft == Draft()


@pytest.mark.parametrize(("depth", "num_rows"), [(0, 0), (1, 1), (2, 2), (9, 4)])
def test_a_chain_is_no_deeper_than_the_text_has_room(depth: int, num_rows: int) -> None:
    model = Asked(MODEL)
    plan = replace(SOWN, depth=depth, seed=((5, 0.9), (6, 0.9), (7, 0.9)))
    for _ in zip(range(2), plan.grow(model, DraftRequest(0, TEXT, plan, Sampler())), strict=False):
        pass
    assert sum(len(query.rows) for query in model.queries) == num_rows


def test_what_a_pass_over_a_chain_reads_is_no_measure_of_a_step() -> None:
    plan = replace(SOWN, seed=tuple((token, 0.9) for token in plain_text(MODEL, GREEDY, 6)))
    received, num_sent = _Received(1), 0
    steps = plan.grow(Asked(MODEL), DraftRequest(0, TEXT, plan, Sampler(GREEDY)))
    for number, tree in zip(range(4), steps, strict=False):
        new = slice(num_sent, None)
        parts = tree.tokens[new], tree.parents[new], None, tree.confidences[new]
        received.hear(Kind.NODES, Progress(*parts, draft_s=float(number)))
        num_sent = len(tree)
    drafted = received.drafted(0.0)
    assert drafted.tree is not None
    assert drafted.tree.num_expanded == 7 + 2
    assert drafted.step_leaves == 1.0
    assert drafted.step_s == 1.0


def test_auto_sends_the_draft_model_what_heads_propose() -> None:
    seeds: list[int] = []

    class Told(InlineDrafter):
        def submit(self, request: DraftRequest) -> None:
            plan = request.plan.plan if isinstance(request.plan, InTurns) else request.plan
            if isinstance(plan, Tree):
                seeds.append(len(plan.seed))
            super().submit(request)

    for seed in range(4, 8):  # what is drafted depends on the clock a little
        rounds = decoded("stream", replace(WARM, seed=seed), drafter=Told(HEADS.load()))
        assert len(rounds) < 25
    assert max(seeds) > 1

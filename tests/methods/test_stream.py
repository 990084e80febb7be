"""The tree that never stops: what survives a verdict, what is chosen, when drafting is left."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, cycle

import numpy as np
import pytest
from fakes.decoding import (
    PROMPT,
    CountingModel,
    FixedBudget,
    GivenSource,
    Session,
    TickingClock,
    assert_decodes_like_ar,
    decode,
    decode_rounds,
    proven,
    selected,
)
from fakes.oracles import JointMixer, grow, learn
from hypothesis import given
from hypothesis import strategies as st

from duodec.core.candidates import CandidateTree, TreeCursor
from duodec.core.draft import ROOT
from duodec.core.drafters import DraftModel, DraftRequest, RowQuery
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.traits import DraftTraits
from duodec.drafting.growth import Tree
from duodec.methods.registry import method
from duodec.planning import compiled, planner
from duodec.planning.acceptance import Acceptance
from duodec.planning.costs import Costs
from duodec.planning.governor import Governor, Sources
from duodec.planning.planner import Planner, Waits, best_width
from duodec.planning.selection import Selection
from duodec.planning.sources import TextMemory, TextSources, TreeSource
from duodec.testing import InlineDrafter, TableModel, TableTarget

MODEL = TableModel(num_vocab=24, seed=9)
GREEDY = Sampler(SamplingParams())


def text(*more: int) -> np.ndarray:
    return np.array([*PROMPT, *more], dtype=np.int32)


def grown(model: object, tokens: np.ndarray, plan: Tree, num_steps: int) -> CandidateTree:
    """The tree after so many forward passes."""
    steps = plan.grow(model, DraftRequest(0, tokens, plan, GREEDY))  # type: ignore[arg-type]
    tree = next(steps)
    for _ in range(num_steps):
        tree = next(steps, tree)
    return tree


def paths(tree: CandidateTree) -> set[tuple[int, ...]]:
    return {tuple(tree.path_tokens(node)) for node in range(len(tree))}


# --- the tree


def small() -> CandidateTree:
    """Two tokens under the root, two under the first of them, one below."""
    tree = CandidateTree()
    tree.expand(ROOT, [5, 6], [0.6, 0.3])
    tree.expand(0, [7, 8], [0.5, 0.4])
    tree.expand(2, [9], [0.9])
    return tree


def test_a_verdict_moves_the_root_and_keeps_what_is_under_it() -> None:
    tree = small()
    below = tree.follow([5])
    assert paths(below) == {(7,), (8,), (7, 9)}
    assert list(below.confidences) == [0.5, 0.4, 0.9]
    assert below.is_expanded(ROOT)
    assert below.is_expanded(0)
    assert not below.is_expanded(1)
    assert tree.follow([]) is tree
    assert len(tree.follow([5, 7, 9])) == 0  # a leaf: nothing is known below
    assert not tree.follow([5, 7, 9]).is_expanded(ROOT)
    assert len(tree.follow([4])) == 0


def test_a_mirror_is_the_same_tree() -> None:
    tree, mirror = small(), CandidateTree()
    mirror.extend(tree.tokens[:2], tree.parents[:2], tree.confidences[:2])
    mirror.extend(tree.tokens[2:], tree.parents[2:], tree.confidences[2:])
    assert paths(mirror) == paths(tree)
    assert mirror.children(ROOT) == tree.children(ROOT)
    assert mirror.follow([5]).confidences == tree.follow([5]).confidences


# --- growth


class ClockedModel(DraftModel):
    """Its forward passes take ``row_s`` seconds a row beyond the first one's second, on a clock of
    its own."""

    traits = DraftTraits(has_clock=True)

    def __init__(self, row_s: float) -> None:
        self._table, self._row_s, self._now_s = MODEL.load(), row_s, 0.0
        self.widths: list[int] = []

    def clock(self) -> float:
        return self._now_s

    def rows(self, query: RowQuery) -> list[Row]:
        self._now_s += 1.0 + self._row_s * (len(query.rows) - 1)
        self.widths.append(len(query.rows))
        return self._table.rows(query)


@pytest.mark.parametrize(("row_s", "width"), [(0.0, 8), (2.0, 1)])
def test_how_many_leaves_pay_is_learned_by_the_models_own_clock(row_s: float, width: int) -> None:
    model = ClockedModel(row_s)
    grown(model, text(), Tree(least_confidence=0.0), 40)
    assert set(model.widths[-5:]) == {width}


def test_the_likeliest_leaves_grow_first() -> None:
    plan = Tree(num_leaves=2, num_candidates=3, least_confidence=0.0)
    tree = grown(MODEL.load(), text(), plan, 4)
    values: list[float] = []
    for parent, confidence in zip(tree.parents, tree.confidences, strict=True):
        values.append(confidence * (values[parent] if parent != ROOT else 1.0))
    inside = [values[node] for node in range(len(tree)) if tree.is_expanded(node)]
    edge = [values[node] for node in range(len(tree)) if not tree.is_expanded(node)]
    assert len(inside) == 6
    # what was last expanded may have brought children that are likelier than the least of it
    assert sorted(inside)[2] >= max(edge)


class Unbranched(CountingModel):
    traits = DraftTraits(has_branches=False)


def test_a_model_without_branches_expands_one_chain_and_offers_alternatives() -> None:
    model = Unbranched(MODEL)
    plan = Tree(num_candidates=3, least_confidence=0.0)
    tree = grown(model, text(), plan, 6)
    node = ROOT
    for length, asked in enumerate(model.queries):
        assert asked.rows == (length,), "one row a step, after the whole chain"
        assert asked.draft.tokens == tuple(tree.path_tokens(node))
        assert len(tree.children(node)) == 3
        node = tree.children(node)[0]
    sibling = tree.tokens[tree.children(ROOT)[1]]
    assert len(grown(model, text(sibling), plan, 0)) == 0, "the text parted from the chain"
    assert len(grown(model, text(sibling), plan, 3)) == 9


def test_what_was_drafted_survives_the_text_going_on_along_it() -> None:
    model = CountingModel(MODEL)
    plan = Tree(num_leaves=4)
    first = grown(model, text(), plan, 5)
    token = first.tokens[first.children(ROOT)[0]]
    num_forwards = len(model.queries)
    second = grown(model, text(token), plan, 0)
    assert len(model.queries) == num_forwards
    assert paths(second) == paths(first.follow([token]))
    assert len(second) > 0
    again = grown(MODEL.load(), text(token), plan, 12)  # another drafter, which starts there
    on = grown(model, text(token), plan, 12)
    assert set(zip(on.tokens[:5], on.confidences[:5], strict=True)) <= set(
        zip(again.tokens, again.confidences, strict=True)
    )


def test_a_miss_and_another_sampler_start_anew() -> None:
    plan = Tree()
    first = grown(MODEL.load(), text(), plan, 5)
    missing = next(t for t in range(24) if first.child(ROOT, t) is None)
    assert len(grown(MODEL.load(), text(missing), plan, 0)) == 0
    model = MODEL.load()
    grown(model, text(), plan, 5)
    other = Sampler(SamplingParams(temperature=0.8))
    steps = plan.grow(model, DraftRequest(0, text(), plan, other))
    assert len(next(steps)) == 0


def test_a_tree_is_bounded_and_ends_where_the_text_does() -> None:
    model = CountingModel(MODEL)
    plan = Tree(max_expanded=10, depth=2)
    *_, tree = plan.grow(model, DraftRequest(0, text(), plan, GREEDY))
    assert max(len(tree.path_tokens(node)) for node in range(len(tree))) == 2
    assert sum(tree.is_expanded(node) for node in range(len(tree))) <= 10
    assert max(len(query.draft) for query in model.queries) <= 10
    assert not list(Tree(depth=0).grow(model, DraftRequest(7, text(), plan, GREEDY)))[1:]


# --- what candidates are worth


def estimate(acceptance: Acceptance, confidence: float, rank: int) -> float:
    return acceptance.estimate(confidence, rank)


def test_acceptance_is_learned_by_confidence_and_rank() -> None:
    acceptance = Acceptance()
    assert estimate(acceptance, 0.5, 0) == pytest.approx(0.5)  # the prior
    tree = small()
    for _ in range(600):
        acceptance.learn(tree, [6])  # the second is right each time
    assert estimate(acceptance, 0.6, 0) < 0.1
    assert estimate(acceptance, 0.3, 1) > 0.9
    assert estimate(acceptance, 0.62, 0) < 0.2  # of the same bin as 0.6
    assert estimate(acceptance, 0.9, 0) == pytest.approx(0.9)  # under a refused node: no data
    assert acceptance.covered()[-1] > 0.9


def test_a_few_labels_change_little_of_what_a_model_is_sure_of() -> None:
    """It knows more of two candidates of one bin than the bin does."""
    acceptance, tree = Acceptance(), CandidateTree()
    tree.expand(ROOT, [5], [0.99])
    for number in range(10):
        acceptance.learn(tree, [5 + number % 2])  # right every other time
    assert estimate(acceptance, 0.99, 0) > 0.9
    assert estimate(acceptance, 0.99, 0) - estimate(acceptance, 0.85, 0) > 0.1
    for number in range(600):
        acceptance.learn(tree, [5 + number % 2])
    assert estimate(acceptance, 0.99, 0) == pytest.approx(0.5, abs=0.05)


def test_a_mirror_knows_what_the_tree_knows_however_its_nodes_arrive() -> None:
    tree, mirror = CandidateTree(), CandidateTree()
    tree.expand(ROOT, [5, 6], [0.6, 0.3])
    tree.expand(1, [7], [0.5])
    tree.expand(0, [8, 9], [0.5, 0.4])
    tree.expand(ROOT, [4], [0.1])  # as a merged draft may have it
    mirror.extend(tree.tokens[:1], tree.parents[:1], tree.confidences[:1])
    mirror.extend(tree.tokens[1:], tree.parents[1:], tree.confidences[1:])
    for known in (tree, mirror):
        assert list(known.ranks) == [0, 1, 0, 0, 1, 2]
        assert [known.children(n) for n in (ROOT, 0, 1, 2)] == [[0, 1, 5], [3, 4], [2], []]
        assert known.num_expanded == 3
        under = known.follow([5])
        parts = under.tokens, under.ranks, under.parents
        assert [list(part) for part in parts] == [[8, 9], [0, 1], [ROOT, ROOT]]
        assert len(known.follow([5, 8])) == 0
        assert not known.follow([5, 8]).is_expanded(ROOT)


def test_the_edge_is_what_has_no_successors() -> None:
    acceptance, cursor = Acceptance(), TreeCursor(small())
    assert acceptance.unexpanded(TreeCursor(), 4) == 1.0
    assert acceptance.unexpanded(cursor, 1) == pytest.approx(0.3)  # the prior: 6
    assert acceptance.unexpanded(cursor, 2) == pytest.approx(0.3 + 0.6 * 0.5 * 0.9)
    assert acceptance.unexpanded(cursor, 9) == pytest.approx(0.3 + 0.27 + 0.6 * 0.4)
    assert acceptance.unexpanded(cursor.follow([5]), 1) == pytest.approx(0.5 * 0.9)
    assert acceptance.unexpanded(cursor.follow([5, 7, 9]), 4) == 1.0
    for _ in range(600):
        acceptance.learn(small(), [6])
    likely = acceptance.estimate(0.3, 1)
    assert likely > 0.9
    assert acceptance.unexpanded(cursor, 1) == pytest.approx(likely)


def test_a_place_moves_with_the_text_and_the_tree_stays() -> None:
    tree = small()
    cursor = TreeCursor(tree).follow([5])
    assert cursor.tree is tree
    assert [tree.tokens[node] for node in cursor.down(9)] == [7, 9]
    assert (cursor.num_under, TreeCursor(tree).num_under, TreeCursor().num_under) == (3, 5, 0)
    assert cursor.is_expanded
    assert cursor.is_known
    assert not cursor.follow([8]).is_expanded
    assert not cursor.follow([8]).is_known
    assert cursor.follow([6]).num_under == 0  # the path leaves the tree


# --- the planner


def costs(*by_width: tuple[int, float]) -> Costs:
    made = Costs()
    for width, seconds in by_width:
        made.observe_forward(seconds, width)
    return made


def test_the_cost_of_a_width_is_learned_and_not_tried_in_leaps() -> None:
    known = costs((0, 0.01), *[(16, 0.03)] * 3)
    assert known.forward_s(0) == 0.01
    assert [known.forward_s(n) for n in (4, 8, 16)] == pytest.approx([0.015, 0.02, 0.03])
    assert known.forward_s(32) == pytest.approx(0.05)  # with the slope known so far
    assert known.forward_s(33) < float("inf")  # twice as many rows: tried
    assert known.forward_s(34) == known.forward_s(64) == float("inf")
    assert [known.row_s(n) for n in (4, 33)] == pytest.approx([0.02 / 16] * 2)


def test_the_slope_beyond_is_that_of_the_wider_half() -> None:
    late = costs(*[(0, 0.01), (8, 0.01), (16, 0.03)] * 3)
    assert late.forward_s(20) == pytest.approx(0.03 + 4 * 0.02 / 8)
    early = costs(*[(0, 0.01), (1, 0.05), (16, 0.05)] * 3)
    assert early.forward_s(20) == 0.05, "a plateau"


def test_measured_costs_never_fall() -> None:
    known = costs(*[(0, 0.010)] * 4, *[(1, 0.030)] * 3, *[(3, 0.020)] * 3, *[(7, 0.040)] * 3)
    curve = known.curve(15)
    assert list(curve) == sorted(curve)
    assert known.forward_s(1) == known.forward_s(3) == pytest.approx(0.025)  # of as many each


def test_what_was_measured_long_ago_is_measured_anew() -> None:
    known = costs(*[(0, 0.01), (1, 0.02)] * 3)
    for _ in range(600):
        known.observe_forward(0.01)
    assert known.forward_s(1) == 0.01, "tried again"
    assert known.forward_s(2) == float("inf")


def test_one_slow_forward_does_not_make_a_width_dear_for_ever() -> None:
    known = costs((0, 0.01), (0, 0.01), (0, 0.01), (1, 0.011), (8, 5.0))
    assert known.forward_s(1) == 0.011
    assert known.forward_s(8) == pytest.approx(0.011 * 4.5)
    for _ in range(3):
        known.observe_forward(0.05, 8)
    assert known.forward_s(8) == 0.05


def test_a_step_is_no_outlier() -> None:
    known = costs(*[(0, 0.048), (7, 0.095)] * 3, (8, 0.153))
    assert known.forward_s(8) == 0.153


def test_before_anything_is_known_a_draft_is_small() -> None:
    unknown = Costs()
    assert unknown.forward_s(7) < float("inf")
    assert unknown.forward_s(8) == float("inf")


def test_what_was_proposed_is_judged_once() -> None:
    memory = TextMemory()
    texts = TextSources(memory, text())
    texts.read(text(3, 1, 4, 1))
    sources = [GivenSource(), *texts.sources(text(3, 1, 4, 1))]
    selection = Selection(sources, memory.mixer)
    grow(selection, 80, 24)
    assert selection.tokens
    learn(selection, [23])
    num_seen = [sum(acceptance.num_seen) for acceptance in memory.own_matches.by_length]
    assert sorted(num_seen)[-2:] == [0.0, 1.0]  # one label


@pytest.mark.parametrize("name", ["stream", "auto"])
def test_a_method_judges_each_selection_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[Selection] = []

    def noted(selection: Selection, tokens: tuple[int, ...]) -> None:
        assert selection not in judged
        judged.append(selection)
        compiled.learn(selection, tokens)

    monkeypatch.setattr(planner, "learn", noted)
    drafter = InlineDrafter(replace(MODEL, noise=0.4).load())
    _, rounds = decode(
        name, target=TableTarget(MODEL), drafter=drafter, num_tokens=60, clock=TickingClock()
    )
    assert 3 < len(judged) < len(rounds)  # the first round has no draft
    assert len(judged) == len(rounds) - 1 or name == "auto"
    assert sum(selection.num_labelled for selection in judged) <= 60


@pytest.mark.usefixtures("loops_in_python")
@pytest.mark.parametrize("name", ["stream", "auto"])
def test_what_steps_bring_that_are_waited_for_is_learned_by_all_requests(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round that waits does so twice, for half a token each time."""
    seen: list[tuple[Waits, float, float]] = []
    promises = cycle([0.5, 0.5, 0.0])
    monkeypatch.setattr(
        Planner,
        "promised_by_waiting",
        lambda self, cursor, chosen, num_scored: next(promises),
    )
    monkeypatch.setattr(Waits, "observe", lambda *one: seen.append(one))
    monkeypatch.setattr(TextSources, "sources", lambda self, text, depth=0: [self.rows(text)])
    drafter, own = InlineDrafter(MODEL.load()), method(name)  # it is always right
    for seed in range(2):
        session = Session(
            TableTarget(MODEL), (6, 5, 3), 40, costs=FixedBudget(6), drafter=drafter,
            sampler=Sampler(SamplingParams(seed=seed)), clock=TickingClock(),
        )  # fmt: skip
        num_before = len(seen)
        num_rounds = sum(1 for _ in decode_rounds(own, session))
        assert num_rounds - 2 <= len(seen) - num_before <= num_rounds
    assert len({id(waits) for waits, _, _ in seen}) == 1
    assert {promised for _, promised, _ in seen} == {0.0, 1.0}
    assert all(brought == 0.0 for _, promised, brought in seen if not promised)
    assert sum(brought for _, _, brought in seen) > 0


@pytest.mark.parametrize("max_width", [0, 80])
def test_the_prompt_is_read_while_the_target_prefills(
    max_width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_read: list[int] = []
    read = TextSources.read

    def noted(texts: TextSources, text: np.ndarray) -> None:
        num_read.append(len(text))
        read(texts, text)

    monkeypatch.setattr(TextSources, "read", noted)
    decode("auto", target=TableTarget(MODEL), num_tokens=20, max_width=max_width)
    assert num_read[:1] == ([len(PROMPT)] if max_width else [])  # if anything can be drafted


@st.composite
def trees(draw) -> dict[tuple[int, ...], float]:
    """Values by path; exact in binary, so that products are too."""
    values: dict[tuple[int, ...], float] = {(): 1.0}
    for token in range(100, 100 + draw(st.integers(0, 6))):
        parent = draw(st.sampled_from(sorted(values)))
        values[(*parent, token)] = values[parent] * draw(st.sampled_from([0.125, 0.5, 0.875]))
    del values[()]
    return values


def proposing(values: dict[tuple[int, ...], float]) -> GivenSource:
    """A source of exactly these nodes."""
    table: dict[tuple[int, ...], list[tuple[int, float]]] = {}
    for path, value in values.items():
        above = values.get(path[:-1], 1.0)
        table.setdefault(path[:-1], []).append((path[-1], value / above))
    return GivenSource(table)


@pytest.mark.usefixtures("loops_in_python")
@proven
@given(trees(), st.sampled_from([0.0, 0.1, 0.3, 1.0]), st.integers(0, 6))
def test_the_chosen_subtree_brings_the_most_tokens_a_second(values, slope, width) -> None:
    known = costs(*((n, 1 + slope * n) for n in (0, 1, 2, 4)))
    selection = Planner(known, Acceptance()).select([proposing(values)], JointMixer(), width, 9)
    draft = selection.draft(best_width(selection.values, known))
    assert len(draft) <= width
    worth = {path: value for path, value in values.items() if value >= 1e-3}

    def rate(nodes: tuple[tuple[int, ...], ...]) -> float:
        return (1 + sum(worth[path] for path in nodes)) / known.forward_s(len(nodes))

    connected = [
        nodes
        for num in range(min(width, len(worth)) + 1)
        for nodes in combinations(sorted(worth), num)
        if all(path[:-1] in ((), *nodes) for path in nodes)
    ]
    chosen = tuple(sorted(tuple(draft.path_tokens(node)) for node in range(len(draft))))
    assert chosen in connected
    assert rate(chosen) == pytest.approx(max(map(rate, connected)))


@pytest.mark.usefixtures("loops_in_python")
def test_sources_meet_in_one_tree_and_depth_is_bounded() -> None:
    known = costs((0, 1.0), (64, 1.0))
    planner = Planner(known, Acceptance())
    chain = GivenSource({(): [(1, 0.5)], (1,): [(2, 0.8)], (1, 2): [(3, 0.75)]})
    other = GivenSource({(): [(1, 0.8), (9, 0.2)], (1,): [(2, 0.125)]})
    selection = planner.select([chain, other], JointMixer(), 10, 2)
    draft = selection.draft(best_width(selection.values, known))
    found = {tuple(draft.path_tokens(node)) for node in range(len(draft))}
    assert found == {(1,), (1, 2), (9,)}
    assert selection.values == pytest.approx([0.9, 0.9 * 0.825, 0.2])  # any of them is right


@pytest.mark.usefixtures("loops_in_python")
def test_no_more_is_selected_than_a_planner_and_the_batch_allow() -> None:
    class Crowded(Costs):
        def draft_budget(self) -> int:
            return 3

    source = GivenSource({(): [(token, 0.1) for token in range(9)]})

    def num_selected(known: Costs, planned: int, asked: int) -> int:
        planner = Planner(known, Acceptance(), num_tokens=planned)
        return len(planner.select([source], JointMixer(), asked, 9).tokens)

    assert num_selected(Costs(), 80, 80) == 9
    assert num_selected(Costs(), 80, 5) == 5
    assert num_selected(Costs(), 4, 5) == 4
    assert num_selected(Crowded(), 4, 5) == 3
    assert num_selected(Costs(), 80, 0) == 0


def test_waiting_is_worth_it_while_it_is_faster_than_decoding() -> None:
    known = costs((0, 0.025))
    known.observe_step(0.002)
    planner = Planner(known, Acceptance())
    planner.observe(2, 0.025)  # 80 tokens a second
    nothing = selected(GivenSource())
    assert planner.promised_by_waiting(TreeCursor(), nothing)  # a miss: a step brings 0.6
    tree = CandidateTree()
    tree.expand(ROOT, [1, 2], [0.1, 0.05])
    least = selected(TreeSource(tree, planner.acceptance))
    assert not planner.promised_by_waiting(TreeCursor(tree), least)
    known.observe_step(0.2)
    known.observe_step(0.2)
    assert not planner.promised_by_waiting(TreeCursor(), nothing)


def waiting_planner(num_tokens: int = 2) -> Planner:
    known = costs((0, 0.025))
    known.observe_step(0.002)
    planner = Planner(known, Acceptance())
    planner.observe(num_tokens, 0.025)
    return planner


def test_after_a_miss_nobody_waits_for_what_other_sources_propose_already() -> None:
    """A step is worth 0.6 tokens where nothing is known; four tenths or so must be missing."""
    planner, missed = waiting_planner(), TreeCursor()
    answers = []
    for known in (0.0, 0.1, 0.5, 0.9):
        proposed = selected(GivenSource(), GivenSource({(): [(1, known / 2), (2, known / 2)]}))
        assert proposed.reach == pytest.approx(known)
        answers.append(planner.promised_by_waiting(missed, proposed) > 0.0)
    assert answers == [True, True, False, False]


def test_what_follows_the_next_token_counts_where_it_would_be_missed() -> None:
    """Without a step, a long continuation is lost with the first token that no source proposes."""
    planner, missed = waiting_planner(), TreeCursor()
    alone = GivenSource({(): [(1, 0.5)]})
    chain = GivenSource({(): [(1, 0.5)], (1,): [(2, 1.0)], (1, 2): [(3, 1.0)]})
    assert not planner.promised_by_waiting(missed, selected(GivenSource(), alone))
    assert planner.promised_by_waiting(missed, selected(GivenSource(), chain))


def test_a_long_continuation_of_an_unlikely_token_is_no_reason_to_wait_long() -> None:
    """It says little of what the draft model's tree would bring."""
    likely = {(): [(1, 0.04)], **{tuple(range(1, n)): [(n, 1.0)] for n in range(2, 13)}}
    chain = selected(GivenSource(), GivenSource(likely), depth=12)
    assert sum(chain.values) == pytest.approx(12 * chain.reach)
    known = costs((0, 0.010))
    known.observe_root(0.033)  # in which plain decoding brings 3 tokens
    planner = Planner(known, Acceptance())
    planner.observe(1, 0.010)
    assert not planner.promised_by_waiting(TreeCursor(), chain)


def test_a_chain_waits_for_its_own_end_while_there_is_room() -> None:
    """Other leaves of the draft model's tree cannot be scored with it."""
    tree = CandidateTree()
    tree.expand(ROOT, [1, 2], [0.9, 0.05])
    by_draft, by_text = GivenSource({(): [(1, 0.9)]}), GivenSource({(): [(7, 0.95)]})

    def is_worth_it(has_branches: bool, *sources: GivenSource, num_tokens: int = 3) -> bool:
        planner = waiting_planner(1)
        planner.has_branches = has_branches
        chosen = selected(*sources, num_tokens=num_tokens, has_branches=has_branches)
        return planner.promised_by_waiting(TreeCursor(tree), chosen) > 0.0

    assert is_worth_it(True, by_draft)
    assert is_worth_it(False, by_draft)
    assert is_worth_it(True, by_draft, num_tokens=1)
    assert not is_worth_it(False, by_draft, num_tokens=1), "it has no room"
    assert is_worth_it(True, by_draft, by_text)
    assert not is_worth_it(False, by_draft, by_text), "it is not in the draft model's tree"


def test_a_chain_waits_where_what_others_propose_next_may_be_wrong() -> None:
    """Also where they are as often right as the draft model: it is asked in case they are not."""
    tree = CandidateTree()
    tree.expand(ROOT, [1], [0.95])

    def is_worth_it(likely: float) -> bool:
        planner = waiting_planner(1)
        planner.has_branches = False
        by_draft, by_text = GivenSource({(): [(1, 0.95)]}), GivenSource({(1,): [(2, likely)]})
        chosen = selected(by_draft, by_text, num_tokens=3, has_branches=False)
        return planner.promised_by_waiting(TreeCursor(tree), chosen) > 0.0

    assert [is_worth_it(likely) for likely in (0.2, 0.5, 0.9)] == [True, True, False]


def test_of_what_is_proposed_for_a_chain_the_first_counts() -> None:
    tokens = GivenSource({(): [(token, 0.12) for token in range(8)]})

    def is_worth_it(has_branches: bool, num_tokens: int, *others: GivenSource) -> bool:
        planner = waiting_planner(num_tokens)
        planner.has_branches = has_branches
        known = selected(GivenSource(), *others, has_branches=has_branches)
        return planner.promised_by_waiting(TreeCursor(), known) > 0.0

    assert not is_worth_it(True, 1, tokens), "all of eight are scored"
    assert is_worth_it(False, 1, tokens), "one is"
    assert is_worth_it(True, 2)
    assert not is_worth_it(False, 2), "one of the draft model's is, too"


def test_where_text_alone_was_right_a_deeper_tree_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And where it never was, a tree is worth its whole edge."""
    tree = CandidateTree()
    tree.expand(ROOT, [1], [0.9])
    monkeypatch.setattr(planner, "learn", learn)
    by_draft, by_text = GivenSource({(): [(1, 0.9)]}), GivenSource({(): [(2, 0.5)]})

    def is_worth_it(num_tokens: int, drawn: int | None) -> bool:
        """In a text of 40 tokens a second for each of ``num_tokens``."""
        own = waiting_planner(num_tokens)
        for _ in range(100 if drawn else 0):
            own.learn(selected(by_draft, by_text), [drawn])
        return own.promised_by_waiting(TreeCursor(tree), selected(by_draft, by_text)) > 0.0

    assert [is_worth_it(1, drawn) for drawn in (None, 1, 2)] == [True, True, False]
    assert [is_worth_it(2, drawn) for drawn in (None, 1, 2)] == [False, True, False]


def test_the_step_that_is_waited_for_is_the_one_that_comes_next() -> None:
    """After a miss the path is computed first, and the step in work ends before that."""
    known = costs((0, 0.025))
    known.observe_step(0.002)
    known.observe_root(0.02)
    planner = Planner(known, Acceptance())
    tree = CandidateTree()
    assert 0.02 < planner.step_s(TreeCursor(tree)) < 0.022
    tree.expand(ROOT, [1], [0.5])
    assert 0.002 < planner.step_s(TreeCursor(tree)) < 0.004


# --- never slower


def run(governor: Governor, seconds: dict[Sources, float], num_rounds: int) -> list[Sources]:
    """Rounds of a token each that take what their sources take."""
    taken = []
    for _ in range(num_rounds):
        sources = governor.sources()
        governor.observe(sources, 1, seconds[sources])
        taken.append(sources)
    return taken


def test_a_governor_anew_has_pauses_of_its_own() -> None:
    costs = {Sources.NONE: 1.0, Sources.FREE: 2.0}
    first, same = (Governor([Sources.FREE], trial=1, first_probe=1) for _ in range(2))
    assert run(first, costs, 40) == run(same, costs, 40)
    run(first.fresh(), costs, 400)
    later = run(first, costs, 240)
    assert later.count(Sources.FREE) == 2  # after 64 rounds, and 128
    assert later == run(same, costs, 240)


def test_what_pays_goes_on_with_a_probe_now_and_then() -> None:
    both = [Sources.FREE, Sources.ALL]
    taken = run(Governor(both), {Sources.NONE: 2.0, Sources.FREE: 1.5, Sources.ALL: 1.0}, 400)
    assert taken.count(Sources.NONE) <= 10
    assert taken.count(Sources.ALL) >= 390


def test_what_does_not_pay_is_left_within_a_few_rounds_and_tried_ever_less() -> None:
    both = [Sources.FREE, Sources.ALL]
    governor = Governor(both)
    seconds = {Sources.NONE: 1.0, Sources.FREE: 1.2, Sources.ALL: 2.0}
    taken = run(governor, seconds, 96)
    spent = sum(seconds[sources] for sources in taken)
    assert taken[:10].count(Sources.ALL) <= 9
    assert spent < 1.21 * 96
    later = run(governor, seconds, 2000)
    assert sum(seconds[sources] for sources in later) < 1.03 * 2000


def test_a_trial_that_loses_much_time_is_not_soon_repeated() -> None:
    """A forward pass takes a fifth of the time that drafts need."""
    governor = Governor([Sources.FREE, Sources.ALL], first_probe=2, hopeless=0.5, pause_per_lost=24)
    seconds = {Sources.NONE: 0.6, Sources.FREE: 2.0, Sources.ALL: 3.0}
    first = run(governor, seconds, 100)
    assert sum(seconds[sources] for sources in first) < 1.25 * 60
    later = run(governor, seconds, 1000)
    assert sum(seconds[sources] for sources in later) < 1.08 * 600


def test_what_is_simpler_and_better_is_found_by_probing_it() -> None:
    """The draft model beats plain decoding here, and earlier text alone beats both."""
    both = [Sources.FREE, Sources.ALL]
    seconds = {Sources.NONE: 1.5, Sources.FREE: 1.0, Sources.ALL: 1.2}
    assert run(Governor(both), seconds, 400).count(Sources.FREE) == 0
    taken = run(Governor(both, probes=(Sources.NONE, Sources.FREE)), seconds, 400)
    assert taken.count(Sources.FREE) > 350
    assert 1 < taken.count(Sources.NONE) < 10
    seconds[Sources.ALL] = 0.5
    taken = run(Governor(both, probes=(Sources.NONE, Sources.FREE)), seconds, 400)
    assert taken.count(Sources.ALL) > 385


@pytest.mark.parametrize(("drafted_s", "pays"), [(1.2, True), (2.5, False)])
def test_what_plain_decoding_takes_is_not_probed_where_it_is_inferred(
    drafted_s: float, pays: bool
) -> None:
    """A padded forward pass takes as long without its draft, of which one token in two comes."""
    governor = Governor([Sources.FREE])
    taken = []
    for _ in range(400):
        sources = governor.sources()
        is_drafted = sources != Sources.NONE
        governor.observe(sources, 2 if is_drafted else 1, drafted_s if is_drafted else 1.0)
        if is_drafted:
            governor.infer_plain(1.0)
        taken.append(sources)
    if pays:
        assert taken.count(Sources.NONE) == 0
    else:
        assert taken[:8].count(Sources.FREE) == 8  # a trial, and nothing was probed before
        assert taken.count(Sources.FREE) < 60


def test_what_was_inferred_long_ago_is_probed() -> None:
    governor = Governor([Sources.FREE])
    governor.observe(Sources.FREE, 2, 1.0)
    governor.infer_plain(1.0)
    taken = run(governor, {Sources.NONE: 2.0, Sources.FREE: 1.0}, 100)
    assert 1 <= taken.count(Sources.NONE) <= 3
    assert taken.index(Sources.NONE) >= 40


def test_a_text_that_turns_is_followed() -> None:
    governor = Governor([Sources.ALL])
    run(governor, {Sources.NONE: 1.0, Sources.ALL: 2.0}, 100)
    taken = run(governor, {Sources.NONE: 1.0, Sources.ALL: 0.5}, 400)
    assert taken[-200:].count(Sources.ALL) > 190


def test_long_rounds_are_soon_left_when_plain_decoding_is_the_faster_again() -> None:
    """Drafts of 16 tokens that save little, on cores that others no longer need."""
    governor = Governor([Sources.FREE])
    tokens = {Sources.NONE: 1, Sources.FREE: 17}
    before_s = {Sources.NONE: 2.0, Sources.FREE: 20.0}
    after_s = {Sources.NONE: 0.6, Sources.FREE: 15.0}
    taken: list[Sources] = []
    for seconds in [before_s] * 200 + [after_s] * 200:
        sources = governor.sources()
        governor.observe(sources, tokens[sources], seconds[sources])
        taken.append(sources)
    assert sum(before_s[sources] for sources in taken[:200] if sources == Sources.NONE) < (
        0.03 * sum(before_s[sources] for sources in taken[:200])
    )
    assert taken[100:200].count(Sources.FREE) > 75
    assert taken[200:].index(Sources.NONE) < 5
    assert taken[-100:].count(Sources.NONE) > 85


# --- the methods


@pytest.mark.parametrize("name", ["stream", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_good_drafts_make_few_rounds(name: str, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=5)
    rounds = assert_decodes_like_ar(
        name, params, draft_noise=0.0, num_tokens=60, clock=TickingClock()
    )
    assert len(rounds) < 20
    assert max(done.num_scored for done in rounds) > 8

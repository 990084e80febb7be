"""The shared target's costs for several requests, and whether they draft at all."""

from __future__ import annotations

import math
import sys

import pytest
from fakes.decoding import GivenSource, proven, selected
from fakes.oracles import JointMixer
from hypothesis import example, given
from hypothesis import strategies as st

from duodec.core.candidates import CandidateTree, TreeCursor
from duodec.core.draft import ROOT, Draft
from duodec.planning.acceptance import Acceptance
from duodec.planning.batch_governor import BatchGovernor as Governor
from duodec.planning.budget import BatchBudget, Line
from duodec.planning.costs import Costs
from duodec.planning.governor import Sources
from duodec.planning.planner import Planner, best_width


def test_what_a_row_costs_is_a_line_through_the_latest_forwards() -> None:
    line = Line()
    line.observe(16, 0.048)
    assert line.seconds(17) == pytest.approx(0.04875), "rows that never differed may be cheap"
    for rows in (1, 4, 8, 16) * 4:
        line.observe(rows, 0.020)
    assert line.seconds(17) < 0.026
    for rows in (1, 4, 8, 16) * 16:
        line.observe(rows, 0.010 + 0.002 * rows)
    assert line.seconds(12) == pytest.approx(0.034, rel=0.02)


@pytest.mark.usefixtures("loops_in_python")
def test_the_first_forwards_of_many_have_few_draft_tokens() -> None:
    load = BatchBudget(Costs())
    for slot in range(16):
        load.begin(slot)
        load.observe({slot: 1}, 0.1)
    chain = GivenSource({(): [(5, 0.9)], (5,): [(6, 1.0)], (5, 6): [(7, 1.0)]})
    planner = Planner(load.costs(0), Acceptance(), has_branches=False)
    by_pass = []
    for num_drafted in (2, 3, 4, 5):
        by_pass.append([load.costs(slot).draft_budget() for slot in range(16)])
        load.ended(16, 0.1, is_plain_work=True)
        load.observe(dict.fromkeys(range(16), 1) | {0: 1 + num_drafted}, 0.1)
    assert by_pass[:3] == [[2] * 2 + [0] * 14, [2] * 6 + [0] * 10, [2] * 14 + [0] * 2]
    assert min(by_pass[3]) > 1000
    for slot in range(2, 16):
        load.end(slot)
    budgets = [load.costs(slot).draft_budget() for slot in range(3)]
    assert budgets == [2, 2, 0], "two are other than many"
    load.ended(2, 0.2, is_plain_work=True)
    selection = planner.select([chain], JointMixer(), 80, 80)
    assert len(selection.draft(best_width(selection.values, planner.costs))) == 2
    load.end(1)
    assert load.costs(0).draft_budget() > 1000


def test_no_share_is_negative_after_a_request_ends_in_the_same_landing() -> None:
    budget = BatchBudget(Costs())
    for slot in range(3):
        budget.begin(slot)
    for i in range(2):
        budget.observe(dict.fromkeys(range(3), 3), 0.01)
        budget.ended(3, 0.01 * i, is_plain_work=True)
    assert budget.draft_budget() == 9
    budget.end(1)
    assert budget.draft_budget() == 0, "two have a smaller first budget, and it is spent"
    budget.ended(2, 0.02, is_plain_work=True)
    assert budget.draft_budget() == 2


SLOTS = st.integers(0, 5)
STEPS = st.one_of(
    st.tuples(st.just("begin"), SLOTS),
    st.tuples(st.just("end"), SLOTS),
    st.tuples(st.just("share"), SLOTS),
    st.tuples(st.just("pass"), st.lists(st.integers(1, 9), min_size=1, max_size=6)),
)


@proven
@given(st.lists(STEPS, max_size=60))
@example([("begin", slot) for slot in range(3)] + [("pass", [3, 3, 3])] * 2
         + [("share", 0), ("end", 1), ("share", 0)])  # fmt: skip
def test_whatever_begins_and_ends_shares_are_counts_within_a_first_budget(
    steps: list[tuple[str, object]],
) -> None:
    budget, active, shares, now_s = BatchBudget(Costs()), set[int](), list[int](), 0.0
    for step, what in steps:
        if step == "begin" and what not in active:
            active.add(what)
            budget.begin(what)
        elif step == "end":
            active.discard(what)
            budget.end(what)
        elif step == "share" and what in active:
            share = budget.costs(what).draft_budget()
            assert share >= 0
            shares += [share] if share < sys.maxsize else []
            assert sum(shares) <= 28, "the largest budget of a first pass"
            assert math.isinf(cost := budget.forward_s(what, 3)) or cost >= 0
        elif step == "pass" and active:
            now_s, shares = now_s + 0.01, []
            rows = dict(zip(sorted(active), what, strict=False))
            budget.ended(len(active), now_s, is_plain_work=True)
            budget.observe(rows, 0.01)


def test_what_drafts_cost_is_known_at_the_next_trial() -> None:
    line = Line()
    line.observe(45, 0.390, is_drafted=True)
    for _ in range(500):
        line.observe(16, 0.100)
    assert line.seconds(17) - line.seconds(16) > 0.008


def test_among_many_on_a_cpu_nothing_is_drafted() -> None:
    load = BatchBudget(Costs())
    for slot in range(16):
        load.begin(slot)
    for rows in (1, 4, 8, 16) * 4:
        load.observe(dict.fromkeys(range(rows), 1), 0.004 + 0.003 * rows)
    planner = Planner(load.costs(0), Acceptance())
    assert not planner.can_pay()
    for slot in range(1, 16):
        load.end(slot)
    assert planner.can_pay(), "alone it is worth a try"


def test_alone_a_planner_sees_the_target_as_it_is_and_beside_others_it_drafts_less() -> None:
    costs = Costs()
    load = BatchBudget(Costs())
    for width, seconds in ((0, 1.0), (1, 1.1), (3, 1.3), (7, 1.7), (15, 2.5), (31, 4.1)):
        for _ in range(4):
            costs.observe_forward(seconds, width)
            load.observe({0: 1 + width}, seconds)
    load.begin(0)
    own = load.costs(0)
    assert [own.forward_s(n) for n in (0, 1, 7)] == [costs.forward_s(n) for n in (0, 1, 7)]
    alone = own.forward_s(7) / own.forward_s(0)
    for slot in range(1, 8):
        load.begin(slot)
    beside = own.forward_s(7) / own.forward_s(0)
    assert beside > alone
    for slot in range(1, 8):
        load.end(slot)
    assert own.forward_s(7) / own.forward_s(0) == alone


def test_nobody_waits_for_a_draft_while_others_forward_would_begin_without_it() -> None:
    load = BatchBudget(Costs())
    own = load.costs(0)
    own.observe_forward(0.025)
    own.observe_step(0.002)
    own.observe_root(0.002)
    planner = Planner(own, Acceptance())
    tree = CandidateTree()
    tree.expand(ROOT, [1], [0.9])
    nothing, some = selected(GivenSource()), selected(GivenSource({(): [(1, 0.9)]}))
    load.begin(0)
    assert planner.promised_by_waiting(TreeCursor(), nothing)
    assert planner.promised_by_waiting(TreeCursor(tree), some)
    load.begin(1)
    assert not planner.promised_by_waiting(TreeCursor(), nothing)
    assert not planner.promised_by_waiting(TreeCursor(tree), some)
    load.end(1)
    assert planner.promised_by_waiting(TreeCursor(tree), some)


@pytest.mark.usefixtures("loops_in_python")
def test_a_chain_is_planned_where_branches_are_left_out() -> None:
    source = GivenSource({
        (): [(5, 0.9), (7, 0.6)], (5,): [(6, 0.5 / 0.9)], (5, 6): [(8, 0.4 / 0.5)],
    })  # fmt: skip
    free = Costs()
    for width in (0, 1, 3, 7):
        free.observe_forward(1.0, width)

    def draft(planner: Planner) -> Draft:
        selection = planner.select([source], JointMixer(), 9, 9)
        return selection.draft(best_width(selection.values, free))

    tree = draft(Planner(free, Acceptance()))
    chain = draft(Planner(free, Acceptance(), has_branches=False))
    assert (tree.tokens, tree.parents) == ((5, 7, 6, 8), (-1, -1, 0, 2))
    assert (chain.tokens, chain.parents) == ((5, 6, 8), (-1, 0, 1))


def test_a_forward_that_reads_a_prompt_is_no_measure() -> None:
    load = BatchBudget(Costs())
    for i in range(200):
        load.ended(4, 10.0 * i, is_plain_work=False)
        load.count_tokens(1)
    assert math.isfinite(load.costs(0).forward_s(1))


# --- several requests


def gate_cycles(
    gate: Governor,
    num_requests: int,
    drafting_s: float,
    num: int,
    *,
    free_s: float | None = None,
    cores: float = 0.0,
    drafting_cores: float = 0.0,
) -> list[Sources]:
    """Run so many forward passes and return their sources. Each takes 0.1 s without drafts,
    ``free_s`` with drafts from earlier text only. Each gives every request a token, two with
    drafts. This process keeps ``cores`` busy, and more with a draft model."""
    found, now_s, busy_s = list[Sources](), 0.0, 0.0
    seconds = {
        Sources.NONE: 0.1,
        Sources.FREE: drafting_s if free_s is None else free_s,
        Sources.ALL: drafting_s,
    }
    gate.cycle(num_requests, now_s, busy_s, is_plain_work=True)
    for _ in range(num):
        found.append(gate.sources())
        now_s += seconds[found[-1]]
        is_drafting = found[-1] == Sources.ALL
        busy_s += seconds[found[-1]] * (cores + drafting_cores * is_drafting)
        gate.cycle(num_requests, now_s, busy_s, is_plain_work=True)
        gate.count_tokens(num_requests * (2 if found[-1] else 1))
    return found


def num_open(found: list[Sources]) -> int:
    return sum(sources != Sources.NONE for sources in found)


def test_several_answers_draft_while_that_brings_more_tokens_a_second() -> None:
    found = gate_cycles(Governor(), 4, 0.15, 200, free_s=0.19)
    assert num_open(found) > 180
    assert not all(found)  # plain decoding is probed
    assert found.count(Sources.ALL) > 170


def test_several_answers_stop_drafting_where_it_makes_all_of_them_slower() -> None:
    found = gate_cycles(Governor(), 4, 0.3, 400)
    assert num_open(found[:20]) <= 8
    assert 0 < num_open(found) < 18  # tried again, ever less


@pytest.mark.parametrize(("cores", "first"), [(None, Sources.ALL), (1, Sources.NONE)])
def test_what_a_request_found_alone_does_not_hold_for_several(
    cores: int | None, first: Sources
) -> None:
    gate = Governor(cores_for_target=cores)
    for number in range(40):
        gate.sources()
        gate.cycle(1, 0.1 * number, is_plain_work=True)
        gate.count_tokens(1)
    assert gate.sources() == first, "on shared cores a batch first decodes plainly"
    found = gate_cycles(gate, 4, 0.3, 60)
    assert found[1:] == gate_cycles(Governor(cores_for_target=cores), 4, 0.3, 60)[1:]


def test_more_answers_begin_with_what_fewer_have_found() -> None:
    gate = Governor()
    gate_cycles(gate, 4, 0.3, 60)
    assert num_open(gate_cycles(gate, 3, 0.3, 20)) <= 1  # judged as four are
    assert num_open(gate_cycles(gate, 8, 0.3, 20)) <= 1
    assert num_open(gate_cycles(gate, 2, 0.15, 60)) > 40  # fewer are judged apart


def test_what_fewer_have_found_is_measured_again() -> None:
    gate = Governor()
    assert num_open(gate_cycles(gate, 2, 0.15, 60)) > 40
    assert num_open(gate_cycles(gate, 8, 0.3, 30)) <= 8  # not compared with the rates of two


def test_on_shared_cores_plain_decoding_comes_first() -> None:
    found = gate_cycles(Governor(cores_for_target=1), 4, 0.15, 200, free_s=0.19)
    assert not any(found[:16])
    assert num_open(found) > 160
    assert found.count(Sources.ALL) > 150


def test_on_shared_cores_plain_decoding_comes_first_for_more_answers_too() -> None:
    gate = Governor(cores_for_target=1)
    assert num_open(gate_cycles(gate, 4, 0.15, 60)) > 30
    found = gate_cycles(gate, 8, 0.15, 60)
    assert not any(found[:16])
    assert num_open(found) > 30


def test_a_draft_model_takes_no_cores_that_are_busy() -> None:
    busy = gate_cycles(Governor(cores_for_target=2), 4, 0.15, 200, cores=2.1)
    assert Sources.ALL not in busy
    assert num_open(busy) > 160, "earlier text needs no cores"
    idle = gate_cycles(Governor(cores_for_target=2), 4, 0.15, 200, free_s=0.19, cores=1.9)
    assert idle.count(Sources.ALL) > 150


def test_how_busy_cores_are_is_measured_without_a_draft_model() -> None:
    gate = Governor(cores_for_target=2)
    found = gate_cycles(gate, 4, 0.15, 200, free_s=0.19, cores=1.9, drafting_cores=0.5)
    assert found.count(Sources.ALL) > 150


def test_earlier_text_alone_is_tried_where_a_draft_model_pays() -> None:
    found = gate_cycles(Governor(), 4, 0.15, 200, free_s=0.12)
    assert found.count(Sources.FREE) > 150


def test_whether_cores_are_busy_is_known_before_a_draft_model_works_for_more_answers() -> None:
    gate = Governor(cores_for_target=1)
    assert gate_cycles(gate, 2, 0.15, 60, free_s=0.19, cores=0.5).count(Sources.ALL) > 30
    assert Sources.ALL not in gate_cycles(gate, 8, 0.15, 60, cores=1.5)
    assert gate_cycles(gate, 2, 0.15, 60, free_s=0.19, cores=0.5).count(Sources.ALL) > 30


def test_on_a_target_elsewhere_it_is_all_the_same_how_busy_the_cores_are() -> None:
    assert gate_cycles(Governor(), 4, 0.15, 200, free_s=0.19, cores=9.0).count(Sources.ALL) > 170


def test_earlier_text_alone_goes_on_where_a_draft_model_does_not_pay() -> None:
    found = gate_cycles(Governor(), 4, 0.3, 400, free_s=0.12)
    assert found.count(Sources.ALL) < 40
    assert found.count(Sources.FREE) > 330


def test_what_makes_forwards_much_slower_is_given_up_at_once() -> None:
    assert num_open(gate_cycles(Governor(), 2, 0.3, 20)) < num_open(
        gate_cycles(Governor(), 2, 0.22, 20)
    )


def test_what_cannot_be_told_from_noise_is_not_gained() -> None:
    found = gate_cycles(Governor(), 4, 0.199, 400)
    assert num_open(found) < 40
    assert num_open(gate_cycles(Governor(), 4, 0.19, 400)) > 360


def drafting(load: BatchBudget) -> bool:
    """Whether the first slot would draft."""
    return math.isfinite(load.costs(0).forward_s(1))


def test_on_shared_cores_nobody_drafts_while_a_prompt_is_read() -> None:
    load, apart = BatchBudget(Costs(), cores_for_target=1), BatchBudget(Costs())
    for shared in (load, apart):
        for slot in range(2):
            shared.begin(slot)
        began = []
        for i in range(40):
            shared.observe({0: 1 + i % 4, 1: 1}, 0.1 + 0.02 * (i % 4))
            shared.ended(2, 0.1 * i, is_plain_work=True)
            shared.count_tokens(3 if began else 2)
            if drafting(shared):
                began.append(i)
        assert began[0] == 0 if shared is apart else began[0] > 12, "plain decoding comes first"
        assert drafting(shared)
        known_s = shared.costs(0).forward_s(0)
        shared.end(1)
        shared.begin(1)
        assert shared.costs(0).forward_s(0) == known_s, "who reads will ask for a row"
    assert not drafting(load)
    assert drafting(apart)
    load.observe({0: 1, 1: 1}, 0.1)
    assert drafting(load)


def test_an_answer_is_told_what_all_may_draft_from() -> None:
    load = BatchBudget(Costs(), cores_for_target=1)
    for slot in range(2):
        load.begin(slot)
    load.observe({0: 1, 1: 1}, 0.1)
    seen = []
    for i in range(40):
        load.ended(2, 0.1 * i, 0.15 * i, is_plain_work=True)
        seen.append(load.costs(0).sources())
        load.count_tokens(2 + seen[-1])
    assert seen[:16] == [Sources.NONE] * 16
    assert set(seen[18:]) <= {Sources.FREE, Sources.NONE}
    assert seen.count(Sources.FREE) > 15
    load.end(1)
    assert load.costs(0).sources() == Sources.ALL, "alone it is its own choice"


def test_forwards_that_read_prompts_or_lose_an_answer_tell_nothing() -> None:
    gate = Governor()
    for i in range(60):
        gate.cycle(2 + 2 * (i % 2), 0.1 * i, is_plain_work=True)
        gate.count_tokens(1)
        assert gate.sources() == Sources.ALL
    for i in range(60):
        gate.cycle(4, 10 + 0.1 * i, is_plain_work=False)
        gate.count_tokens(1)
        assert gate.sources() == Sources.ALL


def test_answers_that_never_draft_tell_nothing_of_drafting() -> None:
    gate = Governor(cores_for_target=1)
    for i in range(-400, 0):
        gate.cycle(4, 0.1 * i, is_plain_work=True)
        gate.count_tokens(4)
    found = gate_cycles(gate, 4, 0.15, 200)
    assert not any(found[:16]), "those that would draft have not waited yet"
    assert num_open(found) > 160


def test_a_pass_of_one_target_tells_nothing_of_another() -> None:
    costs = Costs()
    costs.observe_step(0.002)
    budget = BatchBudget(costs, shared=1)
    budget.begin(0)
    own = budget.costs(0)
    for _ in range(8):
        budget.observe({0: 1}, 0.1)
        budget.observe({0: 9}, 0.2)
        budget.observe({0: 81}, 7.0, [2])
    assert (own.forward_s(0), own.forward_s(8)) == (0.1, 0.2)
    budget.use(0, 2)
    assert own.forward_s(80) == own.soonest_s(80) == 7.0
    assert own.step_s() == 0.002, "the draft model is the same"
    budget.use(0, 1)
    assert not own.is_measured
    assert own.forward_s(0) == Costs().forward_s(0)
    budget.observe({0: 1}, 0.5, [1])
    assert own.forward_s(0) == 0.5
    budget.begin(1)
    for slot in (0, 1):
        budget.use(slot, 1)
    budget.observe({0: 1, 1: 1}, 0.6, [1])
    assert own.forward_s(0) == pytest.approx(0.6, rel=0.02), "of two at the shared one"
    budget.observe({0: 81, 1: 1}, 20.0, [2])
    assert own.forward_s(0) == pytest.approx(0.6, rel=0.02)
    before_s = own.forward_s(8)
    budget.observe({0: 9, 1: 1}, 7.0, [2, 1])
    assert own.forward_s(8) > before_s, "it had a part in it"
    budget.end(1)
    budget.end(0)
    budget.begin(0)
    assert own.forward_s(0) == 0.1, "another request, at the target of one alone"
    budget.end(0)

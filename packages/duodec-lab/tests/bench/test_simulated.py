"""The simulated bed: real rows and drafts on a clock that passes as cost tables say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from time import sleep

import numpy as np
import pytest
from fakes.decoding import FakeTokenizer, ListedTexts, Session, decode_rounds, plain_text, proven
from hypothesis import given
from hypothesis import strategies as st

from duodec.backends.curves import CostCurve
from duodec.backends.translation.wrapped import Wrapped
from duodec.cli.app import run
from duodec.core.draft import Draft
from duodec.core.drafters import DraftModel, DraftRequest, RowQuery
from duodec.core.round import Round
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Sampler, SamplingParams
from duodec.core.targets import Candidates, Query, Scores, Target
from duodec.core.traits import DraftTraits
from duodec.drafting.growth import Tree
from duodec.drafting.heads import Likeliest
from duodec.drafting.plans import Chain
from duodec.errors import BadOption
from duodec.llm import LLM
from duodec.methods.registry import METHODS, method
from duodec.methods.request import NoDrafter
from duodec.planning.costs import Costs
from duodec.testing import TableDraftModel, TableModel, TableTarget
from duodec_lab.bench.beds import Parts
from duodec_lab.bench.beds.host import HostPrices
from duodec_lab.bench.beds.latency import LatencyCurve
from duodec_lab.bench.beds.simulated import SimulatedBed
from duodec_lab.bench.beds.virtual import (
    HANDOVER_S,
    PricedModel,
    RowKey,
    SimulatedDrafter,
    SimulatedTarget,
    StepTable,
    VirtualClock,
    innermost,
)
from duodec_lab.bench.plan import BenchPlan
from duodec_lab.bench.recording import Turn, record
from duodec_lab.bench.results import Results
from duodec_lab.bench.run import simulate
from duodec_lab.bench.tasks import Prompt, read_prompts

MODEL = TableModel(num_vocab=64, seed=3)
DRAFT = replace(MODEL, noise=0.3)
STEP_S, SLOPE_S = 1 / 512, 1 / 2048  # of a draft step over one token, and of one more
TABLE = StepTable(((1, STEP_S), (2, STEP_S + SLOPE_S)))
FORWARD_S = 1 / 64
PROMPT = [3, 1, 4, 1, 5]
TEXT = np.array([1, 2, 3], dtype=np.int32)
WARM = SamplingParams(temperature=0.8, seed=5)

# --- cost tables


def test_a_table_is_read_as_it_is_written() -> None:
    table = StepTable.parse("8:4.9,1:1.3, 4:2.5")
    assert [num for num, _ in table.points] == [1, 4, 8]
    assert [seconds for _, seconds in table.points] == pytest.approx([0.0013, 0.0025, 0.0049])
    assert str(table) == "1:1.3,4:2.5,8:4.9"
    assert StepTable.parse(str(table)) == table


def test_costs_lie_between_points_and_go_on_beyond_the_last() -> None:
    table = StepTable(((2, 1.0), (4, 2.0), (8, 6.0)))
    assert [table.seconds(n) for n in (1, 2, 3, 4, 6, 8)] == [1.0, 1.0, 1.5, 2.0, 4.0, 6.0]
    assert [table.seconds(n) for n in (9, 16)] == [7.0, 14.0]
    assert [StepTable(((4, 2.0),)).seconds(n) for n in (1, 4, 8)] == [2.0, 2.0, 4.0]
    falling = StepTable(((1, 2.0), (4, 1.0)))
    assert falling.seconds(100) == 1.0  # what is wider never becomes free


@proven
@given(st.dictionaries(st.integers(1, 64), st.integers(0, 1 << 20), min_size=1), st.integers(1, 99))
def test_a_table_agrees_with_its_points(points: dict[int, int], num_tokens: int) -> None:
    table = StepTable(tuple(sorted((n, s / 1024) for n, s in points.items())))
    for num, seconds in points.items():
        assert table.seconds(num) == seconds / 1024
    near = [s / 1024 for n, s in points.items()]
    if num_tokens <= max(points):
        assert min(near) <= table.seconds(num_tokens) <= max(near)
    else:
        assert table.seconds(num_tokens) >= points[max(points)] / 1024


def test_a_faster_machine_has_a_smaller_table() -> None:
    assert TABLE.faster(4.0).points == ((1, STEP_S / 4), (2, (STEP_S + SLOPE_S) / 4))
    assert TABLE.faster(math.inf).seconds(50) == 0.0


BAD_TABLES = [
    "x", "", "1", "1:", ":2", "1:x", "1.5:2", "0:1", "-1:2", "1:-2", "1:nan", "1:inf", "1:2,,",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_TABLES)
def test_a_table_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadOption) as error:
        StepTable.parse(text)
    assert f"'{text}'" in str(error.value)


# --- the clock and the drafter


class Metered(TableDraftModel):
    """Computes for each query as many tokens as it is told to; has more text to read."""

    traits = DraftTraits(has_window=True, counts_tokens=True)

    def __init__(self, num_by_query: Sequence[int] = (), num_by_part: Sequence[int] = ()) -> None:
        super().__init__(DRAFT)
        object.__setattr__(self, "left", list(num_by_query))
        object.__setattr__(self, "parts", list(num_by_part))
        object.__setattr__(self, "num", 7)
        object.__setattr__(self, "widened", [])

    def _count(self, num_tokens: int) -> None:
        object.__setattr__(self, "num", self.num + num_tokens)

    @property
    def num_computed(self) -> int:
        return self.num

    def rows(self, query: RowQuery) -> list[Row]:
        self._count(self.left.pop(0) if self.left else 1)
        return super().rows(query)

    def widen(self, slot: int, *, is_idle: bool) -> bool:
        self.widened.append((slot, is_idle))
        if is_idle and self.parts:
            self._count(self.parts.pop(0))
            return True
        return False

    left: list[int]
    parts: list[int]
    num_computed: int
    widened: list[tuple[int, bool]]


def drafter_of(
    model: DraftModel | None = None, table: StepTable = TABLE
) -> tuple[SimulatedDrafter, VirtualClock]:
    clock = VirtualClock()
    return SimulatedDrafter(PricedModel(model or DRAFT.load(), table), clock), clock


def test_a_virtual_clock_passes_when_it_is_told_to() -> None:
    clock = VirtualClock()
    start = clock()
    clock.advance(5.0)
    sleep(0.002)
    assert clock() - start == 5.0


def test_a_forward_pass_costs_what_the_table_says_for_its_tokens() -> None:
    model = Metered([120, 1, 4, 0])
    priced = PricedModel(model, TABLE)
    taken = []
    for _ in range(4):
        before = priced.clock()
        priced.rows(RowQuery(0, TEXT, Draft(), (0,)))
        taken.append(priced.clock() - before)
    assert taken == [TABLE.seconds(120), TABLE.seconds(1), TABLE.seconds(4), 0.0]
    plain = PricedModel(DRAFT.load(), TABLE)  # one that does not count: by the rows wanted
    plain.rows(RowQuery(0, TEXT, Draft.sequences([[1], [2]]), (0, 1, 2)))
    assert plain.busy_s == TABLE.seconds(3)
    assert not plain.widen(0, is_idle=True)
    assert plain.busy_s == TABLE.seconds(3)


class ReadTwice(Wrapped):
    """Asks its model once more for what it was asked, as a translation may."""

    def rows(self, query: RowQuery) -> list[Row]:
        self.model.rows(query)
        return self.model.rows(query)


def test_each_forward_pass_within_a_translation_has_its_price() -> None:
    priced = PricedModel(ReadTwice(ReadTwice(Metered([120, 1, 4, 1]))), TABLE)
    priced.rows(RowQuery(0, TEXT, Draft(), (0,)))
    passes = [TABLE.seconds(num) for num in (120, 1, 4, 1)]
    assert priced.busy_s == priced.clock() == sum(passes) != TABLE.seconds(126)


class Taught(TableDraftModel):
    """Has measured itself before."""

    def fresh(self) -> DraftModel:
        return DRAFT.load()


def test_a_priced_model_anew_has_measured_nothing() -> None:
    priced = PricedModel(ReadTwice(Taught(DRAFT)), TABLE)
    priced.rows(RowQuery(0, TEXT, Draft(), (0,)))
    other = priced.fresh()
    assert other.busy_s == 0.0
    assert isinstance(other.model, ReadTwice)
    assert type(innermost(other.model)) is type(DRAFT.load())
    other.rows(RowQuery(0, TEXT, Draft(), (0,)))
    assert other.busy_s == priced.busy_s == 2 * TABLE.seconds(1)


def test_a_simulated_drafter_has_made_what_fits_into_the_time() -> None:
    drafter, clock = drafter_of()
    drafter.submit(DraftRequest(0, TEXT, Chain(6), Sampler()))
    made = []
    for begin, end in [(0, HANDOVER_S), *((HANDOVER_S + n * STEP_S, 0) for n in range(6))]:
        del end
        clock.advance(max(0.0, begin + STEP_S / 2 - clock()))
        made.append(len(drafter.poll(0).draft))
    assert made == [0, 0, 1, 2, 3, 4, 5]
    assert not drafter.poll(0).is_complete
    done = drafter.poll(0, wait_s=1.0)
    assert len(done.draft) == 6
    assert done.is_complete
    assert clock() == pytest.approx(HANDOVER_S + 6 * STEP_S, rel=1e-12)
    assert done.draft_s == done.busy_s == 6 * STEP_S
    drafter.poll(0, wait_s=1.0)
    assert clock() == pytest.approx(HANDOVER_S + 6 * STEP_S, rel=1e-12)  # nothing is owed any more


def test_a_step_is_seen_after_it_has_travelled_and_not_before() -> None:
    drafter, clock = drafter_of()
    drafter.submit(DraftRequest(0, TEXT, Chain(6), Sampler()))
    clock.advance(HANDOVER_S + STEP_S - 1e-9)
    assert len(drafter.poll(0).draft) == 0
    clock.advance(2e-9)
    assert len(drafter.poll(0).draft) == 1


def test_a_draft_model_beside_the_target_gets_no_messages() -> None:
    clock = VirtualClock()
    drafter = SimulatedDrafter(PricedModel(DRAFT.load(), TABLE), clock, handover_s=0.0)
    drafter.submit(DraftRequest(0, TEXT, Chain(3), Sampler()))
    assert len(drafter.poll(0, wait_s=1.0).draft) == 3
    assert clock() == pytest.approx(3 * STEP_S, rel=1e-12)


def test_a_wait_ends_with_the_next_candidates() -> None:
    drafter, clock = drafter_of()
    drafter.submit(DraftRequest(0, TEXT, Tree(num_leaves=2), Sampler()))
    first = drafter.poll(0, wait_s=1.0, beyond=0).tree
    assert first is not None
    assert clock() == pytest.approx(HANDOVER_S + STEP_S, rel=1e-12)
    num = len(first)
    again = drafter.poll(0, wait_s=1.0, beyond=num).tree
    assert again is not None
    assert len(again) > num
    assert clock() == pytest.approx(HANDOVER_S + 2 * STEP_S + SLOPE_S, rel=1e-12)
    drafter.cancel(0)
    num = len(again)
    clock.advance(1.0)
    assert len(drafter.poll(0).tree or ()) == num


def test_a_wait_ends_when_its_time_is_up() -> None:
    drafter, clock = drafter_of()
    drafter.submit(DraftRequest(0, TEXT, Chain(6), Sampler()))
    assert len(drafter.poll(0, wait_s=HANDOVER_S + 1.5 * STEP_S).draft) == 1
    assert clock() == HANDOVER_S + 1.5 * STEP_S


def test_a_faster_drafter_takes_less_time_and_one_that_takes_none_has_all_at_once() -> None:
    made = []
    for speed in (1.0, 10.0, math.inf):
        drafter, clock = drafter_of(table=TABLE.faster(speed))
        drafter.submit(DraftRequest(0, TEXT, Chain(40), Sampler()))
        clock.advance(HANDOVER_S + 3.55 * STEP_S)
        made.append(len(drafter.poll(0).draft))
    assert made == [3, 35, 40]


def test_a_simulated_drafter_tells_what_its_steps_took() -> None:
    drafter, clock = drafter_of()
    drafter.submit(DraftRequest(0, TEXT, Tree(num_leaves=2), Sampler()))
    clock.advance(0.05)
    fresh = drafter.poll(0)
    assert fresh.root_s == STEP_S  # nothing was known of this text
    assert fresh.step_s == pytest.approx(STEP_S + SLOPE_S, rel=1e-12)
    assert fresh.step_leaves == 2.0
    assert fresh.busy_s == fresh.draft_s
    tree = fresh.tree
    assert tree is not None
    text = np.append(TEXT, np.int32(tree.tokens[0]))
    drafter.submit(DraftRequest(0, text, Tree(num_leaves=2), Sampler()))
    clock.advance(0.05)
    assert drafter.poll(0).root_s == 0.0  # it was known from the last tree
    assert drafter.poll(0).busy_s > fresh.busy_s


def test_the_step_in_work_is_finished_before_a_new_request_is_seen() -> None:
    drafter, clock = drafter_of()
    drafter.submit(DraftRequest(0, TEXT, Chain(6), Sampler()))
    clock.advance(HANDOVER_S + 1.5 * STEP_S)
    drafter.submit(DraftRequest(0, TEXT[:2], Chain(6), Sampler()))
    drafter.poll(0, wait_s=1.0)
    assert clock() == pytest.approx(HANDOVER_S + 8 * STEP_S, rel=1e-12)


def test_text_that_is_read_takes_its_time() -> None:
    """A chain of no tokens reads the text, and the next request is seen after that."""
    drafter, clock = drafter_of(Metered([100, 1, 1]))
    drafter.submit(DraftRequest(0, TEXT, Chain(0), Sampler()))
    drafter.submit(DraftRequest(0, TEXT, Chain(1), Sampler()))
    drafter.poll(0, wait_s=10.0)
    read_s = TABLE.seconds(100)
    assert clock() == pytest.approx(HANDOVER_S + read_s + STEP_S, rel=1e-12)


def test_an_idle_drafter_reads_more_of_the_text_as_time_allows() -> None:
    model = Metered(num_by_part=[64] * 5)
    drafter, clock = drafter_of(model)
    drafter.submit(DraftRequest(3, TEXT, Chain(1), Sampler()))
    drafter.poll(3, wait_s=1.0)
    assert model.widened.count((3, True)) == 1  # begun as soon as the draft was made
    clock.advance(1.5 * TABLE.seconds(64))
    drafter.poll(3)
    assert model.widened.count((3, True)) == 2  # the second is not over yet
    begin = clock()
    drafter.submit(DraftRequest(3, TEXT, Chain(1), Sampler()))
    drafter.poll(3, wait_s=1.0)
    late = 0.5 * TABLE.seconds(64)
    assert clock() - begin == pytest.approx(late + STEP_S, abs=HANDOVER_S)


# --- the target


@dataclass
class Counted(Target):
    """A target that notes every place that it computes."""

    model: TableModel
    places: list[tuple[int, ...]] = field(default_factory=list)
    num_passes: int = 0

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        self.num_passes += 1
        for query in queries:
            for node in range(-1, len(query.draft)):
                self.places.append((*query.text.tolist(), *query.draft.path_tokens(node)))
        return TableTarget(self.model).score(queries)


def recorded(params: SamplingParams = WARM, num_tokens: int = 40) -> np.ndarray:
    return np.array([*PROMPT, *plain_text(MODEL, params, num_tokens, PROMPT)], dtype=np.int32)


def own_candidates(recording: np.ndarray, first: int = len(PROMPT)) -> dict[int, Candidates]:
    """What the target holds likely along a text."""
    found = {}
    for position in range(first, len(recording)):
        query = Query(0, recording[:position], num_candidates=8)
        found[position] = TableTarget(MODEL).score([query])[0].candidates(0)
    return found


def test_rows_are_the_real_targets_and_computed_once_for_each_place() -> None:
    text = recorded()
    real = Counted(MODEL)
    known: dict[RowKey, Candidates] = {}
    at = 10
    right, wrong = text[at : at + 2].tolist(), int(text[at]) ^ 1
    draft = Draft.sequences([[*right, wrong], [wrong, 7, 8], [wrong, 9]])
    sampler = Sampler(WARM, 0, len(PROMPT))
    query = Query(0, text[:at], draft, sampler, num_candidates=8)
    (expected,) = TableTarget(MODEL).score([query])
    for _ in range(2):  # the second run knows the rows of the first
        target = SimulatedTarget(
            real,
            text,
            LatencyCurve(CostCurve.flat(FORWARD_S)),
            VirtualClock(),
            own_candidates(text),
            known,
        )
        for _ in range(2):
            (scores,) = target.score([query])
            assert scores.num_rows == expected.num_rows == 8
            for row in range(scores.num_rows):
                assert scores.candidates(row) == expected.candidates(row)
    assert real.num_passes == 1
    on_text = {tuple(text[:end].tolist()) for end in (at, at + 1, at + 2)}
    off = {(*text[:at].tolist(), *draft.path_tokens(n)) for n in range(len(draft))} - on_text
    assert len(off) == 5
    assert all(real.places.count(place) == 1 for place in off)
    few = target.score([replace(query, num_candidates=2)])[0]
    assert [few.candidates(row).tokens for row in range(8)] == [
        expected.candidates(row).tokens[:2] for row in range(8)
    ]
    assert [scores.draw(row).token for row in range(3)] == [*right, int(text[at + 2])]
    assert scores.draw(4) == expected.draw(4)  # off the text: the target's own
    assert scores.distribution(4).probs.tolist() == expected.distribution(4).probs.tolist()


def test_a_text_that_left_the_recording_is_the_targets_own() -> None:
    text = recorded()
    other = text[:12].copy()
    other[-1] ^= 1
    target = SimulatedTarget(
        TableTarget(MODEL), text, LatencyCurve(CostCurve.flat(0.0)), VirtualClock()
    )
    query = Query(0, other, Draft.chain([5, 6]), Sampler(WARM, 0, len(PROMPT)), num_candidates=8)
    (scores,), (expected,) = target.score([query]), TableTarget(MODEL).score([query])
    for row in range(3):
        assert scores.draw(row) == expected.draw(row)
        assert scores.candidates(row) == expected.candidates(row)
    beyond = np.append(text, np.int32(4))
    query = replace(query, text=beyond)
    (scores,), (expected,) = target.score([query]), TableTarget(MODEL).score([query])
    assert scores.draw(0) == expected.draw(0)


def test_a_forward_pass_takes_what_the_curve_says() -> None:
    text, clock = recorded(), VirtualClock()
    curve = LatencyCurve(CostCurve.flat(FORWARD_S, num_rows=4), prefill_s=1 / 1024)
    target = SimulatedTarget(TableTarget(MODEL), text, curve, clock)
    target.score([Query(0, text[:11])])
    assert clock() == FORWARD_S + 10 / 1024
    target.score([Query(0, text[:12], Draft.chain(text[12:19].tolist()))])
    assert clock() == 3 * FORWARD_S + 10 / 1024  # eight rows cost two of four
    target.score([Query(0, text[:15])])  # three were accepted: nothing new is read
    assert clock() == 4 * FORWARD_S + 10 / 1024


# --- all methods


def simulated(
    name: str,
    params: SamplingParams,
    *,
    target: object = None,
    kind: type[SimulatedTarget] = SimulatedTarget,
    draft: TableModel = DRAFT,
    num_tokens: int = 40,
    host: HostPrices | None = None,
    has_draft_model: bool = True,
    datastore: ListedTexts | None = None,
) -> tuple[Session, list[Round]]:
    """A method on the bed, with nothing shared with any other run."""
    text, clock = recorded(params, num_tokens), VirtualClock()
    heads = draft if METHODS[name].needs_heads else None
    simulated_target = kind(
        target  # type: ignore[arg-type]
        or TableTarget(MODEL, heads=heads, kind_of_heads=METHODS[name].needs_heads),
        text,
        LatencyCurve(CostCurve.flat(FORWARD_S)),
        clock,
        own_candidates(text),
        host=host or HostPrices(),
    )
    session = Session(
        simulated_target,
        PROMPT,
        len(text),
        SimulatedDrafter(PricedModel(draft.load(), TABLE), clock)
        if has_draft_model
        else NoDrafter(),
        Sampler(params, 0, len(PROMPT)),
        datastore=datastore if datastore is not None else ListedTexts([text.tolist()]),
        clock=clock,
        costs=Costs(),
    )
    rounds = list(decode_rounds(method(name), session))
    return session, rounds


@pytest.mark.parametrize("price", [None, 0.25])
def test_the_targets_own_heads_cost_what_is_given(price: float | None) -> None:
    text, clock = recorded(SamplingParams(), 8), VirtualClock()
    target = SimulatedTarget(
        TableTarget(MODEL, heads=DRAFT),  # whose heads read nothing
        text,
        LatencyCurve(CostCurve.flat(FORWARD_S)),
        clock,
        host=HostPrices(heads=price),
    )
    for plan in (None, Likeliest()):
        begin_s = clock()
        target.score([Query(0, text[: len(PROMPT)], Draft(), Sampler(), heads=plan)])
        extra_s = price if plan and price else 0.0
        assert clock() - begin_s == pytest.approx(FORWARD_S + extra_s)


@pytest.mark.slow
@pytest.mark.parametrize("params", [SamplingParams(), WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("has_draft_model", [True, False])
@pytest.mark.parametrize(("noise", "is_used"), [(0.2, True), (3.0, False)])
def test_weak_heads_rest_and_good_ones_do_not(
    noise: float, is_used: bool, has_draft_model: bool, params: SamplingParams
) -> None:
    class Counted(SimulatedTarget):
        def score(self, queries: Sequence[Query]) -> list[Scores]:
            asked.extend(query.heads is not None for query in queries)
            return super().score(queries)

    asked: list[bool] = []
    heads = replace(MODEL, noise=noise)
    session, _ = simulated(
        "auto",
        params,
        target=TableTarget(MODEL, heads=heads, kind_of_heads="medusa"),
        kind=Counted,
        host=HostPrices(heads=0.1 * FORWARD_S),
        has_draft_model=has_draft_model,
        datastore=ListedTexts([[0]]),
        num_tokens=800,
    )
    assert (fmean(asked) > 0.6) == is_used, fmean(asked)
    assert np.array_equal(session.text, recorded(params, 800))


@pytest.mark.parametrize("params", [SamplingParams(), WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_tells_the_recorded_text(name: str, params: SamplingParams) -> None:
    session, rounds = simulated(name, params)
    assert session.remaining == 0
    assert all(done.end_s - done.start_s == pytest.approx(FORWARD_S) for done in rounds)
    if name != "sps-rejection" or params.temperature == 0:
        assert np.array_equal(session.text, recorded(params))
    if name == "ar":
        assert session.clock() == 40 * FORWARD_S
    else:
        assert sum(done.num_scored for done in rounds) > 0


@pytest.mark.parametrize("name", METHODS)
def test_the_same_table_gives_the_same_figures_however_long_it_takes(name: str) -> None:
    class Slow(TableTarget):
        def score(self, queries: Sequence[Query]) -> list[Scores]:
            sleep(0.002 * (len(queries[0].text) % 3))
            return super().score(queries)

    kind = METHODS[name].needs_heads
    slow_target = Slow(MODEL, heads=DRAFT if kind else None, kind_of_heads=kind)
    _, rounds = simulated(name, WARM)
    again, same = simulated(name, WARM)
    late, slow = simulated(name, WARM, target=slow_target, draft=replace(DRAFT, seconds=0.0005))
    assert same == rounds  # to the last bit, times included
    assert slow == rounds
    assert late.clock() == again.clock()


def test_drafting_is_concurrent() -> None:
    """While a forward pass of the target runs, as many draft steps are made as fit in."""
    _, rounds = simulated("pearl", WARM)
    later = [done for done in rounds[2:-3] if done.overlap_s]
    assert later
    assert all(done.overlap_s <= FORWARD_S for done in later)
    num_steps = int((FORWARD_S - HANDOVER_S) / STEP_S)
    assert max(done.overlap_s for done in later) == pytest.approx(num_steps * STEP_S)


@pytest.mark.parametrize("name", ["stream", "auto"])
def test_a_drafter_whose_steps_are_never_seen_to_end_is_given_up_soon(name: str) -> None:
    """Its steps outlast the texts that they are for, so none of them is ever timed."""
    params, clock = SamplingParams(temperature=3.0, seed=5), VirtualClock()
    text = recorded(params, 60)
    session = Session(
        SimulatedTarget(
            TableTarget(MODEL), text, LatencyCurve(CostCurve.flat(FORWARD_S)), clock, {}
        ),
        PROMPT,
        len(text),
        SimulatedDrafter(PricedModel(DRAFT.load(), StepTable(((1, 20 * FORWARD_S),))), clock),
        Sampler(params, 0, len(PROMPT)),
        clock=clock,
        costs=Costs(),
    )
    rounds = list(decode_rounds(method(name), session))
    waits = [r.draft_wait_s for r in rounds]
    assert len(waits) > 40
    assert sum(waits) < 6 * FORWARD_S
    assert not any(waits[20:])


def test_a_bed_repeats_itself_and_its_answers_are_cold() -> None:
    tokenizer = FakeTokenizer(tuple(bytes([i]) for i in range(128)), chat_template="{{ messages }}")
    model = TableModel(num_vocab=128, order=1, seed=3)
    engine = LLM(TableTarget(model), tokenizer, 2000)
    prompts = [Prompt("qa", str(i), (f"qa {i}?",), None, None) for i in range(2)]
    turns: list[Turn] = [c.turns[0] for c in record(engine, prompts, SamplingParams(), 24)]

    def figures(names: Sequence[str]) -> list[list[tuple[Round, ...]]]:
        parts = Parts(tokenizer, 2000, None, None, SamplingParams(), ())
        priced = PricedModel(replace(model, noise=0.3).load(), TABLE)
        bed = SimulatedBed(
            parts, TableTarget(model), priced, LatencyCurve(CostCurve.flat(FORWARD_S))
        )
        assert bed.name == "simulated"
        assert bed.forward_s == FORWARD_S
        found: list[list[tuple[Round, ...]]] = [[] for _ in names]
        costs = [Costs() for _ in names]
        for turn in turns:
            for name, own_costs, rounds in zip(names, costs, found, strict=True):
                bed.forget()
                finished = bed.answer(method(name), turn, own_costs)
                assert finished.tokens == turn.answer
                rounds.append(finished.stats.rounds)
        return found

    names = ("auto", "recycling", "pearl", "pearl", "stream", "sps")
    together = figures(names)
    assert together == figures(names)
    for name, rounds in zip(names, together, strict=True):
        assert [rounds] == figures((name,))  # no method learns from another
        assert rounds[0][0].start_s == 0.0


# --- the commands


def bench(folder: Path, *arguments: str) -> int:
    return run([
        "bench", "--tasks", "qa", "--limit", "1", "-n", "8", "--quiet", "--output", str(folder),
        *arguments,
    ])  # fmt: skip


@pytest.mark.slow
def test_a_simulation_is_reported_and_repeats_itself(tmp_path: Path) -> None:
    asked = ["--methods", "ar,duo", "--simulate-ms", "20"]
    asked += ["--host-us", "copy:8,draw:120,candidates:60,selection:40"]  # else it is measured
    for name in ("first", "second"):
        assert bench(tmp_path / name, *asked, "--draft-ms", "1:1.3,4:2.5,8:4.9") == 0
    first, second = (Results.read(tmp_path / name) for name in ("first", "second"))
    assert first.settings["draft_ms"] == "1:1.3,4:2.5,8:4.9"
    assert first.settings["simulate_ms"] == 20.0
    assert "virtual clock" in first.settings["notes"][0]
    for g, again in zip(first.generations, second.generations, strict=True):
        assert g.error is None
        assert g.test_bed == "simulated"
        assert g.identical is None  # the recorded text is enforced
        assert (g.ttft_s, g.decode_s, g.trace) == (again.ttft_s, again.decode_s, again.trace)
    assert "simulated" in (tmp_path / "first" / "report.html").read_text()


def traces(results: Results) -> list[object]:
    return [generation.as_json()["trace"] for generation in results.generations]


@pytest.mark.parametrize(
    ("curve", "shape"),
    [
        pytest.param("mi50-27b-q8_0", "tree", marks=pytest.mark.soak),
        pytest.param("rtx3090-8b-q4_0", "llama.cpp", marks=pytest.mark.slow),
        pytest.param("roofline:3350GB/s,989TFLOPS,13.5GB,16bit", "torch", marks=pytest.mark.soak),
    ],
)
def test_what_is_measured_at_the_start_gives_the_figures_again(
    curve: str, shape: str, tmp_path: Path
) -> None:
    """Kept with the results, and given back; `duodec plan` is the same simulation."""
    methods = ("ar", "sps:2", "auto")
    asked = ["--methods", ",".join(methods), "--simulate-ms", curve, "--simulate-as", shape]
    assert bench(tmp_path / "measured", *asked) == 0
    measured = Results.read(tmp_path / "measured")
    draft_ms, host_us = measured.settings["draft_ms"], measured.settings["host_us"]
    assert [num for num, _ in StepTable.parse(draft_ms).points] == [1, 2, 4, 8, 16, 32, 64]
    prices = HostPrices.parse(host_us)
    assert min(prices.draw, prices.between, prices.handover) > 0
    assert host_us in (tmp_path / "measured" / "report.html").read_text()
    plan = BenchPlan(
        methods=methods, tasks=("qa",), limit=1, max_tokens=8, simulate_ms=curve,
        simulate_as=shape, draft_ms=draft_ms, host_us=host_us,
    )  # fmt: skip
    planned = simulate(plan, read_prompts(None, ("qa",), 1), lambda *_: None)
    asked += ["--draft-ms", draft_ms, "--host-us", host_us]
    assert bench(tmp_path / "given", *asked) == 0
    for again in (planned, Results.read(tmp_path / "given")):
        assert (again.settings["draft_ms"], again.settings["host_us"]) == (draft_ms, host_us)
        assert traces(again) == traces(measured)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        *((["--simulate-ms", "20", "--draft-ms", text], f"'{text}'") for text in BAD_TABLES),
        (["--draft-ms", "1:2"], "--simulate-ms"),
        (["--simulate-ms", "20", "--replay-ms", "20"], "replay-ms and simulate-ms"),
        (["--simulate-ms", "-1"], "simulate-ms is -1"),
        (["--simulate-ms", "nan"], "simulate-ms is nan"),
        (["--simulate-ms", "inf"], "simulate-ms is inf"),
    ],
    ids=str,
)
def test_a_simulation_that_cannot_be_is_refused_in_one_line(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path / "out", "--methods", "ar", *arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_one_command_plans(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--target-ms", "20", "--methods", "ar,recycling,stream"]
    arguments += ["--tasks", "qa", "--limit", "1", "-n", "8", "--quiet"]
    assert run([*arguments, "--draft-speed", "4"]) == 0
    said = capsys.readouterr()
    out = " ".join(said.out.split())
    assert "stream" in out
    assert "recycling" in out
    assert f"{CostCurve.parse('20').words} a forward pass of the target" in out
    assert "1/4 of the table" in out
    assert "the same costs again: --draft-ms 1:" in said.err
    assert "--host-us copy:" in said.err
    assert run([*arguments, "--draft-speed", "0"]) == 2
    assert "draft-speed is 0" in capsys.readouterr().err
    assert run([*arguments, "--draft-ms", "x"]) == 2
    assert "'x'" in capsys.readouterr().err
    assert run(["plan", "--target-ms", "-1"]) == 2
    assert "-1" in capsys.readouterr().err

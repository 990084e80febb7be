"""The proposer without vLLM: what it owes the hook, whatever rows and drafter do.

The engine's side is a fake that verifies as vLLM does, so texts cannot be wrong; drafts can: a
draft model that is the target is right to the last token wherever rows are told apart.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from time import perf_counter, sleep

import numpy as np
import pytest
from fakes.decoding import FakeClock, FixedBudget, LoggedDrafter, plain_text
from fakes.vllm_rows import FakeEngine

from duodec.backends.drafter.process import ProcessDrafter
from duodec.core.drafters import Drafted, DraftRequest
from duodec.core.sampling.sampler import SamplingParams
from duodec.methods.request import NoDrafter
from duodec.planning.costs import Costs
from duodec.planning.governor import Sources
from duodec.testing import TableModel
from duodec_vllm.draft_lengths import BatchSize, DraftLengths, ProposedChain
from duodec_vllm.drafter_thread import DrafterThread
from duodec_vllm.requests import Request, Requests, Row
from duodec_vllm.speculator import Speculator

TABLE = TableModel(seed=7)
NUM_TOKENS = 4
LONG_S = 20.0


class Seen(LoggedDrafter):
    """Also notes the slots that shall rest."""

    def __init__(self, model: TableModel) -> None:
        super().__init__(model.load())
        self.rested: list[int] = []

    def cancel(self, slot: int) -> None:
        self.rested.append(slot)
        super().cancel(slot)


class Modelled(Speculator):
    """Drafts from the model's trees alone."""

    def _from_texts(self, request: Request) -> ProposedChain:
        return ProposedChain()


class Bench:
    """A speculator on a fake engine. The drafter's thread has its turn between two steps."""

    def __init__(
        self,
        drafter: Seen | NoDrafter,
        *,
        num_slots: int = 16,
        max_length: int = 4096,
        seconds: Callable[[int, int], float] = lambda rows, drafted: 0.05,
        chunk: int = 4096,
        num_turns: int = 4,
        kind: type[Speculator] = Modelled,
        num_whole: int = 0,
    ) -> None:
        self.clock = FakeClock()
        self.drafter_thread = DrafterThread(drafter)
        self.speculator = kind(
            NUM_TOKENS, max_length, self.drafter_thread, num_slots, num_whole, self.clock
        )
        self.num_turns = num_turns
        self.engine = FakeEngine(self.propose, TABLE, self.clock, seconds, chunk)

    def propose(
        self, sampled: list[list[int]], lengths: np.ndarray, texts: np.ndarray
    ) -> list[list[int]]:
        rows = [Row(texts[i, : lengths[i]], len(new)) for i, new in enumerate(sampled)]
        drafts = self.speculator.propose(rows)
        for _ in range(self.num_turns):
            self.drafter_thread.turn()
        return drafts


def prompts(count: int, length: int = 8) -> list[list[int]]:
    dice = random.Random(3)
    return [[dice.randrange(32) for _ in range(length)] for _ in range(count)]


def acceptance(bench: Bench, rows: list) -> tuple[int, int]:
    pairs = [pair for row in rows for pair in row.accepted]
    return sum(drafted for drafted, _ in pairs), sum(accepted for _, accepted in pairs)


# --- drafts and rows


def test_a_perfect_draft_is_accepted_whole_in_every_row() -> None:
    bench = Bench(Seen(TABLE))
    rows = [bench.engine.add(prompt, 20 + 7 * i) for i, prompt in enumerate(prompts(5))]
    bench.engine.run()
    drafted, accepted = acceptance(bench, rows)
    assert drafted == accepted > 60  # rows of different lengths: they moved when others ended
    for row in rows:
        plain = plain_text(TABLE, SamplingParams(), len(row.tokens), row.prompt)
        assert row.tokens == plain


def test_no_draft_is_longer_than_asked_nor_beyond_the_longest_text() -> None:
    bench = Bench(Seen(TABLE), max_length=24)
    row = bench.engine.add(prompts(1)[0], 40)
    while bench.engine.rows:
        bench.engine.step()
        assert len(row.draft) <= NUM_TOKENS
        assert not row.draft or len(row.text) + len(row.draft) < 24
    assert any(drafted == NUM_TOKENS for drafted, _ in row.accepted)


def test_requests_that_come_and_go_share_few_slots() -> None:
    drafter = Seen(TABLE)
    bench = Bench(drafter, num_slots=4)
    rows, dice = [], random.Random(1)
    for prompt in prompts(30):
        while len(bench.engine.rows) >= 4:
            bench.engine.step()
        rows.append(bench.engine.add(prompt, dice.randrange(6, 20)))
    bench.engine.run()
    assert {request.slot for request in drafter.requests} <= set(range(4))
    drafted, accepted = acceptance(bench, rows)
    assert drafted == accepted > 100


def test_rows_beyond_the_slots_go_on_without_the_draft_model() -> None:
    bench = Bench(Seen(TABLE), num_slots=2)
    rows = [bench.engine.add(prompt, 20) for prompt in prompts(5)]
    bench.engine.run()
    assert all(len(row.tokens) >= 20 for row in rows)
    assert acceptance(bench, rows[:2])[1] > acceptance(bench, rows[2:])[1]


def test_a_row_without_a_slot_gets_one_that_becomes_free() -> None:
    bench = Bench(Seen(TABLE), num_slots=2)
    short = [bench.engine.add(prompt, 6) for prompt in prompts(2)]
    waiting = bench.engine.add(prompts(3)[2], 60)
    bench.engine.run()
    assert all(len(row.tokens) >= 6 for row in short)
    assert acceptance(bench, [waiting])[1] > 20


def test_answers_are_remembered_though_their_slots_are_taken_at_once() -> None:
    bench = Bench(NoDrafter(), num_slots=1, kind=Speculator)
    always = bench.speculator.draft_lengths.at(1).governor
    always.sources = lambda: Sources.FREE  # type: ignore[method-assign]
    for prompt in prompts(3):  # one follows the other without a step between them
        bench.engine.add(prompt, 12)
        bench.engine.run()
    bench.engine.add(prompts(4)[3], 12)
    bench.engine.run(2)
    bench.drafter_thread.finish()
    assert len(bench.speculator._memory.earlier.of("")) >= 36


def test_a_row_that_leaves_lets_the_drafter_rest_and_finds_its_draft_again() -> None:
    drafter = Seen(TABLE)
    bench = Bench(drafter)
    first, second = (bench.engine.add(prompt, 40) for prompt in prompts(2))
    bench.engine.run(4)
    bench.engine.remove(first)  # preempted
    bench.engine.run(3)
    (slot,) = {
        r.slot for r in drafter.requests if r.text[: len(first.prompt)].tolist() == first.prompt
    }
    assert slot in drafter.rested
    bench.engine.resume(first)
    bench.engine.run(3)
    assert drafter.requests[-1].slot in (0, 1)
    assert {r.slot for r in drafter.requests} == {0, 1}  # no third one was taken
    assert sum(accepted for _, accepted in first.accepted[-2:]) > 0
    bench.engine.run()
    drafted, accepted = acceptance(bench, [first, second])
    assert drafted == accepted


def test_two_requests_of_one_text_are_two() -> None:
    bench = Bench(Seen(TABLE))
    prompt = prompts(1)[0]
    rows = [bench.engine.add(prompt, 20), bench.engine.add(prompt, 30)]
    bench.engine.run()
    drafted, accepted = acceptance(bench, rows)
    assert drafted == accepted > 20


def test_rows_are_told_apart_by_their_texts() -> None:
    """However they are shuffled, every row's request has the row's text, and lives on."""
    dice = random.Random(5)
    requests = Requests(8)
    texts = dict(enumerate(prompts(6)))
    known: dict[int, object] = {}
    for step in range(60):
        present = dice.sample(sorted(texts), dice.randrange(1, 6))
        new = {i: 0 if step == 0 else dice.randrange(1, 4) for i in present}
        for i in present:
            texts[i] = texts[i] + [dice.randrange(32) for _ in range(new[i])]
        rows = [Row(np.array(texts[i]), new[i]) for i in present]
        for i, request in zip(present, requests.match(rows), strict=True):
            assert request.text.tolist() == texts[i]
            assert known.setdefault(i, request) is request


def test_rows_that_read_their_prompt_are_read_ahead_but_not_drafted() -> None:
    drafter = Seen(TABLE)
    bench = Bench(drafter, chunk=30)
    row = bench.engine.add(prompts(1, 100)[0], 8)
    bench.engine.step()
    assert row.num_unread == 70
    assert drafter.requests[-1].text.tolist() == row.prompt
    bench.engine.run()
    drafted, accepted = acceptance(bench, [row])
    assert drafted == accepted > 0


def test_a_step_without_drafts_does_not_lose_the_tree() -> None:
    """Plain steps are probed; a text's place in its tree moves on all the same."""

    class Probing(Modelled):
        def propose(self, rows: Sequence[Row]) -> list[list[int]]:
            probe = Sources.NONE if self.counts.num_steps % 5 == 4 else Sources.ALL
            self.draft_lengths.at(len(rows)).governor.sources = lambda: probe  # type: ignore[method-assign]
            return super().propose(rows)

    bench = Bench(Seen(TABLE), kind=Probing)
    row = bench.engine.add(prompts(1)[0], 200)
    bench.engine.run()
    assert all(drafted == accepted for drafted, accepted in row.accepted)
    assert sum(drafted > 0 for drafted, _ in row.accepted) > 0.7 * len(row.accepted)


# --- long texts


def test_a_long_prompt_is_sent_whole_and_once() -> None:
    """How much of it is read, and when, is the draft model's affair."""
    drafter = Seen(TABLE)
    bench = Bench(drafter, num_slots=1, num_turns=1)
    for prompt in prompts(2, 500):
        drafter.requests.clear()
        row = bench.engine.add(prompt, 60)
        bench.engine.run()
        texts = [request.text.tolist() for request in drafter.requests]
        assert texts[0][:500] == prompt
        assert all(text == row.text[: len(text)] for text in texts)
        assert len({len(text) for text in texts}) == len(texts)
        assert sum(accepted for _, accepted in row.accepted) > 30


def test_a_new_process_is_sent_a_long_text_anew() -> None:
    class Restarted(Seen):
        count = 0

        @property
        def restarts(self) -> int:
            return self.count

    drafter = Restarted(TABLE)
    bench = Bench(drafter, num_turns=1)
    row = bench.engine.add(prompts(1, 300)[0], 4000)
    bench.engine.run(20)
    drafter.requests.clear()
    drafter.count = 1
    bench.drafter_thread.turn()
    bench.drafter_thread.turn()
    assert drafter.requests[0].text.tolist() == row.text
    before = bench.speculator.counts.num_hits
    bench.engine.run(20)
    assert bench.speculator.counts.num_hits > before


# --- what pays


def last_drafts(bench: Bench, num_rows: int, num_steps: int) -> float:
    """Draft tokens a row in the later half of so many steps."""
    counts = []
    for prompt in prompts(num_rows):
        bench.engine.add(prompt, 2000)
    for _ in range(num_steps):
        bench.engine.step()
        counts.append(sum(len(row.draft) for row in bench.engine.rows) / num_rows)
    return float(np.mean(counts[num_steps // 2 :]))


def test_where_a_step_costs_the_same_whatever_is_drafted_drafts_are_long() -> None:
    assert last_drafts(Bench(Seen(TABLE)), 2, 60) > 2


def test_where_every_draft_token_costs_a_step_nothing_is_drafted() -> None:
    bench = Bench(Seen(replace(TABLE, noise=0.5)), seconds=lambda rows, n: 0.02 * (rows + n))
    assert last_drafts(bench, 1, 160) < 0.35


def test_under_load_nothing_is_drafted_where_few_rows_are() -> None:
    def seconds(rows: int, drafted: int) -> float:
        """Flat to 8 tokens, then each costs its part."""
        return 0.02 * max(1.0, (rows + drafted) / 8)

    draft = replace(TABLE, noise=0.45)
    alone = last_drafts(Bench(Seen(draft), seconds=seconds), 1, 80)
    many = last_drafts(Bench(Seen(draft), seconds=seconds), 16, 80)
    assert alone > 1
    assert many < alone / 4


def test_every_row_has_a_token_without_a_draft() -> None:
    """Eight draft tokens of which a third come true are no bargain at half a step's price, where
    the step brings eight tokens anyway; for one row they would be."""
    batch_size = DraftLengths([Sources.ALL]).at(8)
    for width in (0, 1, 2, 4, 8):
        for _ in range(4):
            batch_size.costs.observe_forward(1.5 if width else 1.0, width)
    chains = [ProposedChain([1], [0.3])] * 8
    assert batch_size.lengths(chains, 8) == [0] * 8
    assert batch_size.lengths(chains[:4], 1) == [1] * 4
    assert batch_size.lengths([ProposedChain([1, 2], [0.9, 0.8])] * 8, 8) == [2] * 8


def steps_of(bench: Bench, num_rows: int, num_steps: int) -> tuple[list[int], float]:
    """The draft tokens of each of the last half of the steps, and tokens a second in them."""
    rows = [bench.engine.add(prompt, 1000) for prompt in prompts(num_rows)]
    bench.engine.run(num_steps // 2)
    num_before, begin_s = sum(len(row.tokens) for row in rows), bench.clock()
    drafted = []
    for _ in range(num_steps // 2):
        bench.engine.step()
        drafted.append(sum(len(row.draft) for row in rows))
    for row in rows:
        assert row.tokens == plain_text(TABLE, SamplingParams(), len(row.tokens), row.prompt)
    num_tokens = sum(len(row.tokens) for row in rows) - num_before
    return drafted, num_tokens / (bench.clock() - begin_s)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_where_only_whole_steps_are_replayed_as_one_graph_steps_are_whole_or_plain(
    num_rows: int,
) -> None:
    """All rows have as many draft tokens as vLLM captured, or none."""

    def seconds(rows: int, drafted: int) -> float:
        return 0.02 if drafted in (0, rows * NUM_TOKENS) else 0.026

    draft = replace(TABLE, noise=0.35)
    bench = Bench(Seen(draft), seconds=seconds, num_whole=NUM_TOKENS)
    parted = Bench(Seen(draft), seconds=seconds)
    drafted, rate = steps_of(bench, num_rows, 120)
    assert sum(n in (0, num_rows * NUM_TOKENS) for n in drafted) > 0.9 * len(drafted)
    others, other_rate = steps_of(parted, num_rows, 120)
    assert sum(n in (0, num_rows * NUM_TOKENS) for n in others) < 0.8 * len(others)
    assert rate > 1.05 * other_rate


def test_where_whole_steps_cost_more_they_are_hardly_ever_tried() -> None:
    def seconds(rows: int, drafted: int) -> float:
        return 0.02 + 0.004 * drafted

    bench = Bench(Seen(replace(TABLE, noise=0.35)), seconds=seconds, num_whole=NUM_TOKENS)
    drafted, _ = steps_of(bench, 4, 160)
    assert sum(n == 4 * NUM_TOKENS for n in drafted) < 0.05 * len(drafted)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_plain_steps_are_filled_where_only_whole_ones_are_replayed_as_one_graph(
    num_rows: int,
) -> None:
    """Steps without drafts may be no graph either; nothing is drafted here."""

    def seconds(rows: int, drafted: int) -> float:
        return 0.02 if drafted == rows * NUM_TOKENS else 0.026

    bench = Bench(NoDrafter(), seconds=seconds, num_whole=NUM_TOKENS)
    drafted, rate = steps_of(bench, num_rows, 160)
    assert sum(n == num_rows * NUM_TOKENS for n in drafted) > 0.9 * len(drafted)
    _, plain_rate = steps_of(Bench(NoDrafter(), seconds=seconds), num_rows, 160)
    assert rate > 1.2 * plain_rate


def test_plain_steps_are_not_filled_where_they_are_graphs_themselves() -> None:
    bench = Bench(NoDrafter(), seconds=lambda rows, drafted: 0.02 + 1e-4 * drafted,
                  num_whole=NUM_TOKENS)  # fmt: skip
    drafted, _ = steps_of(bench, 2, 300)
    assert sum(n > 0 for n in drafted) < 0.05 * len(drafted)


def test_a_row_in_prefill_or_at_its_end_is_never_filled_up() -> None:
    """Nor is a batch that has one: whole steps are whole in every row."""
    batch_size = BatchSize(DraftLengths([Sources.ALL]).at(2).governor, NUM_TOKENS)
    for _ in range(4):
        batch_size.observe(Sources.ALL, [NUM_TOKENS] * 2, 4, 0.02)
        batch_size.observe(Sources.ALL, [1, 0], 3, 0.05)
        batch_size.observe(Sources.NONE, [0, 0], 2, 0.02)
    chain = ProposedChain([1, 2], [0.9, 0.8], room=NUM_TOKENS)
    assert batch_size.lengths([chain, ProposedChain(room=NUM_TOKENS)], 2) == [NUM_TOKENS] * 2
    for other in (ProposedChain(), ProposedChain(room=NUM_TOKENS - 1)):
        assert sum(batch_size.lengths([chain, other], 2)) <= 2
    rested = BatchSize(DraftLengths([Sources.ALL]).at(2).governor, NUM_TOKENS)
    for _ in range(4):
        rested.observe(Sources.ALL, [NUM_TOKENS] * 2, 4, 0.03)
        rested.observe(Sources.NONE, [0, 0], 2, 0.02)
    assert rested.lengths([ProposedChain(room=NUM_TOKENS)] * 2, 2) == [0, 0]


@pytest.mark.parametrize(("num_rows", "is_tried"), [(1, False), (16, True)])
def test_batches_of_many_rows_try_earlier_text_alone(num_rows: int, is_tried: bool) -> None:
    """Of one row a single step tells too little."""
    governor = DraftLengths([Sources.FREE, Sources.ALL]).at(num_rows).governor
    seconds = {Sources.NONE: 1.5, Sources.FREE: 1.0, Sources.ALL: 1.2}
    taken = []
    for _ in range(200):
        taken.append(governor.sources())
        governor.observe(taken[-1], num_rows, seconds[taken[-1]])
    assert (taken.count(Sources.FREE) > 100) == is_tried


def test_a_drafter_that_slows_the_engine_is_left_alone() -> None:
    """Contention is in no cost of verifying: measured rates show it."""
    drafter = Seen(replace(TABLE, noise=0.5))
    bench = Bench(drafter)
    working = [0]

    def seconds(rows: int, drafted: int) -> float:
        is_working = len(drafter.requests) > working[0]
        working[0] = len(drafter.requests)
        return 0.08 if is_working else 0.02

    bench.engine = FakeEngine(bench.propose, TABLE, bench.clock, seconds)
    bench.engine.add(prompts(1)[0], 4000)
    bench.engine.run(200)
    before = len(drafter.requests)
    bench.engine.run(100)
    assert len(drafter.requests) - before < 30


def test_a_drafter_with_little_time_works_for_few_and_stays_with_them() -> None:
    drafter = Seen(TABLE)
    bench = Bench(drafter)
    bench.drafter_thread.costs = FixedBudget(
        1
    )  # a step of the drafter takes longer than the engine's
    rows = [bench.engine.add(prompt, 2000) for prompt in prompts(6)]
    rows[0].num_tokens = 10
    bench.engine.run(3)
    drafter.requests.clear()
    bench.engine.run(40)
    slots = [request.slot for request in drafter.requests]
    assert len(slots) <= 40
    assert len(set(slots)) == 2  # the second one's turn came when the first had ended
    assert slots == sorted(slots, key=slots.index)


def test_earlier_text_is_drafted_from_without_a_draft_model() -> None:
    bench = Bench(NoDrafter(), kind=Speculator)
    row = bench.engine.add(prompts(1)[0], 600)  # a table of two tokens repeats itself
    bench.engine.run()
    drafted, accepted = acceptance(bench, [row])
    assert accepted > 200
    assert accepted > drafted / 2


class Searching(Speculator):
    """A search takes a moment; notes whom it was for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.found: list[Request] = []

    def _from_texts(self, request: Request) -> ProposedChain:
        self.found.append(request)
        assert isinstance(self.clock, FakeClock)
        self.clock.now += 0.0004
        return super()._from_texts(request)


@pytest.mark.parametrize(("step_s", "num_searched"), [(0.05, 3), (0.01, 1)])
def test_searches_take_a_small_part_of_a_step(step_s: float, num_searched: int) -> None:
    bench = Bench(NoDrafter(), kind=Searching, seconds=lambda rows, drafted: step_s)
    assert isinstance(bench.speculator, Searching)
    for prompt in prompts(16):
        bench.engine.add(prompt, 2000)
    bench.engine.run(8)
    bench.speculator.found.clear()
    bench.engine.step()
    assert len(bench.speculator.found) == num_searched


def test_where_there_is_no_time_to_search_for_all_they_take_turns() -> None:
    bench = Bench(NoDrafter(), kind=Searching)
    assert isinstance(bench.speculator, Searching)
    for prompt in prompts(16):
        bench.engine.add(prompt, 2000)
    bench.engine.run(4)
    assert len(bench.speculator.found) <= 16, "not more than there is time for"
    bench.engine.run(20)
    found = bench.speculator.found
    assert len(set(found)) == 16


def test_whose_draft_was_right_just_now_is_searched_for_first() -> None:
    bench = Bench(NoDrafter(), kind=Searching)
    assert isinstance(bench.speculator, Searching)
    for prompt in prompts(16):
        bench.engine.add(prompt, 2000)
    bench.engine.run(2)  # of a first token nothing was drafted
    num_right = 0
    for _ in range(60):
        bench.speculator.found.clear()
        bench.engine.step()
        found = [request.num_right for request in bench.speculator.found]
        rows = [row.accepted[-1][1] for row in bench.engine.rows]
        assert found == sorted(rows, reverse=True)[: len(found)]
        num_right += sum(found)
    assert num_right > 20


# --- what the engine waits for


def test_the_drafter_is_called_by_its_thread_alone() -> None:
    """Listening to it takes its time."""
    drafter = Seen(TABLE)
    bench = Bench(drafter, num_turns=0)
    row = bench.engine.add(prompts(1)[0], 60)
    while bench.engine.rows:
        before = list(drafter.log)
        bench.engine.step()
        assert drafter.log == before
        bench.drafter_thread.turn()
    assert sum(accepted for _, accepted in row.accepted) > 20


# --- faults


@pytest.fixture
def process() -> Iterator[ProcessDrafter]:
    with ProcessDrafter(replace(TABLE, seconds=0.001), on_warning=lambda line: None) as drafter:
        drafter.wait_ready()
        yield drafter


class Live:
    """A real drafter's process and its thread, and an engine with steps of ``step_s``."""

    def __init__(self, drafter: ProcessDrafter, step_s: float = 0.01) -> None:
        self.drafter_thread = DrafterThread(drafter)
        self.speculator = Modelled(NUM_TOKENS, 4096, self.drafter_thread)
        self.times: list[float] = []
        self.step_s = step_s
        self.engine = FakeEngine(self.propose, TABLE)
        self.drafter_thread.start()

    def propose(
        self, sampled: list[list[int]], lengths: np.ndarray, texts: np.ndarray
    ) -> list[list[int]]:
        sleep(self.step_s)
        rows = [Row(texts[i, : lengths[i]], len(new)) for i, new in enumerate(sampled)]
        begin = perf_counter()
        drafts = self.speculator.propose(rows)
        self.times.append(perf_counter() - begin)
        return drafts

    def until(self, is_done: Callable[[], bool]) -> None:
        end = perf_counter() + LONG_S
        while not is_done():
            assert perf_counter() < end, "took too long"
            self.engine.step()


@pytest.fixture
def live(process: ProcessDrafter) -> Iterator[Live]:
    live = Live(process)
    yield live
    live.drafter_thread.close()


def test_costs_that_the_thread_learns_are_read_under_its_lock() -> None:
    bench = Bench(Seen(TABLE))
    lock = bench.drafter_thread._lock
    is_held: list[bool] = []

    class Guarded(Costs):
        def step_s(self) -> float:
            is_held.append(lock._is_owned())  # type: ignore[attr-defined]
            return super().step_s()

        def observe_step(self, seconds: float, num_leaves: float = 1.0) -> None:
            is_held.append(lock._is_owned())  # type: ignore[attr-defined]
            super().observe_step(seconds, num_leaves)

    bench.drafter_thread.costs = Guarded()
    bench.engine.add(prompts(1)[0], 40)
    bench.engine.run()
    assert len(is_held) > 10
    assert all(is_held)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_drafter_that_is_killed_or_hangs_is_replaced_and_never_waited_for(
    live: Live, process: ProcessDrafter, number: signal.Signals
) -> None:
    rows = [live.engine.add(prompt, 100_000) for prompt in prompts(3)]
    live.until(lambda: live.speculator.counts.num_hits > 10)
    assert process.pid is not None
    os.kill(process.pid, number)
    live.times.clear()

    def is_back() -> bool:
        with live.drafter_thread.looking():  # one thread at a time
            return process.restarts == 1 and process.is_ready

    live.until(is_back)
    hits = live.speculator.counts.num_hits
    live.until(lambda: live.speculator.counts.num_hits > hits + 10)
    assert median(live.times) < 0.01
    assert max(live.times) < 0.3  # no wait: a new process starts meanwhile
    for row in rows:
        drafted = [pair for pair in row.accepted if pair[0]]
        assert all(n == accepted for n, accepted in drafted)


def test_a_slow_drafter_is_never_waited_for(live: Live) -> None:
    slow = ProcessDrafter(replace(TABLE, seconds=0.3), on_warning=lambda line: None)
    with slow:
        slow.wait_ready()
        other = Live(slow)
        other.engine.add(prompts(1)[0], 60)
        other.engine.run()
        other.drafter_thread.close()
    assert median(other.times) < 0.01


def test_a_closed_one_leaves_no_thread(process: ProcessDrafter) -> None:
    live = Live(process)
    live.engine.add(prompts(1)[0], 20)
    live.engine.run()
    live.drafter_thread.close()
    assert live.drafter_thread._thread is not None
    assert not live.drafter_thread._thread.is_alive()


def test_a_drafter_that_answers_nothing_costs_nothing() -> None:
    class Silent(Seen):
        def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Drafted:
            return Drafted(is_complete=False)

        def submit(self, request: DraftRequest) -> None:
            self.requests.append(request)

    bench = Bench(Silent(TABLE))
    row = bench.engine.add(prompts(1)[0], 20)
    bench.engine.run()
    assert row.tokens == plain_text(TABLE, SamplingParams(), len(row.tokens), row.prompt)

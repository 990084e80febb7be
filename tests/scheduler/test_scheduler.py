"""Many answers share one target and one drafter, and each is what it would be alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from queue import Queue
from threading import Event, Lock, Thread, current_thread
from time import sleep

import numpy as np
import pytest
from fakes.decoding import WITHOUT_HEADS, FakeClock, FakeTokenizer, plain_text
from fakes.targets import Caches, Chains, Stale

from duodec.backends.drafter.process import ProcessDrafter
from duodec.core.draft import Draft
from duodec.core.drafters import Drafted, Drafter
from duodec.core.events import Finished
from duodec.core.sampling.sampler import SamplingParams
from duodec.core.targets import Query, Scores, Target
from duodec.core.traits import TargetCache
from duodec.errors import BadOption, ComputeFailed
from duodec.llm import LLM
from duodec.methods.registry import METHODS
from duodec.methods.request import NoDrafter, Request, Score, Wait
from duodec.scheduler.outputs import Done, Failed, Output, Piece
from duodec.scheduler.scheduled_request import ScheduledRequest
from duodec.scheduler.scheduler import Ended, Scheduler
from duodec.scheduler.slots import Slot, best_slot
from duodec.server.errors import ApiError
from duodec.server.models.scheduler_thread import SchedulerThread
from duodec.testing import InlineDrafter, TableModel, TableTarget

TABLE = TableModel(num_vocab=32, seed=7)
PROMPTS = [(3, 1, 4, 1, 5), (9, 2, 6), (5, 3, 5, 8, 9, 7), (9, 3), (2, 3, 8, 4), (6, 2, 6, 4, 3),
           (3, 8), (3, 2, 7, 9, 5)]  # fmt: skip
LONG_S = 30.0


@dataclass
class Counted(Target):
    """A target that remembers what was asked at once, and takes a moment."""

    target: Target
    seconds: float = 0.0
    widths: list[int] = field(default_factory=list)
    on_score: Callable[[Sequence[Query]], None] = lambda queries: None

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        self.widths.append(len(queries))
        self.on_score(queries)
        sleep(self.seconds)
        return self.target.score(queries)


@dataclass(frozen=True)
class Ask:
    """A completion, as it is wanted."""

    tokens: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    method: str | None = None


class Listener:
    """Hears what a request says."""

    entry: ScheduledRequest

    def __init__(self, ask: Ask) -> None:
        self.ask = ask
        self.outputs: Queue[Output] = Queue()

    def result(self) -> Done:
        while True:
            output = self.outputs.get(timeout=LONG_S)
            if isinstance(output, Failed):
                raise output.error
            if isinstance(output, Done):
                return output


class Serving:
    """A model behind the thread of its scheduler."""

    def __init__(self, llm: LLM, num_queued: int) -> None:
        self.llm = llm
        self.thread = SchedulerThread(llm.scheduler, num_queued=num_queued)

    def submit(self, listener: Listener) -> None:
        ask = listener.ask
        params = replace(ask.sampling, max_tokens=ask.max_tokens)
        say = listener.outputs.put
        listener.entry = self.llm.scheduled(ask.tokens, params, method=ask.method, on_output=say)
        self.thread.submit([listener.entry])

    def leave(self, listener: Listener) -> None:
        self.thread.abort(listener.entry)


def engine_of(drafter: Drafter | None = None, *, num_context: int = 400) -> LLM:
    return LLM(TableTarget(TABLE), FakeTokenizer(), num_context, drafter)


@contextmanager
def served(
    llm: LLM, target: Target | None = None, *, num_slots: int = 8, num_queued: int = 64,
    trees: Target | None = None, lone: Target | None = None, num_chunk: int = 512,
    on_end: Ended = lambda entry, reason: None,
) -> Iterator[Serving]:  # fmt: skip
    caches = Caches(target or llm.loaded.target, alone=lone, trees=trees)
    llm.loaded = replace(llm.loaded, target=caches, num_slots=num_slots)
    llm.scheduler.num_chunk = num_chunk
    llm.scheduler.on_end = on_end
    serving = Serving(llm, num_queued)
    try:
        yield serving
    finally:
        serving.thread.close()


def asks(num: int, method: str | None = None, num_tokens: int = 40) -> list[Ask]:
    """Prompts and seeds that differ, greedy and not."""
    return [
        Ask(
            PROMPTS[i % len(PROMPTS)],
            SamplingParams(temperature=0.9 * (i % 3 > 0), seed=i),
            num_tokens,
            method=method,
        )
        for i in range(num)
    ]


def expected(ask: Ask) -> list[int]:
    return plain_text(TABLE, ask.sampling, ask.max_tokens or 0, ask.tokens)


def answers(pool: Serving, wanted: Sequence[Ask]) -> list[Done]:
    listeners = [Listener(ask) for ask in wanted]
    for listener in listeners:
        pool.submit(listener)
    return [listener.result() for listener in listeners]


def test_one_thread_makes_all_forward_passes_one_after_the_other() -> None:
    engine = engine_of()
    callers: list[tuple[int, str]] = []
    is_busy = Lock()

    def called(queries: Sequence[Query]) -> None:
        assert is_busy.acquire(blocking=False), "two forward passes at once"
        callers.append((len(queries), current_thread().name))
        sleep(0.001)
        is_busy.release()

    target = Counted(engine.loaded.target, on_score=called)
    with served(engine, target) as pool:
        answers(pool, asks(1, "ar"))
        assert set(callers) == {(1, "duodec-scheduler")}
        callers.clear()
        wanted = [replace(ask, max_tokens=20 + 5 * i) for i, ask in enumerate(asks(24, "ar"))]
        found = answers(pool, wanted)
    assert [list(done.finished.tokens) for done in found] == [expected(ask) for ask in wanted]
    assert {name for _, name in callers} == {"duodec-scheduler"}
    assert len([num for num, _ in callers if num > 1]) > len(callers) / 2


def test_who_comes_second_waits_for_the_forward_of_who_was_alone() -> None:
    engine = engine_of()
    is_busy, has_begun = Lock(), Event()

    def called(queries: Sequence[Query]) -> None:
        assert is_busy.acquire(blocking=False), "two forwards at once"
        has_begun.set()
        sleep(0.06)  # longer than anybody's patience
        is_busy.release()

    first, second = (Listener(replace(ask, max_tokens=4)) for ask in asks(2, "ar"))
    with served(engine, Counted(engine.loaded.target, on_score=called)) as pool:
        pool.submit(first)
        assert has_begun.wait(LONG_S)
        pool.submit(second)
        found = [first.result(), second.result()]
    wanted = [expected(first.ask), expected(second.ask)]
    assert [list(done.finished.tokens) for done in found] == wanted


def test_a_long_prompt_is_read_in_parts_by_who_is_alone_too() -> None:
    engine = engine_of()
    lengths: list[int] = []
    plain = engine.loaded.target
    target = Counted(plain, on_score=lambda queries: lengths.append(len(queries[0].text)))
    with served(engine, target, num_chunk=16) as pool:
        answers(pool, [Ask((3, 1, 4, 1) * 10, max_tokens=1)])
    assert lengths == [16, 32, 40]


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [name for name in WITHOUT_HEADS if name not in ("rest", "sps-rejection")]
)
def test_eight_at_once_say_what_each_says_alone(method: str) -> None:
    engine = engine_of(InlineDrafter(replace(TABLE, noise=0.3).load()))
    wanted = asks(24, method)
    with served(engine, Stale(engine.loaded.target)) as pool:
        found = answers(pool, wanted)
    assert [list(done.finished.tokens) for done in found] == [expected(ask) for ask in wanted]


def test_the_published_rejection_rule_is_served_too() -> None:
    engine = engine_of(InlineDrafter(replace(TABLE, noise=0.3).load()))
    wanted = asks(8, "sps-rejection")
    with served(engine, Stale(engine.loaded.target)) as pool:
        found = answers(pool, wanted)
    assert all(len(done.finished.tokens) == 40 for done in found)


def test_what_is_asked_at_once_is_scored_in_one_forward() -> None:
    target = Counted(TableTarget(TABLE), 0.002)
    with served(engine_of(), target) as pool:
        answers(pool, asks(8, "ar"))
    assert len(target.widths) < 3 * 40
    assert sorted(target.widths)[len(target.widths) // 2] >= 6


def test_a_killed_drafter_changes_no_text() -> None:
    recipe = replace(TABLE, noise=0.3, seconds=0.001)
    with ProcessDrafter(recipe, on_warning=lambda line: None) as drafter, ExitStack() as stack:
        drafter.wait_ready()
        over = Event()

        def kill() -> None:
            while not over.wait(0.15):
                if (pid := drafter.pid) is not None:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)

        killer = Thread(target=kill)
        stack.callback(killer.join)
        stack.callback(over.set)
        engine = engine_of(drafter)
        wanted = asks(32, "stream", 60)
        with served(engine, Counted(engine.loaded.target, 0.002)) as pool:
            killer.start()
            found = answers(pool, wanted)
        over.set()
        assert [list(done.finished.tokens) for done in found] == [expected(a) for a in wanted]
        assert drafter.restarts > 0


def test_who_leaves_frees_the_place_within_a_round() -> None:
    seen: list[tuple[int, ...]] = []  # the prompt of each forward pass
    target = Counted(
        TableTarget(TABLE), 0.01, on_score=lambda queries: seen.append(tuple(queries[0].text[:3]))
    )
    ended: list[str] = []
    with served(
        engine_of(), target, num_slots=1, on_end=lambda entry, reason: ended.append(reason)
    ) as pool:
        first, second = (Listener(ask) for ask in asks(2, "ar", 300))
        assert PROMPTS[0][:3] != PROMPTS[1][:3]
        pool.submit(first)
        assert isinstance(first.outputs.get(timeout=LONG_S), Piece)
        pool.submit(second)
        pool.leave(first)
        num_seen = len(seen)
        assert isinstance(second.outputs.get(timeout=LONG_S), Piece)
        assert seen[num_seen:].count(tuple(PROMPTS[0][:3])) <= 1, "the pass under way, at most"
        pool.leave(second)
        assert pool.thread.drain(LONG_S)
    assert ended == ["abort", "abort"]


def test_who_leaves_the_queue_is_never_answered() -> None:
    target = Counted(TableTarget(TABLE), 0.01)
    with served(engine_of(), target, num_slots=1) as pool:
        first, second, third = (Listener(ask) for ask in asks(3, "ar", 20))
        for listener in (first, second, third):
            pool.submit(listener)
        pool.leave(second)
        first.result(), third.result()
        assert second.outputs.empty()


@pytest.mark.parametrize("num_slots", [1, 3])
def test_a_request_with_many_completions_lets_others_in_between(num_slots: int) -> None:
    said: list[str] = []
    is_computing, may_end = Event(), Event()

    def on_score(queries: Sequence[Query]) -> None:
        is_computing.set()
        may_end.wait(LONG_S)

    llm = engine_of()
    params = SamplingParams(seed=1, max_tokens=1)

    def entry(name: str) -> ScheduledRequest:
        return llm.scheduled(PROMPTS[0], params, on_output=lambda output: said.append(name))

    with served(llm, Counted(llm.loaded.target, on_score=on_score), num_slots=num_slots) as pool:
        pool.thread.submit([entry(f"a{i}") for i in range(9)])
        assert is_computing.wait(LONG_S)
        for names in (("b",), ("c0", "c1", "c2"), ("d",)):
            pool.thread.submit([entry(name) for name in names])
        may_end.set()
        assert pool.thread.drain(LONG_S)
    order = list(dict.fromkeys(said))
    assert len(order) == 14
    i = num_slots  # of a's were there before anybody else
    others = [f"a{i}", "b", "c0", "d", f"a{i + 1}", "c1", f"a{i + 2}", "c2", f"a{i + 3}"]
    assert order[i : i + 9] == others


def test_beyond_the_queue_clients_are_told_to_come_back() -> None:
    target = Counted(TableTarget(TABLE), 0.01)
    with served(engine_of(), target, num_slots=1, num_queued=1) as pool:
        listeners = [Listener(ask) for ask in asks(3, "ar", 20)]
        pool.submit(listeners[0])
        pool.submit(listeners[1])
        listeners[0].outputs.get(timeout=LONG_S)  # it runs
        with pytest.raises(ApiError) as caught:
            pool.submit(listeners[2])
        assert caught.value.status == 429
        assert int(caught.value.headers["Retry-After"]) >= 1
        assert (pool.thread.num_running, pool.thread.num_waiting) == (1, 1)
        listeners[1].result()
    with pytest.raises(ApiError, match="shutting down"):
        pool.submit(listeners[2])


def test_a_request_with_many_completions_leaves_places_to_others() -> None:
    may_end = Event()
    llm = engine_of()
    params = SamplingParams(seed=1, max_tokens=1)
    done: list[int] = []

    def on_score(queries: Sequence[Query]) -> None:
        may_end.wait(LONG_S)

    def entries(num: int) -> list[ScheduledRequest]:
        def say(output: Output) -> None:
            if isinstance(output, Done):
                done.append(num)

        return [llm.scheduled(PROMPTS[0], params, on_output=say) for _ in range(num)]

    target = Counted(llm.loaded.target, on_score=on_score)
    with served(llm, target, num_slots=2, num_queued=8) as pool:
        with pytest.raises(BadOption, match="11 completions are requested at once"):
            pool.thread.submit(entries(11))
        pool.thread.submit(entries(10))
        for _ in range(2):
            pool.thread.submit(entries(1))
        with pytest.raises(ApiError) as caught:
            pool.thread.submit(entries(10))
        assert caught.value.status == 429
        may_end.set()
        assert pool.thread.drain(LONG_S)
    assert sorted(done) == [1] * 2 + [10] * 10


def test_a_request_with_many_completions_leaves_a_slot_to_others() -> None:
    widths: list[int] = []
    is_computing, may_end = Event(), Event()

    def on_score(queries: Sequence[Query]) -> None:
        widths.append(len(queries))
        is_computing.set()
        may_end.wait(LONG_S)

    llm = engine_of()

    def entries(num: int, max_tokens: int) -> list[ScheduledRequest]:
        params = SamplingParams(logit_bias={TABLE.num_vocab - 1: -1e9}, max_tokens=max_tokens)
        return [
            llm.scheduled(PROMPTS[0], params, method="ar", on_output=lambda output: None)
            for _ in range(num)
        ]

    with served(llm, Counted(llm.loaded.target, on_score=on_score), num_slots=3) as pool:
        llm.scheduler.most_slots = 2
        pool.thread.submit(entries(8, 4))
        assert is_computing.wait(LONG_S)
        pool.thread.submit(entries(1, 6))
        may_end.set()
        assert pool.thread.drain(LONG_S)
    assert widths == [2] + [3] * 6 + [2] * 9


def test_one_answer_that_fails_ends_alone() -> None:
    def fail(queries: Sequence[Query]) -> None:
        if any(query.text[0] == 9 and len(query.text) > 10 for query in queries):
            raise ComputeFailed("no memory")

    engine = engine_of()
    wanted = asks(8, "ar")
    with served(engine, Counted(engine.loaded.target, 0.001, on_score=fail)) as pool:
        listeners = [Listener(ask) for ask in wanted]
        for listener in listeners:
            pool.submit(listener)
        for listener, ask in zip(listeners, wanted, strict=True):
            if ask.tokens[0] == 9:
                with pytest.raises(ComputeFailed):
                    listener.result()
            else:
                assert list(listener.result().finished.tokens) == expected(ask)
        again = answers(pool, wanted[:1])
    assert list(again[0].finished.tokens) == expected(wanted[0])


def test_a_long_prompt_is_read_in_parts_while_others_go_on() -> None:
    lengths: list[list[int]] = []
    target = Counted(
        TableTarget(TABLE), 0.002, on_score=lambda qs: lengths.append([len(q.text) for q in qs])
    )
    long = tuple(i % 31 for i in range(1000))
    with served(engine_of(num_context=2000), target, num_chunk=128) as pool:
        short = Listener(Ask((1, 2, 3), max_tokens=200, method="ar"))
        pool.submit(short)
        short.outputs.get(timeout=LONG_S)
        reader = Listener(Ask(long, max_tokens=5, method="ar"))
        pool.submit(reader)
        done = reader.result()
        assert short.result().finished.stats.num_new_tokens == 200
    assert list(done.finished.tokens) == plain_text(TABLE, SamplingParams(), 5, long)
    parts = [max(found) for found in lengths if 100 < max(found) <= 1000 and len(found) > 1]
    assert parts[:7] == [128, 256, 384, 512, 640, 768, 896]


def test_parts_of_a_long_prompt_are_small_while_others_decode() -> None:
    """Not while others only read: nobody waits for tokens then."""
    seen: list[list[int]] = []
    target = Counted(TableTarget(TABLE), on_score=lambda qs: seen.append([len(q.text) for q in qs]))
    texts = [tuple((i * k) % 31 for i in range(200)) for k in (3, 5)]
    llm = engine_of()
    with served(llm, target, num_chunk=64) as pool:
        llm.scheduler.num_chunk_in_company = 16
        params = SamplingParams(max_tokens=60)
        said: list[list[Output]] = [[], []]
        pool.thread.submit(
            [
                llm.scheduled(text, params, method="ar", on_output=own.append)
                for text, own in zip(texts, said, strict=True)
            ]
        )
        assert pool.thread.drain(LONG_S)
    assert seen[:7] == [[64], [64], [128], [128], [192], [192], [200, 200]]
    for text, outputs in zip(texts, said, strict=True):
        assert isinstance(done := outputs[-1], Done)
        assert list(done.finished.tokens) == plain_text(TABLE, params, 60, text)

    seen.clear()
    is_asked = Event()

    def held(queries: Sequence[Query]) -> None:
        """Who decodes waits for who reads, however busy the machine is."""
        if len(seen) > 5:
            is_asked.wait(LONG_S)
        seen.append([len(query.text) for query in queries])

    target.on_score = held
    with served(engine_of(num_context=2000), target, num_chunk=128) as pool:
        pool.llm.scheduler.num_chunk_in_company = 16
        short = Listener(Ask((1, 2, 3), max_tokens=100, method="ar"))
        pool.submit(short)
        short.outputs.get(timeout=LONG_S)
        reader = Listener(Ask(tuple(i % 31 for i in range(250)), max_tokens=5, method="ar"))
        pool.submit(reader)
        is_asked.set()
        reader.result(), short.result()
    parts = [max(found) for found in seen if len(found) > 1]
    assert parts[:16] == [*range(16, 250, 16), 250]


def test_prompts_wait_one_forward_pass_for_long_drafts() -> None:
    """Both in one would keep the text waiting for twice as long."""
    seen: list[tuple[int, int]] = []
    target = Counted(
        TableTarget(TABLE),
        on_score=lambda qs: seen.append((len(qs), max(len(q.draft) for q in qs))),
    )
    llm = engine_of(num_context=2000)
    with served(llm, target, num_chunk=64) as pool:
        llm.scheduler.num_chunk_in_company = 16
        ask = Ask(tuple(i % 31 for i in range(300)), max_tokens=200, method="lookup:24")
        short = Listener(ask)
        pool.submit(short)
        short.outputs.get(timeout=LONG_S)
        reader = Listener(Ask(tuple((3 * i) % 31 for i in range(400)), max_tokens=5, method="ar"))
        pool.submit(reader)
        assert list(short.result().finished.tokens) == expected(ask)
        reader.result()
    both = [i for i, (num_queries, _) in enumerate(seen) if num_queries == 2]
    during = seen[both[0] : both[-1] + 1]
    assert any(num_queries == 1 and most > 16 for num_queries, most in during)
    alone = [num_queries == 1 for num_queries, _ in during]
    assert not any(one and other for one, other in pairwise(alone))


def test_parts_are_small_beside_a_text_that_waits_for_a_draft() -> None:
    llm = engine_of()
    llm.loaded = replace(llm.loaded, target=Caches(llm.loaded.target), num_slots=2)
    llm.scheduler.num_chunk, llm.scheduler.num_chunk_in_company = 64, 16
    texts = ((1, 2, 3), tuple(i % 31 for i in range(200)))
    entries = [
        llm.scheduled(text, SamplingParams(), on_output=lambda output: None) for text in texts
    ]
    for entry, slot in zip(entries, llm.scheduler.slots, strict=True):
        entry.slot, entry.request.slot = slot, slot.number
    decoding, reading = entries
    decoding.first_s, decoding.need = 0.0, Wait(1.0)
    reading.need = Score()
    llm.scheduler.running = entries
    assert llm.scheduler._batch() == [reading]
    assert len(reading.query().text) == 16
    decoding.first_s = None  # it only reads, too
    assert llm.scheduler._batch() == [reading]
    assert len(reading.query().text) == 64


def test_prompts_that_are_read_beside_a_completion_make_one_part_together() -> None:
    """However many there are, and though each of them is short."""
    seen: list[list[int]] = []
    target = Counted(TableTarget(TABLE), on_score=lambda qs: seen.append([len(q.text) for q in qs]))
    llm = engine_of()
    with served(llm, target, num_chunk=64) as pool:
        llm.scheduler.num_chunk_in_company = 16
        first = Listener(Ask(tuple(i % 31 for i in range(100)), max_tokens=200, method="ar"))
        pool.submit(first)
        first.outputs.get(timeout=LONG_S)
        texts = [tuple((i * k) % 31 for i in range(12)) for k in (3, 5, 7)]
        asks = [Ask(text, max_tokens=20, method="ar") for text in texts]
        done = answers(pool, asks)
        first.result()
    for ask, found in zip(asks, done, strict=True):
        assert list(found.finished.tokens) == expected(ask)
    beside = [lengths.count(12) for lengths in seen if max(lengths) >= 100]
    assert max(beside) == 1


def test_a_prompt_that_has_logprobs_is_scored_in_small_parts_beside_others() -> None:
    widths: list[list[int]] = []
    target = Counted(
        TableTarget(TABLE), on_score=lambda qs: widths.append([len(q.draft) for q in qs])
    )
    llm = engine_of(num_context=2000)
    with served(llm, target, num_chunk=64) as pool:
        llm.scheduler.num_chunk_in_company = 16
        short = Listener(Ask((1, 2, 3), max_tokens=100, method="ar"))
        pool.submit(short)
        short.outputs.get(timeout=LONG_S)
        params = SamplingParams(max_tokens=1, prompt_logprobs=1)
        said: list[Output] = []
        pool.thread.submit(
            [
                llm.scheduled(
                    tuple(i % 31 for i in range(800)), params, method="ar", on_output=said.append
                )
            ]
        )
        short.result()
        assert pool.thread.drain(LONG_S)
    assert isinstance(said[-1], Done)
    logprobs = [one for output in said if isinstance(output, Piece | Done)
                for one in output.prompt_logprobs]  # fmt: skip
    assert len(logprobs) == 800
    assert max(max(found) for found in widths if len(found) > 1) == 4
    assert max(max(found) for found in widths if len(found) == 1) > 4  # alone


def test_a_part_that_a_target_makes_larger_has_its_turn() -> None:
    """Its blocks are larger than what is read beside others."""
    seen: list[list[int]] = []

    class Blocks(Counted):
        traits = replace(TableTarget(TABLE).traits, num_block=64)

    target = Blocks(TableTarget(TABLE), on_score=lambda qs: seen.append([len(q.text) for q in qs]))
    llm = engine_of(num_context=2000)
    with served(llm, target, num_chunk=128) as pool:
        llm.scheduler.num_chunk_in_company = 16
        short = Listener(Ask((1, 2, 3), max_tokens=200, method="ar"))
        pool.submit(short)
        short.outputs.get(timeout=LONG_S)
        reader = Listener(Ask(tuple(i % 31 for i in range(250)), max_tokens=5, method="ar"))
        pool.submit(reader)
        reader.result(), short.result()
    parts = [max(found) for found in seen if len(found) > 1]
    assert parts[:4] == [64, 128, 192, 250]


def test_only_rows_of_a_prompt_are_few_beside_others() -> None:
    """The drafts of the same request are not, once its prompt is scored."""
    llm = engine_of()
    params = SamplingParams(max_tokens=9, prompt_logprobs=1)
    entry = llm.scheduled((1, 2, 3), params, on_output=lambda output: None)
    entry.slot = llm.scheduler.slots[0]
    wide = Draft.chain(range(12))
    entry.need = Score(wide, num_text=1)
    assert entry.is_long(16)
    assert len(entry.query().draft) == 4
    entry.need = Score(wide)
    assert not entry.is_long(16)
    assert len(entry.query().draft) == 12


def test_who_leaves_while_a_long_prompt_is_read_is_not_read_to() -> None:
    listener = Listener(Ask(tuple(i % 31 for i in range(5000)), max_tokens=5, method="ar"))
    target = Counted(TableTarget(TABLE))
    with served(engine_of(num_context=6000), target) as pool:
        target.on_score = lambda queries: pool.leave(listener)
        pool.submit(listener)
        assert pool.thread.drain(LONG_S)
    assert len(target.widths) == 1
    assert listener.outputs.empty()


def test_a_conversation_comes_back_to_the_slot_that_knows_it() -> None:
    with served(engine_of(), num_slots=4) as pool:
        told = answers(pool, asks(4, "ar", 10))
        for ask, done in list(zip(asks(4), told, strict=True))[::-1]:
            text = (*ask.tokens, *done.finished.tokens)
            (again,) = answers(pool, [Ask((*text, 1), max_tokens=3)])
            assert again.num_cached == len(text) - 1  # the last token was drawn, never read


@pytest.mark.parametrize(
    "method", [name for name in WITHOUT_HEADS if name not in ("rest", "sps-rejection")]
)
def test_a_target_may_leave_out_branches(method: str) -> None:
    engine = engine_of(InlineDrafter(replace(TABLE, noise=0.3).load()))
    chains, trees = Chains(TableTarget(TABLE)), Counted(TableTarget(TABLE))
    wanted = asks(12, method)
    with served(engine, Stale(chains), trees=Stale(trees)) as pool:
        found = answers(pool, wanted)
    assert [list(done.finished.tokens) for done in found] == [expected(ask) for ask in wanted]
    assert bool(trees.widths) == METHODS[method].reads_off_path
    if method in ("stream", "auto"):
        assert not chains.num_branches_left_out, "who plans a draft plans a chain"


@pytest.mark.parametrize("method", ["ar", "sps", "lookup", "pearl", "duo", "stream", "auto"])
def test_who_is_alone_has_branches_until_others_come(method: str) -> None:
    engine = engine_of(InlineDrafter(replace(TABLE, noise=0.3).load()))
    has_begun, slots = Event(), set[int]()

    def called(queries: Sequence[Query]) -> None:
        slots.update(query.slot for query in queries)
        has_begun.set()

    lone = Counted(TableTarget(TABLE), 0.002, on_score=called)
    shared = Counted(Chains(TableTarget(TABLE)), 0.002)
    wanted = [replace(ask, max_tokens=60) for ask in asks(4, method)]
    listeners = [Listener(ask) for ask in wanted]
    with served(engine, Stale(shared), lone=Stale(lone), num_slots=4) as pool:
        pool.submit(listeners[0])
        assert has_begun.wait(LONG_S)
        for listener in listeners[1:]:
            pool.submit(listener)
        found = [listener.result() for listener in listeners]
        num_alone = len(lone.widths)
        assert shared.widths
        assert {max(shared.widths), *lone.widths} == {4, 1}
        again = [*answers(pool, [wanted[1]]), *answers(pool, [wanted[0]])]
    assert len(lone.widths) > num_alone
    assert slots == {0}, "others would each need a cache of their own"
    texts = [list(done.finished.tokens) for done in (*found, *again)]
    assert texts == [expected(ask) for ask in (*wanted, wanted[1], wanted[0])]


@dataclass(frozen=True)
class Timed(Target):
    """A target whose forward passes take as long as a clock is told."""

    clock: FakeClock
    seconds: float
    model: TableModel = TABLE

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        self.clock.advance(self.seconds)
        return TableTarget(self.model).score(queries)


def test_what_one_target_costs_is_not_expected_of_another() -> None:
    clock = FakeClock()
    alone, shared, trees = (Timed(clock, seconds) for seconds in (0.1, 1.0, 30.0))
    target = Caches(shared, alone=alone, trees=trees)
    llm = LLM(target, FakeTokenizer(), 400, clock=clock, num_slots=2)
    params = SamplingParams(max_tokens=20)
    llm.generate([PROMPTS[0]], params, method="recycling")
    assert not llm.loaded.costs.is_measured, "only the target for branches has computed"
    llm.generate([PROMPTS[0]], params, method="ar")
    assert llm.loaded.costs.forward_s(0) == pytest.approx(0.1)
    budget = llm.scheduler.budget
    assert budget.patience_s() == pytest.approx(0.02)
    llm.generate([PROMPTS[0], PROMPTS[1]], [params, replace(params, max_tokens=40)], method="ar")
    for slot in (0, 1):
        budget.begin(slot)
    assert budget.forward_s(0, 0) == pytest.approx(1.0, rel=0.1), (
        "of two, and of who stayed there alone"
    )
    assert llm.loaded.costs.forward_s(0) == pytest.approx(0.1)
    llm.generate([PROMPTS[0]] * 2, params, method="recycling")
    for slot in (0, 1):
        budget.begin(slot)
    assert budget.forward_s(0, 0) == pytest.approx(1.0, rel=0.1)


def test_a_conversation_among_others_stays_where_it_was_read() -> None:
    engine = engine_of(num_context=8000)
    read: list[int] = []

    def called(queries: Sequence[Query]) -> None:
        read.extend(len(query.text) for query in queries if query.slot == 1)

    shared = Counted(Chains(TableTarget(TABLE)), 0.002, on_score=called)
    other = Listener(replace(asks(2, "ar")[1], max_tokens=4000))
    lone = Counted(TableTarget(TABLE), 0.002)
    with served(engine, shared, lone=lone, num_chunk=16) as pool:
        pool.submit(other)  # and stays to the end
        first = Listener(Ask((3, 1) * 20, max_tokens=40, method="ar"))  # all but the last is read
        pool.submit(first)
        text = (3, 1) * 20 + first.result().finished.tokens
        assert len(text) == 80
        read.clear()
        again = Listener(Ask((*text, 1), max_tokens=3))
        pool.submit(again)
        assert again.result().num_cached == 79
        pool.leave(other)
    assert read[0] == 81, "and not its parts again"


def test_waiting_answers_are_taken_in_turn() -> None:
    order: list[int] = []
    with served(
        engine_of(), Counted(TableTarget(TABLE), 0.001), num_slots=2,
        on_end=lambda entry, reason: order.append(entry.request.sampler.params.seed),
    ) as pool:  # fmt: skip
        answers(pool, asks(12, "ar", 10))
    assert all(abs(place - seed) <= 2 for place, seed in enumerate(order))


def test_the_engine_alone_says_the_same() -> None:
    engine = engine_of(InlineDrafter(replace(TABLE, noise=0.3).load()))
    for ask in asks(6):
        last = list(engine.stream(ask.tokens, replace(ask.sampling, max_tokens=ask.max_tokens)))[-1]
        assert isinstance(last, Finished)
        assert list(last.tokens) == expected(ask)


def test_the_load_is_told_how_long_this_process_computed() -> None:
    told = list[float]()
    with served(engine_of()) as pool:
        ended = pool.llm.scheduler.budget.ended

        def watched(num_requests: int, end_s: float, busy_s: float, **facts: bool) -> None:
            told.append(busy_s)
            ended(num_requests, end_s, busy_s, **facts)

        pool.llm.scheduler.budget.ended = watched  # type: ignore[method-assign, assignment]
        listener = Listener(Ask(tuple(PROMPTS[0]), SamplingParams(seed=1), max_tokens=20))
        pool.submit(listener)
        listener.result()
    assert 0 < told[0] < told[-1]
    assert told == sorted(told)


@pytest.mark.parametrize("method", ["ar", "sps"])
@pytest.mark.parametrize("num_tokens", [3, 40])
def test_after_an_abort_nothing_is_said(method: str, num_tokens: int) -> None:
    engine = engine_of(InlineDrafter(TABLE.load()))
    said: list[Output] = []
    ended: list[str] = []
    engine.scheduler.on_end = lambda entry, reason: ended.append(reason)
    params = SamplingParams(max_tokens=num_tokens)
    for num_launched in (1, 2, 3):
        said.clear()
        entry = engine.scheduled(PROMPTS[0], params, method=method, on_output=said.append)
        engine.scheduler.submit([entry])
        for _ in range(num_launched):
            engine.scheduler.finish_forward()
            if not engine.scheduler.launch():
                break
        if entry.is_over:
            continue
        num_said = len(said)
        entry.abort()
        engine.scheduler.finish_forward()
        assert not engine.scheduler.launch()
        assert len(said) == num_said, "the forward pass in flight said more"
    assert "abort" in ended
    assert set(ended) <= {"abort", "length"}


def test_who_aborts_on_hearing_a_piece_hears_no_more() -> None:
    engine = engine_of()
    said: list[Output] = []

    def hear(output: Output) -> None:
        said.append(output)
        entry.abort()

    entry = engine.scheduled(PROMPTS[0], SamplingParams(max_tokens=1), method="ar", on_output=hear)
    engine.scheduler.submit([entry])
    while engine.scheduler.step():
        pass
    assert [type(output) for output in said] == [Piece]


# --- slots and waits


def test_what_one_cache_holds_is_not_forgotten_for_another() -> None:
    alone, shared = TargetCache(0), TargetCache(1)
    slot, text = Slot(0, alone), np.arange(9, dtype=np.int32)
    slot.know(text)
    slot.cache = shared
    assert (slot.num_in_cache(text), slot.num_known(text)) == (0, 9)
    slot.know(text[:4])
    assert (slot.num_in_cache(text), slot.num_known(text)) == (4, 9)
    slot.cache = alone
    slot.forget()
    assert (slot.num_in_cache(text), slot.num_known(text)) == (0, 4)


def test_a_short_prompt_leaves_a_long_conversation_where_it_is() -> None:
    """An agent's side request, a title or a summary, would have all of it read again."""
    cache = TargetCache(0)
    slots = [Slot(i, cache) for i in range(3)]
    slots[0].know(np.arange(100, dtype=np.int32))
    short, long = np.full(20, 500, np.int32), np.full(30, 500, np.int32)
    assert best_slot(slots, short).number == 1
    assert best_slot(slots, long).number == 0
    slots[1].know(np.full(60, 7, np.int32))
    assert best_slot(slots, short).number == 2
    assert best_slot(slots[:1], short).number == 0, "there is no other"
    assert best_slot(slots, np.arange(110, dtype=np.int32)).number == 0
    with served(engine_of(num_context=400), num_slots=2) as pool:
        talk = Ask(tuple(range(1, 20)) * 10, max_tokens=3)
        answers(pool, [talk])
        answers(pool, [Ask((5, 4, 3), max_tokens=3)])
        (again,) = answers(pool, [talk])
        assert again.num_cached == len(talk.tokens) - 1


def test_who_is_ready_waits_no_longer_the_more_wait_for_drafts() -> None:
    clock = FakeClock()
    num_polls = 0

    class Slow(NoDrafter):
        def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Drafted:
            nonlocal num_polls
            num_polls += 1
            clock.advance(1.01 * wait_s)  # as long as was granted
            return Drafted()

    scheduler = Scheduler(TableTarget(TABLE), num_slots=64, clock=clock)
    for slot in range(64):
        request = Request([1, 2], 9, drafter=Slow(), slot=slot, clock=clock)
        entry = ScheduledRequest(request, METHODS["ar"](), lambda output: None)
        entry.need, entry.deadline_s = (Wait(1.0), clock() + 1.0) if slot else (Score(), 0.0)
        scheduler.running.append(entry)
    patience_s, begin_s = scheduler.budget.patience_s(), clock()
    scheduler._await_drafts()
    assert 0 < num_polls < 63  # not even one of each
    assert clock() - begin_s <= patience_s + 0.001


def test_a_prompt_goes_to_no_slot_for_what_another_owner_has_there() -> None:
    text = np.arange(10, dtype=np.int32)
    slots = [Slot(number, TargetCache()) for number in range(3)]
    for slot, owner, num in zip(slots, ("alice", "alice", "bob"), (2, 7, 10), strict=True):
        slot.belong_to(owner)
        slot.know(text[:num])
    assert [best_slot(slots, text, owner).number for owner in ("alice", "bob", "")] == [1, 2, 0]
    slots[2].belong_to("")
    assert best_slot(slots[2:], text, "").num_known(text) == 0, "it has forgotten bob's"

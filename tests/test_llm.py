"""The public API: one prompt or many, whole or as it comes, and what it refuses."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from time import sleep

import numpy as np
import pytest
from fakes import ROOT
from fakes.decoding import LETTERS, Letters, plain_text
from fakes.mutants import Mutant

from duodec import LLM, Completion, Delta, Finished, SamplingParams
from duodec.backends.curves import CostCurve
from duodec.backends.paced import PacedTarget
from duodec.core.drafters import Drafted
from duodec.core.events import Started
from duodec.core.sampling.sampler import Context, Draw
from duodec.core.targets import Query, Scores, Target
from duodec.core.traits import TargetTraits
from duodec.errors import BadOption, ComputeFailed, ContextExceeded
from duodec.machine.cores import CoreSharing, available_cores, keep_to
from duodec.methods.registry import METHODS
from duodec.methods.request import Request
from duodec.planning.budget import BatchBudget
from duodec.scheduler.outputs import Done, Failed
from duodec.scheduler.scheduled_request import ScheduledRequest
from duodec.scheduler.scheduler import Scheduler
from duodec.testing import InlineDrafter, TableModel, TableTarget

TABLE = TableModel(num_vocab=len(LETTERS) + 1, seed=7)
PROMPTS = [[3, 1, 4], [1, 5, 9, 2], [6, 5]]
PARAMS = SamplingParams(temperature=0.8, seed=3, max_tokens=20)


def llm(num_slots: int = 1) -> LLM:
    drafter = InlineDrafter(replace(TABLE, noise=0.2).load())
    return LLM(TableTarget(TABLE), Letters(), 200, drafter, num_slots=num_slots)


def expected(prompt: list[int], params: SamplingParams = PARAMS) -> list[int]:
    """By plain decoding, up to the end token."""
    tokens = plain_text(TABLE, params, params.max_tokens or 0, prompt)
    end = next((i + 1 for i, t in enumerate(tokens) if Letters().is_end(t)), len(tokens))
    return tokens[:end]


@pytest.mark.parametrize("num_slots", [1, 3])
def test_many_prompts_are_completed_in_order(num_slots: int) -> None:
    found = llm(num_slots).generate(PROMPTS, PARAMS)
    assert all(isinstance(one, Completion) for one in found)
    assert [list(one.tokens) for one in found] == [expected(prompt) for prompt in PROMPTS]
    assert found[0].finish_reason in ("length", "stop")
    assert found[0].seed == 3
    assert found[0].method == "auto"


def test_prompts_share_forward_passes() -> None:
    model = llm(3)
    model.generate(PROMPTS, replace(PARAMS, max_tokens=10), method="ar")
    assert model.scheduler.num_forwards <= 12


def test_each_prompt_may_have_its_own_params() -> None:
    each = [replace(PARAMS, seed=i) for i in range(3)]
    found = llm(2).generate(PROMPTS, each)
    assert [list(one.tokens) for one in found] == [
        expected(prompt, own) for prompt, own in zip(PROMPTS, each, strict=True)
    ]
    with pytest.raises(BadOption, match="3 prompts and 2 params"):
        llm().generate(PROMPTS, each[:2])


def test_without_a_seed_each_completion_has_a_random_one_and_reports_it() -> None:
    params = replace(PARAMS, seed=None)
    first, second = llm(2).generate([PROMPTS[0]] * 2, params)
    assert first.seed != second.seed
    assert first.tokens != second.tokens
    for one in (first, second):
        again = llm().generate(PROMPTS[0], replace(params, seed=one.seed))[0]
        assert again.tokens == one.tokens
    started, *_ = llm().stream(PROMPTS[0], params)
    assert isinstance(started, Started)
    assert started.seed not in (first.seed, second.seed)
    with pytest.raises(BadOption, match="seed is 'x'; write a number"):
        SamplingParams(seed="x")  # type: ignore[arg-type]


def test_a_text_and_tokens_of_numpy_are_one_prompt() -> None:
    model = llm()
    (by_array,) = model.generate(np.array(PROMPTS[0]), PARAMS)
    (by_items,) = model.generate([np.int64(token) for token in PROMPTS[0]], PARAMS)
    assert list(by_array.tokens) == list(by_items.tokens) == expected(PROMPTS[0])
    assert len(model.generate("hello", PARAMS)) == 1


def test_lists_that_mix_tokens_and_messages_are_refused() -> None:
    with pytest.raises(BadOption, match="a list of messages or a list of tokens"):
        llm().chat([{"role": "user", "content": "hi"}, 3])  # type: ignore[list-item]


def test_bad_prompts_and_params_are_refused_before_anything_is_computed() -> None:
    model = llm()
    with pytest.raises(ContextExceeded, match="the context holds 200"):
        model.generate([[1] * 300], PARAMS)
    with pytest.raises(BadOption, match="the prompt is empty"):
        model.stream([], PARAMS)
    for fields, words in (
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"stop": [""]}, "a stop string is empty"),
        ({"logprobs": 65}, "logprobs is 65"),
    ):
        with pytest.raises(BadOption, match=words):
            SamplingParams(**fields)  # type: ignore[arg-type]
    assert model.scheduler.num_forwards == 0


def test_logprobs_are_those_of_the_tokens() -> None:
    (found,) = llm().generate([PROMPTS[0]], replace(PARAMS, logprobs=2))
    assert found.logprobs is not None
    assert [one.token for one in found.logprobs] == [
        token for token in found.tokens if not Letters().is_end(token)
    ]
    assert all(one.logprob <= 0 and len(one.tops) == 2 for one in found.logprobs)
    (without,) = llm().generate([PROMPTS[0]], PARAMS)
    assert without.logprobs is None


def test_logprobs_that_were_asked_for_are_there_if_the_first_token_ends_the_text() -> None:
    class Ends(Letters):
        def is_end(self, token: int) -> bool:
            return True

    model = LLM(TableTarget(TableModel(Letters().num_vocab, seed=7)), Ends(), 200)
    for num_logprobs, wanted in ((2, ()), (0, ()), (None, None)):
        (found,) = model.generate([PROMPTS[0]], {"logprobs": num_logprobs})
        assert len(found.tokens) == 1
        assert found.finish_reason == "stop"
        assert found.logprobs == wanted


def test_a_stream_says_what_generate_returns() -> None:
    events = list(llm().stream(PROMPTS[1], PARAMS))
    last = events[-1]
    assert isinstance(last, Finished)
    assert "".join(e.text for e in events if isinstance(e, Delta)) == last.text
    assert list(last.tokens) == expected(PROMPTS[1])


def test_a_stop_string_ends_the_text_before_it() -> None:
    (whole,) = llm().generate([PROMPTS[1]], PARAMS)
    stop = whole.text[5:7]
    (cut,) = llm().generate([PROMPTS[1]], replace(PARAMS, stop=stop))
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop"
    assert len(cut.tokens) < len(whole.tokens)


@pytest.mark.parametrize("num_slots", [1, 2])
def test_streams_may_be_read_in_turns(num_slots: int) -> None:
    model = llm(num_slots)
    streams = [model.stream(prompt, PARAMS) for prompt in PROMPTS[:2]]
    found: list[list[object]] = [[], []]
    is_open = [True, True]
    while any(is_open):
        for i, events in enumerate(streams):
            event = next(events, None)
            is_open[i] = event is not None
            if event is not None:
                found[i].append(event)
    for events_, prompt in zip(found, PROMPTS, strict=False):
        last = events_[-1]
        assert isinstance(last, Finished)
        assert list(last.tokens) == expected(prompt)


def test_a_stream_that_is_closed_frees_its_slot() -> None:
    model = llm()
    events = model.stream(PROMPTS[0], replace(PARAMS, max_tokens=100))
    next(events), next(events)
    events.close()  # type: ignore[attr-defined]
    assert not model.scheduler.has_work
    assert list(model.generate([PROMPTS[2]], PARAMS)[0].tokens) == expected(PROMPTS[2])


def test_a_stream_may_be_told_to_end() -> None:
    num_rounds = iter(range(100))
    *_, last = llm().stream(
        PROMPTS[0], PARAMS, method="ar", should_stop=lambda: next(num_rounds) > 3
    )
    assert isinstance(last, Finished)
    assert list(last.tokens) == expected(PROMPTS[0])[:5]


@pytest.mark.parametrize(("max_tokens", "reason"), [(20, "length"), (None, "context")])
def test_a_stream_that_is_told_to_end_has_the_reason_of_its_limit(
    max_tokens: int | None, reason: str
) -> None:
    params = replace(PARAMS, max_tokens=max_tokens)
    *_, last = llm().stream(PROMPTS[0], params, method="ar", should_stop=lambda: True)
    assert isinstance(last, Finished)
    assert (len(last.tokens), last.finish_reason) == (1, reason)
    words = " ".join((LLM.stream.__doc__ or "").split())
    assert f"``{reason}``" in words.partition("should_stop:")[2].partition("sampling:")[0]


def test_several_streams_run_in_one_event_loop() -> None:
    async def text(model: LLM, prompt: list[int]) -> list[int]:
        async for event in model.astream(prompt, PARAMS):
            if isinstance(event, Finished):
                return list(event.tokens)
        raise AssertionError

    async def main() -> list[list[int]]:
        with llm(2) as model:
            return list(await asyncio.gather(*(text(model, prompt) for prompt in PROMPTS)))

    assert asyncio.run(main()) == [expected(prompt) for prompt in PROMPTS]


def test_a_stream_ends_with_its_own_text_and_not_with_that_of_others() -> None:
    model = llm(2)
    short = model.stream(PROMPTS[0], replace(PARAMS, max_tokens=3), method="ar")
    long = model.stream(PROMPTS[1], replace(PARAMS, max_tokens=18), method="ar")
    next(short), next(long), next(long)
    assert isinstance(list(short)[-1], Finished)
    assert model.scheduler.has_work, "the other one has not come to its end"
    assert list(model.generate([PROMPTS[2]], PARAMS)[0].tokens) == expected(PROMPTS[2])
    *_, last = long
    assert isinstance(last, Finished)


def test_of_two_in_an_event_loop_none_waits_for_the_others_end() -> None:
    order: list[str] = []

    async def follow(model: LLM, name: str, prompt: list[int], num_tokens: int) -> None:
        params = replace(PARAMS, max_tokens=num_tokens)
        async for event in model.astream(prompt, params, method="ar"):
            order.append(name + type(event).__name__[0])  # noqa: PERF401  as they come

    async def main() -> None:
        with llm(2) as model:
            await asyncio.gather(
                follow(model, "a", PROMPTS[0], 20), follow(model, "b", PROMPTS[1], 20)
            )

    asyncio.run(main())
    first_end = min(order.index("aF"), order.index("bF"))
    assert {"aD", "bD"} <= set(order[:first_end])


class Raising(Target):
    """A target that computes when it is launched, and fails on one prompt."""

    def __init__(self) -> None:
        self._target = TableTarget(TABLE)

    traits = TargetTraits(launches=True)

    def launch(self, queries: object) -> object:
        scores = self.score(queries)

        class Ready:
            due_s = inf

            def result(self) -> object:
                return scores

        return Ready()

    def score(self, queries: object) -> object:
        if any(query.text[0] == PROMPTS[1][0] for query in queries):  # type: ignore[attr-defined]
            raise ComputeFailed("this prompt burns")
        return self._target.score(queries)  # type: ignore[arg-type]


def test_who_fails_at_the_launch_fails_alone() -> None:
    model = LLM(Raising(), Letters(), 200, num_slots=3)  # type: ignore[arg-type]
    heard: list[list[object]] = [[], [], []]
    entries = [
        model.scheduled(prompt, PARAMS, on_output=own.append)
        for prompt, own in zip(PROMPTS, heard, strict=True)
    ]
    model.scheduler.submit(entries)
    while model.scheduler.step():
        pass
    ends = [own[-1] for own in heard]
    assert isinstance(ends[1], Failed)
    assert sum(isinstance(output, Failed) for output in heard[1]) == 1
    for i in (0, 2):
        assert isinstance(ends[i], Done)
        assert list(ends[i].finished.tokens) == expected(PROMPTS[i])


def test_who_left_in_flight_is_no_company_any_more() -> None:
    model = llm(2)
    streams = [model.stream(prompt, PARAMS, method="ar") for prompt in PROMPTS[:2]]
    for events in streams:
        next(events), next(events)
    streams[1].close()  # type: ignore[attr-defined]
    *_, last = streams[0]
    assert isinstance(last, Finished)
    assert not model.scheduler.budget._rows


def test_the_page_of_the_api_is_that_of_the_docstrings() -> None:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import api_page
    finally:
        sys.path.pop(0)
    written = (ROOT / "docs" / "api.md").read_text("utf-8")
    assert written == api_page.page(), "run python scripts/api_page.py"


class Hesitant(InlineDrafter):
    """A drafter that is late, silent or done by a pattern that depends on the number of polls."""

    def __init__(self, period: int) -> None:
        super().__init__(replace(TABLE, noise=0.2).load())
        self._period, self._num_polls = period, 0

    def poll(self, slot: int, wait_s: float = 0.0, beyond: int | None = None) -> Drafted:
        self._num_polls += 1
        if self._num_polls % self._period == 0:
            return Drafted(is_complete=False)
        return super().poll(slot, wait_s, beyond)


KEYED = [
    name
    for name, kind in METHODS.items()
    if name not in ("rest", "sps-rejection") and not kind.needs_heads
]


@pytest.mark.parametrize("num_slots", [1, 3])
@pytest.mark.parametrize("period", [1, 2, 3])
@pytest.mark.parametrize("name", KEYED)
def test_no_timing_of_the_drafter_changes_a_text(name: str, period: int, num_slots: int) -> None:
    model = LLM(TableTarget(TABLE), Letters(), 200, Hesitant(period), num_slots=num_slots)
    model.scheduler.num_chunk = 2  # prompts are read in parts, too
    found = model.generate(PROMPTS, PARAMS, method=name)
    assert [list(one.tokens) for one in found] == [expected(prompt) for prompt in PROMPTS]


@pytest.mark.parametrize("name", [*KEYED, "sps-rejection"])
def test_logprobs_are_the_models_own_whatever_was_drafted(name: str) -> None:
    (found,) = llm().generate([PROMPTS[0]], replace(PARAMS, logprobs=1), method=name)
    assert found.logprobs is not None
    text = list(PROMPTS[0])
    for one in found.logprobs:
        row = TABLE.logits(Context(np.array(text, dtype=np.int32))).astype(np.float64)
        own = row - np.log(np.exp(row - row.max()).sum()) - row.max()
        assert one.logprob == pytest.approx(own[one.token], abs=1e-6)
        assert one.tops[0][0] == int(np.argmax(row))
        text.append(one.token)
    assert text[len(PROMPTS[0]) :] == [t for t in found.tokens if not Letters().is_end(t)]


class Ending(Letters):
    """A vocabulary in which a token that is often drawn ends a completion."""

    def is_end(self, token: int) -> bool:
        return token == 7


@pytest.mark.parametrize("name", KEYED)
def test_nothing_follows_an_end_token(name: str) -> None:
    drafter = InlineDrafter(replace(TABLE, noise=0.2).load())
    model, num_ends = LLM(TableTarget(TABLE), Ending(), 200, drafter), 0
    for seed in range(12):
        params = replace(PARAMS, seed=seed, logit_bias={7: 1.0}, logprobs=0)
        whole = plain_text(TABLE, params, 20, PROMPTS[0])
        wanted = whole[: whole.index(7) + 1] if 7 in whole else whole
        (found,) = model.generate([PROMPTS[0]], params, method=name)
        assert list(found.tokens) == wanted
        assert found.finish_reason == ("stop" if 7 in whole else "length")
        assert found.stats.num_new_tokens == len(wanted)
        assert [one.token for one in found.logprobs or ()] == [t for t in wanted if t != 7]
        num_ends += 7 in whole
    assert 0 < num_ends < 12


def test_long_prompts_are_read_in_turns() -> None:
    lengths: list[list[int]] = []

    class Noted(TableTarget):
        def score(self, queries: Sequence[Query]) -> list[Scores]:
            lengths.append([len(query.text) for query in queries])
            return super().score(queries)

    model = LLM(Noted(TABLE), Letters(), 200, num_slots=2)
    model.scheduler.num_chunk = 4
    prompts = [[3, 1] * 8, [5, 2] * 8]
    found = model.generate(prompts, PARAMS, method="ar")
    assert [list(one.tokens) for one in found] == [expected(prompt) for prompt in prompts]
    parts = [own for own in lengths if min(own) < 16]
    assert all(len(own) == 1 or max(own) >= 16 for own in parts), "one part in a forward pass"
    assert sorted(length for own in parts for length in own if length < 16) == [4, 4, 8, 8, 12, 12]


def survives() -> None:
    """What a corrupted scheduler cannot do: texts, logprobs and slots are as they must be."""
    test_no_timing_of_the_drafter_changes_a_text("stream", 2, 3)
    test_no_timing_of_the_drafter_changes_a_text("recycling", 2, 3)
    test_prompts_share_forward_passes()
    test_logprobs_are_the_models_own_whatever_was_drafted("pearl")
    test_logprobs_are_the_models_own_whatever_was_drafted("lookup")
    test_a_stream_says_what_generate_returns()
    test_a_stop_string_ends_the_text_before_it()
    test_a_stream_ends_with_its_own_text_and_not_with_that_of_others()
    test_who_left_in_flight_is_no_company_any_more()
    test_who_fails_at_the_launch_fails_alone()
    test_a_slot_that_knows_a_text_reads_what_is_new()
    test_nothing_follows_an_end_token("stream")
    test_long_prompts_are_read_in_turns()


def test_a_slot_that_knows_a_text_reads_what_is_new() -> None:
    model = llm(2)
    (first,) = model.generate([PROMPTS[1] * 4], replace(PARAMS, max_tokens=5), method="ar")
    text = [*PROMPTS[1] * 4, *first.tokens]
    heard: list[object] = []
    model.scheduler.submit([model.scheduled([*text, 1], PARAMS, on_output=heard.append)])
    while model.scheduler.step():
        pass
    done = heard[-1]
    assert isinstance(done, Done)
    assert done.num_cached == len(text) - 1, "the last token was drawn, never read"


# --- the caller's time, cores and interrupts


def test_a_callers_time_is_not_the_targets() -> None:
    """A paced target is done long before the caller looks for the result."""
    target = PacedTarget(TableTarget(TABLE), CostCurve.constant(0.001))
    model = LLM(replace(llm().loaded, target=target))
    for event in (events := model.stream(PROMPTS[0], PARAMS, method="ar")):
        if isinstance(event, Delta):
            sleep(1.5)
            break
    *_, last = events
    assert isinstance(last, Finished)
    assert max(done.end_s - done.start_s for done in last.stats.rounds) < 1.2


@pytest.mark.parametrize("is_paced", [False, True])
@pytest.mark.parametrize("most", [0, 3])
@pytest.mark.parametrize("method", KEYED)
def test_no_more_is_drafted_than_a_target_can_score(method: str, most: int, is_paced: bool) -> None:
    """As one that cannot take back its state, or no more than some tokens of it."""
    lengths: list[int] = []

    class Limited(TableTarget):
        traits = TargetTraits(max_draft=most)

        def score(self, queries: Sequence[Query]) -> list[Scores]:
            lengths.extend(len(query.draft) for query in queries)
            return super().score(queries)

    model = llm()
    assert model.loaded.drafter is not None
    asked: list[object] = []
    submit = model.loaded.drafter.submit
    model.loaded.drafter.submit = lambda request: (asked.append(request), submit(request))[1]  # type: ignore[method-assign]
    target = Limited(TABLE)
    paced = PacedTarget(target, CostCurve.constant(0.0005)) if is_paced else target
    model.loaded = replace(model.loaded, target=paced)
    for _ in range(3):  # some methods learn
        for prompt in PROMPTS:
            (found,) = model.generate([prompt], PARAMS, method=method)
            assert list(found.tokens) == expected(prompt)
            assert max(done.num_scored for done in found.stats.rounds) <= most
    assert max(lengths) <= most
    if not most:
        assert not asked


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no threads")
@pytest.mark.parametrize("is_whole", [True, False])
def test_a_caller_has_all_its_cores_while_it_holds_a_piece(is_whole: bool) -> None:
    every = available_cores()
    pinned: list[bool] = []

    def prepare(is_drafting: bool) -> None:
        pinned.append(is_drafting)
        keep_to(every[:1] if is_drafting else every)

    model = LLM(replace(llm().loaded, cores=CoreSharing(prepare=prepare)))
    try:
        for number, event in enumerate(model.stream(PROMPTS[0], PARAMS, method="stream")):
            assert available_cores() == every, event
            if number == 3 and not is_whole:
                break
        assert available_cores() == every
    finally:
        keep_to(every)
    assert True in pinned  # they were shared meanwhile


def test_an_interrupt_ends_no_other_completion_as_if_it_were_whole() -> None:
    """It comes while one caller's step goes on with another one's text."""

    class Interrupted(Target):
        def __init__(self) -> None:
            self._target = TableTarget(TABLE)
            self.slot: int | None = None  # in whose verdict it comes

        def score(self, queries: Sequence[Query]) -> list[Scores]:
            found = self._target.score(queries)
            return [
                _Interrupting(self) if query.slot == self.slot else scores
                for query, scores in zip(queries, found, strict=True)
            ]

    class _Interrupting:
        num_rows = 1

        def __init__(self, owner: Interrupted) -> None:
            self._owner = owner

        def draw(self, row: int) -> Draw:
            self._owner.slot = None
            raise KeyboardInterrupt

    target = Interrupted()
    model = LLM(replace(llm(2).loaded, target=target))
    first, second = (model.stream(prompt, PARAMS, method="ar") for prompt in PROMPTS[:2])
    for events in (first, second):
        next(events)
        assert isinstance(next(events), Delta)
    target.slot = 1
    with pytest.raises(KeyboardInterrupt):
        list(first)
    with pytest.raises(ComputeFailed, match="an interrupt ended this completion"):
        list(second)
    (found,) = model.generate([PROMPTS[2]], PARAMS, method="ar")
    assert list(found.tokens) == expected(PROMPTS[2])


_FOUND = "P0._launched([A])", "P0._launched([A])"
SCHEDULER_MUTANTS = [
    (ScheduledRequest.note_computed, ("min(A, B) - C", "min(A, B)")),
    (
        Scheduler._take_scores,
        ("zip(A, B, P2, C, strict=True)", "zip(A, B, P2[::-1], C, strict=True)"),
    ),
    (Scheduler._take_scores, ("A.part is None and B", "B")),
    (Scheduler._deliver, ("P1.request.run_deferred()", "None")),
    (Scheduler._batch, ("A not in B", "True")),
    (Scheduler._blame, _FOUND, ("P0._fail(A, B)", "P0._fail(P1[0], B)")),
    (Scheduler._fail, ("not A.is_aborted", "A.is_aborted")),
    (Request._add_logprobs, ("A + 1", "A + 2 if A + 2 < P3.num_rows else A + 1")),
    (Request._until_end, ("A = A[: B + 1]", "A = A")),
    (BatchBudget.observe, ("A in P0._rows", "True")),
]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(SCHEDULER_MUTANTS)))
def test_a_mutant_of_the_scheduler_is_caught(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    function, *changes = SCHEDULER_MUTANTS[number]
    code = Mutant("a mutant", function, tuple(changes)).code()
    survives()
    monkeypatch.setattr(function, "__code__", code)
    with pytest.raises(Exception):  # noqa: B017, PT011  whatever a corrupted one trips over
        survives()

"""What an event loop is told of answers in work, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Any, cast

import pytest

pytest.importorskip("starlette", reason="starlette is not installed: make setup")

from duodec.core.events import Delta, Finished, Segment
from duodec.methods.ar import Autoregressive
from duodec.methods.request import Request
from duodec.scheduler.outputs import Counts, Done, Failed, Piece
from duodec.scheduler.scheduled_request import ScheduledRequest
from duodec.server.errors import ApiError
from duodec.server.http.streams import ClientGone, whole
from duodec.server.logs import facts
from duodec.server.models.output_collector import Numbered, OutputCollector

LONG_S = 30.0


class ByHand:
    """A scheduler whose tasks the test answers."""

    def __init__(self) -> None:
        self.tasks: list[ScheduledRequest] = []

    def submit(self, tasks: Sequence[ScheduledRequest]) -> None:
        self.tasks += tasks

    def abort(self, task: ScheduledRequest) -> None:
        task.abort()


def collector_of(
    num: int = 1, timeout_s: float = LONG_S, interval_s: float = 0.0
) -> tuple[OutputCollector, Any]:
    pool: Any = ByHand()
    tasks = [ScheduledRequest(Request((1,), 2), Autoregressive(), print) for _ in range(num)]
    return OutputCollector(pool, tasks, timeout_s, interval_s), pool.tasks


def piece(text: str, num_tokens: int = 1) -> Piece:
    return Piece(Delta((Segment(text, None),)), counts=Counts(num_tokens))


DONE = Done(cast(Finished, None), "ar", 0, (), 0, 0.0, 0.0)


def texts(told: Sequence[Numbered]) -> list[tuple[int, str]]:
    return [(i, word.delta.text) for i, word in told if isinstance(word, Piece)]


def test_the_first_word_comes_at_once_and_those_of_an_interval_as_one() -> None:
    async def main() -> None:
        collector, (job,) = collector_of(interval_s=0.2)
        job.on_output(piece("a"))
        assert texts(await collector.next(LONG_S)) == [(0, "a")]
        begin_s = perf_counter()
        job.on_output(piece("b", 2))
        job.on_output(piece("c", 3))
        ((index, word),) = await collector.next(LONG_S)
        assert perf_counter() - begin_s > 0.15
        assert isinstance(word, Piece)
        assert (index, word.delta.text, word.counts.num_tokens) == (0, "bc", 3)

    asyncio.run(main())


def test_the_log_says_what_was_generated_of_a_response_that_was_cut_short() -> None:
    class Writer:
        def facts(self) -> dict[str, Any]:
            return {"tokens": 5, "drafted": 2, "accepted": 1}  # of choices that ended

        def add(self, index: int, output: Any) -> list[Any]:
            return []

    async def main() -> None:
        collector, (ended, running) = collector_of(2)
        ended.counts, running.counts = Counts(5, 3, 2, 1), Counts(7, 4, 6, 3)
        ended.on_output(DONE)
        assert [output for _, output in await collector.next(LONG_S)] == [DONE]
        running.is_over = True  # the scheduler may be the first to end what was cut short

        async def receive() -> dict[str, Any]:
            return {"type": "http.disconnect"}

        noted: dict[str, Any] = {}
        facts.set(noted)
        with pytest.raises(ClientGone):
            await whole(cast(Any, Writer()), collector, cast(Any, receive))
        collector.close()  # again
        assert noted == {"tokens": 12, "drafted": 8, "accepted": 4}

    asyncio.run(main())


def test_a_word_after_a_pause_is_told_at_once() -> None:
    async def main() -> None:
        collector, (job,) = collector_of(interval_s=1.0)
        job.on_output(piece("a"))
        await collector.next(LONG_S)
        told = asyncio.ensure_future(collector.next(LONG_S))
        await asyncio.sleep(1.1)  # the interval is over, and the collector listens
        begin_s = perf_counter()
        job.on_output(piece("b"))
        assert texts(await told) == [(0, "b")]
        assert perf_counter() - begin_s < 0.9

    asyncio.run(main())


@pytest.mark.parametrize("is_early", [True, False])
def test_the_end_waits_for_no_interval(is_early: bool) -> None:
    async def main() -> None:
        collector, (job,) = collector_of(interval_s=LONG_S)
        job.on_output(piece("a"))
        await collector.next(LONG_S)
        begin_s = perf_counter()
        if is_early:
            job.on_output(piece("b"))
            job.on_output(DONE)
            await asyncio.sleep(0.01)  # the loop is woken while nobody waits
        else:
            asyncio.get_running_loop().call_later(0.1, job.on_output, piece("b"))
            asyncio.get_running_loop().call_later(0.2, job.on_output, DONE)
        assert [word for _, word in await collector.next(LONG_S)] == [piece("b"), DONE]
        assert collector.is_over
        assert perf_counter() - begin_s < LONG_S / 2

    asyncio.run(main())


def test_choices_are_told_apart_and_each_text_before_its_end() -> None:
    async def main() -> None:
        collector, (first, second) = collector_of(2)
        for job, word in ((first, piece("a")), (second, piece("x")), (first, piece("b")),
                          (first, DONE), (second, piece("y"))):  # fmt: skip
            job.on_output(word)
        told = await collector.next(LONG_S)
        assert texts(told) == [(0, "ab"), (1, "xy")]
        assert told.index((0, DONE)) == 1
        assert not collector.is_over

    asyncio.run(main())


def test_text_before_a_failure_is_told_before_it() -> None:
    async def main() -> None:
        collector, (job,) = collector_of()
        job.on_output(piece("a"))
        job.on_output(Failed(ValueError("broken")))
        assert texts(await collector.next(LONG_S)) == [(0, "a")]
        with pytest.raises(ValueError, match="broken"):
            await collector.next(LONG_S)

    asyncio.run(main())


def test_silence_is_no_word_and_ends_with_the_time_of_a_request() -> None:
    async def main() -> None:
        collector, _ = collector_of(timeout_s=0.1)
        assert await collector.next(0.02) == []
        assert await collector.next(LONG_S) == []
        with pytest.raises(ApiError, match=r"0\.1 s"):
            await collector.next(LONG_S)

    asyncio.run(main())


def test_words_come_from_other_threads() -> None:
    async def main() -> None:
        collector, (job,) = collector_of(interval_s=0.001)

        def answer() -> None:
            for i in range(2000):
                job.on_output(piece(f"{i},"))
            job.on_output(DONE)

        answering = asyncio.get_running_loop().run_in_executor(None, answer)
        found = ""
        while not collector.is_over:
            found += "".join(text for _, text in texts(await collector.next(LONG_S)))
        await answering
        assert found == "".join(f"{i}," for i in range(2000))

    asyncio.run(main())

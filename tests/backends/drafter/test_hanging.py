"""A drafter that stopped or that computes without end is started anew; one that only waits for a
core is not."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter, sleep

import pytest
from fakes.decoding import FakeClock
from fakes.draft_processes import (
    PROMPT,
    TABLE,
    Start,
    drafts_again,
    kill,
    request,
    session_of,
    text_of,
    until,
)

from duodec.backends.drafter.channel import Channel
from duodec.backends.drafter.supervision import HangDetector
from duodec.core.drafters import DraftModel, RowQuery
from duodec.core.rows import Row
from duodec.drafting.plans import Chain
from duodec.machine.processes import Activity
from duodec.testing import TableDraftModel, TableModel


def test_stopped_in_the_middle_of_a_draft(start: Start, warnings: list[str]) -> None:
    drafter = start(TableModel(noise=0.3, seconds=0.002))
    assert drafts_again(drafter)
    stopped = text_of(
        "sps", session_of(drafter), lambda i: kill(drafter, signal.SIGSTOP) if i == 4 else None
    )
    assert stopped == text_of("ar", session_of(None))
    until(lambda: drafter.is_ready and drafter.restarts == 1)
    assert drafts_again(drafter)
    assert (drafter.restarts, len(warnings)) == (1, 1)
    assert "hung" in warnings[0]


def test_one_that_gets_no_core_for_a_while_is_not_hung_and_not_waited_for(
    start: Start, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process that the system calls busy, as on a loaded machine."""
    drafter = start(replace(TABLE, seconds=0.002))
    assert drafts_again(drafter)
    monkeypatch.setattr(drafter._hang_detector, "_look", lambda pid: Activity(True, 3.0))
    drafter.submit(request(PROMPT, Chain(100)))
    kill(drafter, signal.SIGSTOP)
    begin_s = perf_counter()
    while perf_counter() < begin_s + 1.2:
        drafter.poll(0, 0.05)
    waited_s = perf_counter()
    for _ in range(10):
        drafter.poll(0, 2.0)
    assert perf_counter() - waited_s < 10, "it is waited for as little as one that hangs"
    kill(drafter, signal.SIGCONT)
    assert drafts_again(drafter)
    assert (drafter.restarts, warnings) == (0, [])


# --- recipes: the child imports them from this module ---


@dataclass
class EndlessModel(DraftModel):
    """Computes forever after texts that end with token 0."""

    table: TableDraftModel

    def rows(self, query: RowQuery) -> list[Row]:
        while query.text[-1] == 0:
            pass
        return self.table.rows(query)


@dataclass(frozen=True)
class Endless:
    def load(self) -> DraftModel:
        return EndlessModel(TABLE.load())


@pytest.mark.slow
def test_one_that_computes_without_end_hangs(start: Start, warnings: list[str]) -> None:
    drafter = start(Endless())
    assert drafts_again(drafter)
    drafter.submit(request([1, 0], Chain(3)))
    until(lambda: drafter.is_ready and drafter.restarts == 1)
    assert "hung" in warnings[0]
    assert drafts_again(drafter)


PID, SINCE_S = 7, 100.0


def doubted(does: Callable[[float], Activity | None], num: int) -> list[float]:
    """So many looks, 0.1 s apart, at a process that is silent since the clock's beginning;
    ``does``: what it does by the seconds since then."""
    clock = FakeClock()
    doubt = HangDetector(clock, lambda pid: does(clock() - SINCE_S))
    found: list[float] = []
    for _ in range(num):
        clock.advance(0.1)
        found.append(doubt.hung_s(PID, SINCE_S, 1.0))
    return found


def test_what_hangs_is_told_from_what_gets_no_core() -> None:
    still = doubted(lambda s: Activity(False, 5.0), 11)
    assert not any(still[:10])
    assert still[-1] == pytest.approx(1.1)
    starved = doubted(lambda s: Activity(True, 5.0), 111)
    assert not any(starved[:109])
    assert starved[-1] == pytest.approx(11.1), "for so long"
    looping = doubted(lambda s: Activity(True, 5.0 + s), 13)
    assert not any(looping[:10])
    assert looping[-1] == pytest.approx(1.3)
    assert not any(doubted(lambda s: Activity(True, 5.0 + s / 2), 20)), "it has half of a core"
    assert doubted(lambda s: None, 11)[-1] == pytest.approx(1.1), "nobody knows"


def test_what_it_computed_before_its_silence_does_not_count() -> None:
    clock, spent = FakeClock(), [5.0]
    doubt = HangDetector(clock, lambda pid: Activity(True, spent[0]))
    for _ in range(20):  # a word after each 0.9 s of work
        since_s = clock.now
        for _ in range(9):
            clock.advance(0.1)
            spent[0] += 0.1
            assert not doubt.hung_s(PID, since_s, 1.0)
    assert not doubt.hung_s(PID, None, 1.0)
    clock.advance(1.3)
    assert not doubt.hung_s(PID, since_s, 1.0), "starved since"
    assert not doubt.hung_s(PID + 1, since_s, 1.0), "another process, that nobody knows yet"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_nobody_waits_to_learn_how_a_drafter_ended(
    start: Start, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    drafter = start(replace(TABLE, seconds=0.002))
    assert drafts_again(drafter)
    waits: list[object] = []
    monkeypatch.setattr(Channel, "wait", lambda *args: waits.append(args))
    monkeypatch.setattr(subprocess.Popen, "wait", lambda *args, **options: waits.append(args))
    drafter.submit(request(PROMPT, Chain(1000)))
    kill(drafter, number)
    until(lambda: drafter.is_ready and drafter.restarts == 1)
    assert not waits


def test_a_caller_that_is_long_away_sees_no_hanging(start: Start, warnings: list[str]) -> None:
    asked, cancelled = start(TABLE), start(TABLE)
    for drafter in (asked, cancelled):
        assert drafts_again(drafter)
        drafter.submit(request(PROMPT, Chain(2)))
    cancelled.cancel(0)
    sleep(1.1)
    assert drafts_again(asked)
    assert drafts_again(cancelled)
    assert (asked.restarts, cancelled.restarts, warnings) == (0, 0, [])

"""A drafter that reads a text holds nobody up and is not called hung; older text it reads when
there is nothing to draft."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
import psutil
import pytest
from fakes.draft_processes import (
    LONG_S,
    PROMPT,
    TABLE,
    Start,
    finished,
    kill,
    request,
    session_of,
    text_of,
    until,
)

from duodec.core.drafters import DraftModel, RowQuery
from duodec.core.rows import Row
from duodec.core.traits import DraftTraits
from duodec.core.turns import InTurns
from duodec.drafting.plans import Chain
from duodec.testing import TableDraftModel

# --- recipes: the child imports them from this module ---


@dataclass
class ReadingModel(DraftModel):
    """Reads its texts 10 tokens at a time, ``chunk_s`` each."""

    traits = DraftTraits(reads_in_chunks=True)

    table: TableDraftModel
    chunk_s: float = 0.01
    num_read: int = 0
    on_chunk: Callable[[], None] = field(default=lambda: None)

    def rows(self, query: RowQuery) -> list[Row]:
        self.num_read = min(self.num_read, len(query.text))
        while self.num_read < len(query.text):
            sleep(self.chunk_s)
            self.num_read += 10
            self.on_chunk()
        return self.table.rows(query)


@dataclass(frozen=True)
class Reading:
    chunk_s: float = 0.01

    def load(self) -> DraftModel:
        return ReadingModel(TABLE.load(), self.chunk_s)


@dataclass
class WideningModel(DraftModel):
    """Reads ``chunk_s`` of older text at a time, ``num_left`` times for each text, and writes down
    whether it was idle."""

    traits = DraftTraits(has_window=True)
    table: TableDraftModel
    log: str
    chunk_s: float
    num_left: int

    def rows(self, query: RowQuery) -> list[Row]:
        sleep(0.002)
        return self.table.rows(query)

    def widen(self, slot: int, *, is_idle: bool) -> bool:
        if not self.num_left:
            return False
        if not is_idle:
            with Path(self.log).open("a") as file:
                file.write("d")  # drafting goes on
            return False
        self.num_left -= 1
        sleep(self.chunk_s)
        with Path(self.log).open("a") as file:
            file.write("i")
        if self.num_left == 900:
            raise ValueError("older text is unreadable")
        return True


@dataclass(frozen=True)
class Widening:
    log: str
    chunk_s: float = 0.02
    num_left: int = 850

    def load(self) -> DraftModel:
        return WideningModel(TABLE.load(), self.log, self.chunk_s, self.num_left)


def test_nobody_waits_while_it_reads_and_reading_can_be_left(start: Start) -> None:
    drafter = start(Reading())
    long = np.arange(30_000) % 32  # half a minute
    before = perf_counter()
    drafter.submit(request(long, Chain(2)))
    assert not drafter.poll(0, wait_s=LONG_S).is_complete
    until(lambda: drafter.poll(0, wait_s=LONG_S).read_s > 0.1)  # told between chunks
    assert drafter.restarts == 0
    assert len(finished(drafter, request(long[:3], Chain(2))).draft) == 2
    drafter.submit(request(long, Chain(2)))
    drafter.cancel(0)
    assert len(finished(drafter, request(long[:30], Chain(2), slot=1)).draft) == 2
    assert perf_counter() - before < 15


@pytest.mark.slow
def test_reading_slowly_is_not_hanging_when_requests_supersede_each_other(
    start: Start, warnings: list[str]
) -> None:
    drafter = start(Reading(chunk_s=1.4))  # longer than silence between steps may be
    assert len(finished(drafter, request([1, 2], Chain(2))).draft) == 2
    long = np.arange(100) % 32  # more than is read with the first step
    begin, num_asked = perf_counter(), 0
    while perf_counter() - begin < 3.5:  # as the rounds of a fast target do
        drafter.submit(request(np.append(long, num_asked % 32), Chain(2)))
        drafter.poll(0)
        num_asked += 1
        sleep(0.02)
    assert (drafter.restarts, warnings) == (0, [])


@pytest.mark.slow
def test_reading_within_a_step_that_is_waited_for_is_not_hanging(
    start: Start, warnings: list[str]
) -> None:
    """In turns with the target, nobody is told to go on without it meanwhile."""
    drafter = start(Reading(chunk_s=1.7))  # longer than silence between steps may be
    quick = finished(drafter, request([1, 2], InTurns(Chain(7))))  # but for the first step
    assert len(quick.draft) == 7
    long = np.arange(80) % 32
    drafter.submit(request(long[:70], InTurns(Chain(2))))
    drafter.poll(0, 0.2)
    drafter.poll(0, 0.1)  # it is in its first chunk, and says no more before the end of that
    made = finished(drafter, request(long, InTurns(Chain(2))))  # all chunks in the first step
    assert len(made.draft) == 2
    assert (drafter.restarts, warnings) == (0, [])


def test_reading_ends_though_a_fast_target_supersedes_every_request(start: Start) -> None:
    """A target quicker than one draft step: the first nodes after a long text are stale when
    they arrive, and must still say that the reading is over, or nobody waits for a draft again."""
    drafter = start(replace(TABLE, seconds=0.02))
    long = np.arange(200) % 32
    end = perf_counter() + 10
    while perf_counter() < end:
        long = np.append(long, 1)
        drafter.submit(request(long, Chain(1)))
        if len(drafter.poll(0, wait_s=1.0).draft):
            return
        sleep(0.002)  # the forward: ten times as fast as a draft step
    raise AssertionError("no draft was ever waited for")


def test_older_text_is_read_between_drafts_and_when_idle_and_never_after_a_cancel(
    start: Start, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.touch()
    drafter = start(Widening(str(path)))
    assert len(finished(drafter, request(PROMPT, Chain(5))).draft) == 5
    until(lambda: path.read_text().count("i") >= 3)
    assert path.read_text().startswith("ddddd")  # after each step, first the draft
    before = perf_counter()
    assert len(finished(drafter, request([*PROMPT, 1], Chain(2))).draft) == 2
    assert perf_counter() - before < 8.0  # one chunk, not all 850: they take 17 seconds
    drafter.cancel(0)
    sleep(0.2)
    num_read = len(path.read_text())
    sleep(0.3)
    assert len(path.read_text()) == num_read
    assert len(finished(drafter, request([*PROMPT, 1], Chain(1))).draft) == 1
    until(lambda: path.read_text().count("i", num_read) >= 3)


def test_a_drafter_with_nothing_left_to_read_sleeps(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "log"
    drafter = start(Widening(str(path), chunk_s=0.001, num_left=5))
    finished(drafter, request(PROMPT, Chain(1)))
    until(lambda: path.read_text().count("i") == 5)
    assert drafter.pid is not None
    child = psutil.Process(drafter.pid)
    before = child.cpu_times().user
    sleep(0.5)
    assert child.cpu_times().user - before < 0.1


def test_a_failure_to_read_older_text_is_told_and_drafting_goes_on(
    start: Start, tmp_path: Path, warnings: list[str]
) -> None:
    drafter = start(Widening(str(tmp_path / "log"), chunk_s=0.0, num_left=903))
    drafter.submit(request(PROMPT, Chain(2)))
    until(lambda: drafter.poll(0, 0.1) is not None and warnings)
    assert "older text is unreadable" in warnings[0]
    assert len(finished(drafter, request(PROMPT, Chain(2))).draft) == 2
    assert drafter.restarts == 0


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_long_prompt_that_is_read_in_turns_changes_no_text(
    start: Start, temperature: float, is_killed: bool
) -> None:
    prompt = [token % 32 for token in range(100)]
    expected = text_of("ar", session_of(None, temperature, 24, prompt))
    drafter = start(Reading(chunk_s=0.02))
    for name in ("sps", "pearl", "duo", "stream", "auto"):
        session = session_of(drafter, temperature, 24, prompt, shares_cores=True, takes_turns=True)

        def strike(i: int) -> None:
            if is_killed and i % 7 == 3:
                kill(drafter)

        assert text_of(name, session, strike) == expected
        if name == "sps" and not is_killed:
            assert any(done.num_drafted for done in session.rounds), "what was read is of use"

"""The fuzzers: who was stopped did not hang, and what found something can be run again."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from threading import Timer
from time import sleep

import pytest
from fakes.tiny_models import write_dense
from stress import fuzzing
from stress.damaged_gguf import map_of, mutated
from stress.fuzzing import Stops, ended, keep, kept


def forked(seconds: float) -> int:
    child = os.fork()
    if not child:
        sleep(seconds)
        os._exit(7)
    return child


def test_a_child_that_ends_is_waited_for() -> None:
    status, cpu_s = ended(forked(0.0), 240) or (None, -1)
    assert status == 7
    assert cpu_s >= 0


def test_a_child_that_hangs_is_killed() -> None:
    child = forked(1000)
    assert ended(child, 0.1) is None
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


@pytest.mark.slow
def test_a_child_that_was_stopped_did_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzzing, "LONGEST_TICK_S", 0.01)
    child = forked(0.2)
    os.kill(child, signal.SIGSTOP)
    go_on = Timer(2.0, os.kill, (child, signal.SIGCONT))
    go_on.start()
    try:
        found = ended(child, 1.5)
    finally:
        go_on.join()
    assert found is not None
    assert found[0] == 7


def test_what_was_stopped_on_its_way_is_done_again() -> None:
    before = signal.getsignal(signal.SIGCONT)
    stops, calls = Stops(), list[int]()

    def call() -> str:
        calls.append(1)
        if len(calls) < 3:  # as when the process was stopped for so long that it timed out
            os.kill(os.getpid(), signal.SIGCONT)
            if len(calls) == 2:
                raise TimeoutError
        return "done"

    try:
        assert stops.timed(call)[0] == "done"
        assert len(calls) == 3
        with pytest.raises(OSError, match="its own"):
            stops.timed(lambda: (_ for _ in ()).throw(OSError("its own")))
    finally:
        signal.signal(signal.SIGCONT, before)


def test_what_found_something_is_kept_with_its_number(tmp_path: Path) -> None:
    for number in (3, 12):
        keep("raw", number, "a 500", ["GET /", "\xff"], tmp_path)
    keep("body", "4.7", "a hang", ["/v1/completions", {"n": 1}], tmp_path)
    assert [(r["number"], r["input"]) for r in kept("raw", tmp_path)] == [
        (12, ["GET /", "\xff"]),
        (3, ["GET /", "\xff"]),
    ]
    assert kept("body", tmp_path)[0]["problem"] == "a hang"


def test_a_number_makes_the_same_damaged_file_each_time(tmp_path: Path) -> None:
    data = write_dense(tmp_path / "tiny.gguf").read_bytes()
    places = map_of(data)
    files = [mutated(data, places, number) for number in range(40)]
    assert files == [mutated(data, places, number) for number in range(40)]
    assert len({found for found, _ in files}) > 35

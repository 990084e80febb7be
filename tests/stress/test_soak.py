"""The soak goes on where it was stopped, and adds its sessions up."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="pip install '.[server,dev]'")

from benchmarks.serving.servers import Served
from fakes.server import engine_on_tables, running
from stress import soak
from stress.soak import Line, Session, growth_of_last_half, read, summary, unexplained
from stress.soak_clients import Case, Part

from duodec.core.sampling.sampler import SamplingParams


def sample(rss_mb: float) -> dict[str, float]:
    return {"at_s": 0, "rss_mb": rss_mb, "num_files": 9, "num_threads": 4, "num_cells": 1}


def line(name: str, numbers: range, **more: Any) -> Line:
    return Line(
        part=name, first=numbers.start, num_requests=len(numbers), num_right=len(numbers) - 1,
        num_left=1, num_busy=3, num_kills=2, seconds=1.5, wrong=[], attacks={"a left": 2},
        samples=[sample(100.0)] * 4, **more,
    )  # fmt: skip


class Stopped(Exception):
    pass


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, range]]:
    """The parts that were run; a soak of which the third is stopped."""
    found: list[tuple[str, range]] = []
    log = tmp_path / "log"
    log.write_text("")

    @contextmanager
    def ours(*options: str) -> Iterator[Any]:
        yield SimpleNamespace(log=log, pid=1)

    def run(
        self: Session, name: str, numbers: range, seed: int, attacks: Sequence[str] | None
    ) -> Line:
        found.append((name, numbers))
        if len(found) == 3:
            raise Stopped
        return line(name, numbers)

    monkeypatch.setattr(soak, "ours", ours)
    monkeypatch.setattr(soak, "cases", lambda data, number: [])
    monkeypatch.setattr(soak, "noticing_s", lambda served, pool, number: [0.5] * number)
    monkeypatch.setattr(soak, "RESULTS", tmp_path)
    monkeypatch.setattr(soak, "environment", dict)
    monkeypatch.setattr(Session, "run", run)
    monkeypatch.setattr(Session, "kill", lambda self: None)
    return found


def test_it_goes_on_where_it_was_stopped(ran: list[tuple[str, range]], tmp_path: Path) -> None:
    journal = tmp_path / "soak.jsonl"
    options = {"num_requests": 25, "num_calm": 5, "num_of_part": 10, "num_cases": 1}
    with pytest.raises(Stopped):
        soak.main(tmp_path, journal, **options)
    soak.main(tmp_path, journal, **options)
    assert ran == [
        ("calm", range(5)), ("storm", range(10)), ("storm", range(10, 20)),
        ("storm", range(10, 20)), ("storm", range(20, 25)),
    ]  # fmt: skip
    found = json.loads((tmp_path / "soak.json").read_text())
    assert (found["num_requests"], found["num_right"], found["num_left"]) == (30, 26, 4)
    assert (found["num_kills"], found["num_sessions"]) == (8, 2)
    assert found["attacks"] == {"a left": 8}
    assert found["noticing_ms"] == {"median": 500.0, "most": 500.0}
    soak.main(tmp_path, journal, **options)  # there is nothing left to do
    assert len(ran) == 5


@pytest.mark.parametrize("attacks", [None, ("endless_header",)])
def test_a_part_on_a_server(attacks: Sequence[str] | None, tmp_path: Path) -> None:
    """Of tables: every answer is right, none is lost, and the counters add up."""
    engine = engine_on_tables(num_context=1024)
    pool = []
    for i, text in enumerate(("hello", "again", "so be it")):
        sampling = SamplingParams(temperature=0.7, seed=i)
        (found,) = engine.generate(text, replace(sampling, max_tokens=6), method="ar")
        pool.append(Case(text, sampling, 6, found.text))
    with running(num_slots=4, num_queued=8, max_connections=64) as server:
        served = Served(server.url, os.getpid(), tmp_path / "log")
        session = Session(served, pool, num_clients=10)
        session.sample()
        done = session.run("storm" if attacks else "calm", range(7, 47), 1, attacks)
        assert done.wrong == []
        assert (done.first, done.num_requests) == (7, 40)
        assert done.num_right + done.num_left == 40
        assert (done.num_left > 0) == bool(attacks)
        assert len(session.samples) >= 1
        bad = [Case(c.prompt, c.sampling, c.max_tokens, c.text + "?") for c in pool]
        other = Session(served, bad, num_clients=2).run("calm", range(4), 1, None)
        assert len([words for words in other.wrong if "not" in words]) == 4


def test_a_part_that_went_wrong_is_told_at_the_end(tmp_path: Path) -> None:
    lines = [line("storm", range(4)), line("storm", range(4, 8), session=1)]
    assert summary(lines)["wrong"] == []
    bad = Line(**{**vars(lines[0]), "wrong": ["said 'a', not 'b'"]})
    assert summary([bad, *lines])["wrong"] == ["said 'a', not 'b'"]


def test_memory_is_judged_by_the_longest_session() -> None:
    short = Line(**{**vars(line("storm", range(4))), "samples": [sample(100.0)] * 8})
    grown = [sample(100.0)] * 10 + [sample(200.0)] * 10
    long = Line(**{**vars(line("storm", range(4), session=1)), "samples": grown})
    assert growth_of_last_half(short.samples) == 0
    assert growth_of_last_half(grown[:15]) == 1.0
    assert growth_of_last_half(grown[:3]) is None
    flat = Line(**{**vars(long), "samples": [sample(100.0)] * 20})
    assert summary([short, flat])["wrong"] == []
    leaking = Line(**{**vars(long), "samples": grown[:15]})
    assert summary([short, leaking])["wrong"] == ["memory grew by 100.0% over the last half"]


def test_a_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "soak.jsonl"
    assert read(path) == []
    path.write_text(json.dumps(vars(line("calm", range(3)))) + "\n")
    assert read(path) == [line("calm", range(3))]


def test_counters_must_be_what_answers_say() -> None:
    def done(tokens: float, ended: float) -> Part:
        answer = {
            "usage": {"completion_tokens": 5, "prompt_tokens": 7}, "duodec": {"near_ties": 0},
            "metrics": {"speculative_decoding": None},
        }  # fmt: skip
        after = {
            "duodec:generation_tokens_total": tokens, "duodec:prompt_tokens_total": 7,
            'duodec:request_success_total{finished_reason="stop"}': ended,
        }  # fmt: skip
        return Part(answers=[answer], before={}, after=after)

    assert unexplained(done(5, 1), {}) == []
    assert "short" in unexplained(done(4, 1), {})[0]
    assert "more than answers say" in unexplained(done(6, 1), {})[0]
    assert "answers ended" in unexplained(done(5, 0), {})[0]
    assert unexplained(done(6, 2), {"x left": 1}) == []
    assert "who left had" in unexplained(done(9, 2), {"x left": 1})[0]

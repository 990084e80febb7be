"""Profiles and forecasts: what is measured is kept, used, and measured again where it must be."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fakes import FakeTokenizer

from duodec import profiling
from duodec.backends.forecast import HANDOVER_S, VirtualClock, VirtualDrafter, VirtualTarget
from duodec.backends.table import TableModel, TableTarget
from duodec.backends.testbeds import LatencyCurve, ReplayTarget
from duodec.cli.app import run
from duodec.core.protocols import DraftRequest
from duodec.core.sampling import Sampler, SamplingParams
from duodec.decoding.methods import METHODS, method
from duodec.decoding.session import Session
from duodec.drafting.growth import Tree
from duodec.drafting.inline import InlineDrafter
from duodec.drafting.plans import Chain
from duodec.engine import Engine
from duodec.profiling import Profile, key_of, place

MODEL = TableModel(num_vocab=64, seed=3)
DRAFT = replace(MODEL, noise=0.3, seconds=0.002)
TOKENIZER = FakeTokenizer(tuple(bytes([i]) for i in range(64)))


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path))
    monkeypatch.setattr(profiling, "CONTEXTS", (16,))
    monkeypatch.setattr(profiling, "WIDTHS", (0, 1, 7))
    monkeypatch.setattr(profiling, "_RUNS", 2)
    target = TableTarget(replace(MODEL, seconds=0.003))
    engine = Engine(target, TOKENIZER, 200, InlineDrafter(DRAFT.load()))
    return profiling.measure(engine, "a key", ("target", "draft"))


# --- profiles


def test_a_profile_holds_what_forwards_and_steps_take(profile: Profile) -> None:
    assert [f.width for f in profile.forwards] == [0, 1, 7]
    assert all(0.003 <= f.seconds < 0.05 for f in profile.forwards)
    assert all(f.beside_s and f.beside_s >= 0.003 for f in profile.forwards)
    assert [s.leaves for s in profile.steps] == [1, 2, 4, 8]
    assert all(0.002 <= s.seconds < 0.05 for s in profile.steps)
    assert profile.contention == pytest.approx(1.0, abs=0.5)
    costs = profile.costs(is_beside=True)
    assert 0.003 <= costs.forward_s(0) < 0.05
    assert 0.002 <= costs.step_s() < 0.05


def test_the_fewest_threads_that_are_fast_enough_are_taken(
    profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {1: 0.008, 2: 0.0041, 4: 0.004, 6: 0.006}

    @contextmanager
    def start(count: int) -> Iterator[InlineDrafter]:
        yield InlineDrafter(TableModel(noise=0.2, seconds=seconds[count]).load())

    assert profiling.thread_counts(6) == [1, 2, 4, 6]
    assert profiling.thread_counts(1) == [1]
    swept = profiling.sweep_threads(start, profiling.thread_counts(6), 32)
    assert [t.num_threads for t in swept] == [1, 2, 4, 6]
    assert replace(profile, threads=swept).draft_threads in (2, 4)
    assert profile.draft_threads is None
    replace(profile, threads=swept).write()
    kept = Profile.read("a key")
    assert kept is not None
    assert kept.threads == swept


def test_a_profile_is_kept_and_found_again(profile: Profile) -> None:
    path = profile.write()
    assert Profile.read("a key") == profile
    assert Profile.read("another key") is None
    record = json.loads(path.read_text())
    for broken in (
        "no json",
        "[]",
        json.dumps({**record, "version": 99}),
        json.dumps({**record, "key": "of another machine"}),
        json.dumps({**record, "forwards": [{"width": 1}]}),
        json.dumps({name: value for name, value in record.items() if name != "steps"}),
    ):
        path.write_text(broken)
        assert Profile.read("a key") is None
    profile.write()  # in the place of the broken one
    assert Profile.read("a key") == profile


def test_a_key_names_machine_files_and_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = tmp_path / "t.gguf", tmp_path / "d.gguf"
    target.write_bytes(b"x" * 10)
    draft.write_bytes(b"y" * 5)
    keys = {key_of(target, draft), key_of(target, None), key_of(target, draft, (2,))}
    draft.write_bytes(b"y" * 6)
    keys.add(key_of(target, draft))
    monkeypatch.setattr(profiling, "cpu_key", lambda: "another processor")
    keys.add(key_of(target, draft))
    assert len(keys) == 5
    assert place("k").name == "k.json"


def test_one_command_measures_the_default_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from duodec.models import cache_folder

    for name in ("aliases", "models"):  # what is fetched already is found
        if (cache_folder() / name).exists():
            (tmp_path / name).symlink_to(cache_folder() / name)
    monkeypatch.setattr(profiling, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(profiling, "CONTEXTS", (16,))
    monkeypatch.setattr(profiling, "WIDTHS", (0, 7))
    monkeypatch.setattr(profiling, "_RUNS", 2)
    plot = tmp_path / "curves.svg"
    assert run(["profile", "--json", "--plot", str(plot)]) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert [f["width"] for f in record["forwards"]] == [0, 7]
    assert record["draft"] == "smollm2-draft"
    assert "<svg" in plot.read_text()
    assert "kept in" in err
    assert Profile.read(record["key"]) is not None
    assert run(["profile", "--plot", str(tmp_path / "no" / "where.svg")]) == 2
    assert "no such folder" in capsys.readouterr().err


# --- forecasts


def test_a_virtual_clock_passes_when_it_is_told_to() -> None:
    clock = VirtualClock()
    start = clock()
    clock.advance(5.0)
    assert 5.0 <= clock() - start < 5.1
    sum(range(2_000_000))
    clock.skip()
    assert clock() - start < 5.02


def test_a_virtual_drafter_has_made_what_fits_into_the_time() -> None:
    clock = VirtualClock()
    drafter = VirtualDrafter(DRAFT.load(), clock)
    text = np.array([1, 2, 3], dtype=np.int32)
    drafter.submit(DraftRequest(0, text, Chain(6), Sampler()))
    assert len(drafter.poll(0).draft) == 0
    clock.advance(HANDOVER_S + 2.5 * 0.0025)
    assert 1 <= len(drafter.poll(0).draft) <= 3
    assert len(drafter.poll(0, wait_s=1.0).draft) == 6
    start = clock()
    drafter.poll(0, wait_s=1.0)
    assert clock() - start < 0.5  # nothing is owed any more


def test_a_virtual_wait_ends_with_the_next_candidates() -> None:
    clock = VirtualClock()
    drafter = VirtualDrafter(DRAFT.load(), clock)
    text = np.array([1, 2, 3], dtype=np.int32)
    drafter.submit(DraftRequest(0, text, Tree(), Sampler()))
    start = clock()
    first = drafter.poll(0, wait_s=1.0, beyond=0).tree
    assert first is not None
    assert 0.002 < clock() - start < 0.02
    num = len(first)
    again = drafter.poll(0, wait_s=1.0, beyond=num).tree
    assert again is not None
    assert len(again) > num
    drafter.cancel(0)
    clock.advance(1.0)
    assert len(drafter.poll(0).tree or ()) == len(again)


def test_a_faster_drafter_takes_less_time_and_one_that_takes_none_has_all_at_once() -> None:
    made = []
    for speed in (1.0, 10.0, math.inf):
        clock = VirtualClock()
        drafter = VirtualDrafter(DRAFT.load(), clock, speed)
        drafter.submit(DraftRequest(0, np.array([1, 2, 3], dtype=np.int32), Chain(40), Sampler()))
        clock.advance(HANDOVER_S + 3 * 0.0025)
        made.append(len(drafter.poll(0).draft))
    assert made[0] <= 4 < made[1] <= 40
    assert made[2] == 40


def test_a_virtual_drafter_tells_what_its_steps_took() -> None:
    clock = VirtualClock()
    drafter = VirtualDrafter(DRAFT.load(), clock)
    text = np.array([1, 2, 3], dtype=np.int32)
    drafter.submit(DraftRequest(0, text, Tree(num_leaves=2), Sampler()))
    clock.advance(0.05)
    fresh = drafter.poll(0)
    assert fresh.root_s >= 0.002  # nothing was known of this text
    assert fresh.step_s is not None
    assert 0.002 <= fresh.step_s < 0.02
    assert fresh.step_leaves == pytest.approx(2.0, abs=0.5)
    assert fresh.busy_s == pytest.approx(fresh.draft_s)
    tree = fresh.tree
    assert tree is not None
    text = np.append(text, np.int32(tree.tokens[0]))
    drafter.submit(DraftRequest(0, text, Tree(num_leaves=2), Sampler()))
    clock.advance(0.05)
    assert drafter.poll(0).root_s == 0.0  # it was known from the last tree
    assert drafter.poll(0).busy_s > fresh.busy_s


@pytest.mark.parametrize("name", [n for n in METHODS if not METHODS[n]().reads_off_path])
def test_a_forecast_tells_the_recorded_text(name: str) -> None:
    prompt = [3, 1, 4, 1, 5]
    real = Session(TableTarget(MODEL), prompt, 45, sampler=Sampler(SamplingParams()))
    list(method("ar").rounds(real))
    clock = VirtualClock()
    target = VirtualTarget(real.text.copy(), LatencyCurve(0.02), clock)
    forecast = Session(
        target,
        prompt,
        45,
        VirtualDrafter(DRAFT.load(), clock),
        sampler=Sampler(SamplingParams()),
        clock=clock,
    )
    rounds = list(method(name).rounds(forecast))
    assert np.array_equal(forecast.text, real.text)
    assert all(r.end_s - r.start_s == pytest.approx(0.02, abs=0.01) for r in rounds)
    replayed = ReplayTarget(real.text.copy(), LatencyCurve(0.0))
    assert target.curve.seconds(3, 1) == 0.02
    assert replayed.recording[0] == prompt[0]


def test_one_command_forecasts(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "--target-ms", "20", "--methods", "ar,sps:2,stream", "--tasks", "qa"]
    assert run([*arguments, "--limit", "1", "-n", "12", "--quiet", "--draft-speed", "4"]) == 0
    out = capsys.readouterr().out
    assert "stream" in out
    assert "1/4 of that" in " ".join(out.split())
    assert run([*arguments, "--draft-speed", "0"]) == 2
    assert "draft-speed is 0" in capsys.readouterr().err
    assert "A forecast for a target of 20 ms" in out
    assert run(["plan", "--target-ms", "20", "--methods", "ar,recycling"]) == 2
    assert "recycling cannot be forecast" in capsys.readouterr().err
    assert run(["plan", "--target-ms", "-1"]) == 2

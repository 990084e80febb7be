"""Profiles: what is measured is kept, used, and measured again where it must be."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.decoding import FakeClock, FakeTokenizer

from duodec.cli.app import run
from duodec.core.drafters import DraftRequest
from duodec.loading import profile as profiling
from duodec.loading import resolve
from duodec.loading.load import Loaded
from duodec.loading.profile import Profile
from duodec.loading.resolve import key_of
from duodec.machine import busy
from duodec.machine.files import cache_folder, profile_place
from duodec.testing import InlineDrafter, TableModel, TableTarget, drafters, tables

MODEL = TableModel(num_vocab=64, seed=3)
DRAFT = replace(MODEL, noise=0.3, seconds=0.002)
TOKENIZER = FakeTokenizer(tuple(bytes([i]) for i in range(64)))


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Profile:
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path))
    monkeypatch.setattr(profiling, "CONTEXTS", (16,))
    monkeypatch.setattr(profiling, "WIDTHS", (0, 1, 7))
    monkeypatch.setattr(profiling, "RUNS", 2)
    clock = FakeClock()  # no other program's work is in the figures
    monkeypatch.setattr(tables, "sleep", clock.advance)
    for module in (profiling, drafters):
        monkeypatch.setattr(module, "perf_counter", clock)
    target = TableTarget(replace(MODEL, seconds=0.003))
    pair = Loaded(target, TOKENIZER, 200, InlineDrafter(DRAFT.load()))
    return profiling.measure(pair, "a key", ("target", "draft"))


# --- profiles


def test_a_profile_holds_what_forwards_and_steps_take(profile: Profile) -> None:
    assert [f.width for f in profile.forwards] == [0, 1, 7]
    assert [f.seconds for f in profile.forwards] == pytest.approx([0.003] * 3)
    assert [f.beside_s for f in profile.forwards] == pytest.approx([0.003] * 3)
    assert [s.leaves for s in profile.steps] == [1, 2, 4, 8]
    assert [s.seconds for s in profile.steps] == pytest.approx([0.002] * 4)
    assert profile.contention == pytest.approx(1.0)
    costs = profile.costs(is_drafting=True)
    assert costs.forward_s(0) == pytest.approx(0.003)
    assert costs.step_s() == pytest.approx(0.002)


@pytest.mark.slow
def test_the_texts_are_of_frequent_tokens_whose_rows_a_short_head_has() -> None:
    asked: list[DraftRequest] = []

    class Recording(InlineDrafter):
        def submit(self, request: DraftRequest) -> None:
            asked.append(request)
            super().submit(request)

    pair = Loaded(TableTarget(MODEL), TOKENIZER, 200, Recording(DRAFT.load()))
    profiling.measure(pair, "a key", ("target", "draft"), contexts=(16, 40))
    assert {len(request.text) for request in asked} == {16, 40}
    first = [request.text[:-1] for request in asked]  # the last token tells passes apart
    assert all(text.max() < MODEL.num_vocab // 8 for text in first)


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
    assert replace(profile, threads=swept).draft_threads == 2, "4 are hardly faster"
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
    monkeypatch.setattr(resolve, "cpu_key", lambda: "another processor")
    keys.add(key_of(target, draft))
    assert len(keys) == 5
    assert profile_place("k").name == "k.json"


@pytest.mark.slow
def test_one_command_measures_the_default_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("aliases", "models"):  # what is fetched already is found
        if (cache_folder() / name).exists():
            (tmp_path / name).symlink_to(cache_folder() / name)
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path))
    monkeypatch.setattr(profiling, "CONTEXTS", (16,))
    monkeypatch.setattr(profiling, "WIDTHS", (0, 7))
    monkeypatch.setattr(profiling, "RUNS", 2)
    # on a busy machine too: what is kept then is another test's
    monkeypatch.setattr(profiling, "PLAUSIBLE", 1e3)
    for module in (profiling, busy):
        monkeypatch.setattr(module, "NOTABLE", 1e3)
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

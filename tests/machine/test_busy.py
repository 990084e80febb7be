"""Busy machines: threads yield, and disturbed measurements are neither kept nor compared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fakes.decoding import Letters

from duodec import llm
from duodec.cli.app import run
from duodec.cli.commands import profile
from duodec.errors import BadOption
from duodec.llm import LLM
from duodec.loading import config
from duodec.loading import profile as profiling
from duodec.loading.config import EngineConfig
from duodec.loading.profile import Forward, Profile, Step
from duodec.machine import busy
from duodec.machine.busy import SpareCores
from duodec.testing import TableModel, TableTarget


@dataclass
class Machine:
    """Cores, on which our threads and other programs compute."""

    num_cores: int
    others: float = 0.0  # cores that they use
    now_s: float = 0.0
    busy_s: float = 0.0
    own_s: float = 0.0

    def spare(self) -> SpareCores:
        return SpareCores(
            self.num_cores,
            clock=lambda: self.now_s, busy_s=lambda: self.busy_s, own_s=lambda: self.own_s,
        )  # fmt: skip

    def decode(self, spare: SpareCores, seconds: float) -> int:
        """Forward passes one after the other, for so long; the threads at the end."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            wanted = spare()
            share = min(1.0, self.num_cores / (wanted + self.others))  # the system is fair
            own, taken = wanted * share, self.others * share
            self.now_s, self.own_s = self.now_s + 0.05, self.own_s + 0.05 * own
            self.busy_s += 0.05 * (own + taken)
        return spare()

    def pause(self, seconds: float, busy: float) -> None:
        self.now_s, self.busy_s = self.now_s + seconds, self.busy_s + busy * seconds


@pytest.mark.parametrize(("num_cores", "others", "threads"), [(2, 1, 1), (8, 1, 7), (8, 5, 3)])
def test_threads_give_way_within_a_second_and_come_back(
    num_cores: int, others: float, threads: int
) -> None:
    machine = Machine(num_cores)
    spare = machine.spare()
    assert machine.decode(spare, 1.0) == num_cores
    machine.others = others
    machine.decode(spare, 2.0 if others > 1 else 1.0)
    assert machine.decode(spare, 0.1) == threads
    assert machine.decode(spare, 5.0) == threads, "and stay while the program runs"
    machine.others = 0.0
    assert machine.decode(spare, 1.0) == num_cores


def test_one_thread_is_always_left() -> None:
    machine = Machine(2, others=2)
    assert machine.decode(machine.spare(), 3.0) == 1


def test_what_little_programs_take_changes_nothing() -> None:
    machine = Machine(4, others=0.1)
    assert machine.decode(machine.spare(), 3.0) == 4


def test_what_ran_in_a_pause_changes_nothing() -> None:
    machine = Machine(2)
    spare = machine.spare()
    machine.decode(spare, 1.0)
    machine.pause(3600, busy=2.0)
    assert spare() == 2


def test_what_ran_while_the_models_loaded_counts_at_once() -> None:
    machine = Machine(2)
    spare = machine.spare()
    machine.pause(1.0, busy=1.0)
    assert spare() == 1


def test_processes_of_our_own_are_no_other_programs() -> None:
    """A drafter that starts after the first look."""
    own_s = busy._OwnTime()
    before_s = own_s()
    code = "import time\nwhile time.process_time() < 0.4: pass\nprint('done', flush=True)\ninput()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as child:  # type: ignore[call-overload]
        assert child.stdout.readline().strip() == b"done"
        assert own_s() - before_s >= 0.3
        child.communicate(b"\n")


def test_other_programs_are_seen_by_the_system_too() -> None:
    spare = SpareCores(2)
    assert 1 <= spare() <= 2


# --- options


def test_more_threads_than_cores_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "available_cores", lambda: (0, 1))
    EngineConfig(threads=2, draft_threads=2)
    for name in ("threads", "draft_threads"):
        with pytest.raises(BadOption, match=r"is 99 and this process may use 2 cores.*use 2 or"):
            EngineConfig(**{name: 99})  # type: ignore[arg-type]


def test_the_command_line_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "hi", "-t", "999"]) == 2
    err = capsys.readouterr().err
    assert "threads is 999" in err
    assert err.count("\n") == 1


# --- profiles

SOUND = Profile(
    "key", "t", "d",
    tuple(Forward(64, width, 0.010 + width * 0.004, 0.012 + width * 0.004) for width in (0, 3, 7)),
    tuple(Step(64, leaves, 0.004 + leaves * 0.001) for leaves in (1, 4, 8)),
)  # fmt: skip


def test_a_profile_of_a_busy_machine_has_a_flaw() -> None:
    assert SOUND.flaw is None
    wild = replace(SOUND, forwards=(Forward(64, 0, 0.410, None), Forward(64, 3, 0.078, None)))
    assert wild.flaw == ("a forward pass of 0 draft tokens after 64 took 410 ms, one of 3 78 ms")
    beside = replace(SOUND, forwards=(Forward(64, 0, 0.01, 0.5), Forward(64, 3, 0.02, 0.03)))
    assert beside.flaw
    steps = replace(SOUND, steps=(Step(64, 1, 0.2), Step(64, 8, 0.03)))
    assert steps.flaw
    noisy = replace(SOUND, forwards=(Forward(64, 0, 0.012, None), Forward(64, 1, 0.010, None)))
    assert noisy.flaw is None


def test_a_flawed_profile_that_was_kept_is_not_used(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path))
    SOUND.write()
    assert Profile.read("key") == SOUND
    replace(SOUND, forwards=(Forward(64, 0, 0.410, None), Forward(64, 3, 0.078, None))).write()
    assert Profile.read("key") is None


@dataclass(frozen=True)
class Load:
    num_cores: float


WILD = (0.410, 0.078)  # seconds of no draft tokens, and of three: that cannot be


def curve(context: int, seconds: tuple[float, float] = (0.01, 0.02)) -> Profile:
    """What one measurement of a context found."""
    pairs = zip((0, 3), seconds, strict=True)
    forwards = tuple(Forward(context, width, seconds_, None) for width, seconds_ in pairs)
    return Profile("key", "t", None, forwards, ())


def measure_soundly(
    monkeypatch: pytest.MonkeyPatch, measured: list[Profile], busy_cores: list[float]
) -> tuple[Profile, Profile, str | None]:
    """Measure, with these results and this load of other programs, one of each a measurement."""
    results, loads = iter(measured), iter(busy_cores)
    monkeypatch.setattr(profiling, "measure", lambda *_: next(results))
    monkeypatch.setattr(profiling, "OtherPrograms", lambda: Load(next(loads)))
    return profiling.measure_soundly(None, "key", ("t", None))  # type: ignore[arg-type]


def test_what_cannot_be_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = curve(64), curve(512)
    both = short.with_curves(long)
    assert measure_soundly(monkeypatch, [curve(64, WILD), short, long], [0] * 3) == (
        both, both, None,
    )  # fmt: skip
    found, held, flaw = measure_soundly(monkeypatch, [short, *[curve(512, WILD)] * 2], [0] * 3)
    assert held == short
    assert found == short.with_curves(curve(512, WILD))
    assert flaw == curve(512, WILD).flaw


def test_a_context_that_other_programs_disturbed_is_measured_again_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short, long = curve(64), curve(512)
    assert measure_soundly(monkeypatch, [short, long, long], [0, 1.2, 0])[1:] == (
        short.with_curves(long), None,
    )  # fmt: skip
    found, held, flaw = measure_soundly(monkeypatch, [short, long, long], [0, 1.2, 1.3])
    assert held == short, "it took a minute, and is right"
    assert found == short.with_curves(long)
    assert flaw == "other programs kept 1.3 of these cores busy"


@pytest.fixture
def profiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """`duodec profile` of a table on a quiet machine; the folder of what is kept."""
    engine = LLM(TableTarget(TableModel()), Letters(), 400)
    monkeypatch.setattr(llm, "load", lambda pair, on_warning: engine)
    monkeypatch.setattr(profile, "wait_until_idle", lambda wait: None)
    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path))
    return tmp_path / "profiles"


def test_a_flawed_profile_is_shown_and_not_kept(
    profiled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nothing = replace(SOUND, forwards=(), steps=())
    monkeypatch.setattr(profiling, "measure_soundly", lambda *_: (SOUND, nothing, "it cannot be"))
    assert run(["profile", "-m", "smollm2-draft", "--draft", "none"]) == 3
    shown = capsys.readouterr()
    assert "not kept: it cannot be; measure again on a quiet machine" in shown.err
    assert "draft tokens" in shown.out
    assert "plain decoding" not in shown.out, "no estimate is made of it"
    assert not profiled.exists()


def test_what_held_of_a_flawed_profile_is_kept(
    profiled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wild = (Forward(512, 0, 0.410, None), Forward(512, 3, 0.078, None))
    part = replace(SOUND, forwards=(*SOUND.forwards, *wild))
    monkeypatch.setattr(profiling, "measure_soundly", lambda *_: (part, SOUND, part.flaw))
    assert run(["profile", "-m", "smollm2-draft", "--draft", "none"]) == 0
    assert "the other contexts are kept: a forward pass of 0 draft" in capsys.readouterr().err
    assert Profile.read("key") == SOUND


def test_a_context_too_short_for_a_profile_is_told(
    profiled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = LLM(TableTarget(TableModel()), Letters(), 100)
    monkeypatch.setattr(llm, "load", lambda pair, on_warning: engine)
    assert run(["profile", "-m", "smollm2-draft", "--draft", "none", "-c", "100"]) == 2
    assert "context is 100, and a profile needs 128 tokens" in capsys.readouterr().err


@pytest.mark.slow
def test_nothing_is_measured_while_others_use_the_cores(
    profiled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(profile, "wait_until_idle", lambda wait: f"cc1 is busy after {wait:g} s")
    monkeypatch.setattr(profiling, "measure_soundly", lambda *_: pytest.fail("it measured"))
    assert run(["profile", "--wait", "9"]) == 3
    shown = capsys.readouterr()
    assert "cc1 is busy after 9 s; stop them, or let --wait 120 wait" in shown.err
    assert not shown.out


def test_who_uses_the_cores_is_named_and_waited_for() -> None:
    """By programs of another session, which are none of ours."""
    code = "import time\nend = time.time() + 60\nwhile time.time() < end: pass"
    script = (
        "import subprocess, sys; "
        "print(subprocess.Popen([sys.executable, '-c', sys.argv[1]], stdout=sys.stderr).pid)"
    )
    started = subprocess.run(
        [sys.executable, "-c", script, code], stdout=subprocess.PIPE, text=True, check=True
    )
    pid = int(started.stdout)
    try:
        words = busy.wait_until_idle(0.0)
        assert words
        assert "cores busy" in words
    finally:
        os.kill(pid, signal.SIGKILL)


def test_waiting_ends_when_the_cores_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([1.5, 0.9, 0.1])
    monkeypatch.setattr(busy.OtherPrograms, "num_cores", property(lambda _: next(looks)))
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    assert busy.wait_until_idle(60.0, sleep=sleep, clock=lambda: now[0]) is None
    looks = iter([1.5, 1.5, 1.5])
    words = busy.wait_until_idle(1.0, sleep=sleep, clock=lambda: now[0])
    assert words
    assert words.startswith("other programs keep 1.5 cores busy")


def test_the_doctor_estimates_nothing_on_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(busy, "wait_until_idle", lambda wait: "other programs keep 1.2 cores busy")
    assert run(["doctor", "-m", "smollm2-draft", "--draft", "none", "-c", "256"]) == 0
    out = capsys.readouterr().out
    assert "other programs keep 1.2 cores busy; no speed is estimated" in out
    assert "--wait 120" in out
    assert "tok/s" not in out


def test_a_meter_tells_what_others_did_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    now, load = [0.0], [1.5]
    monkeypatch.setattr(busy, "perf_counter", lambda: now[0])
    monkeypatch.setattr(busy, "OtherPrograms", lambda: type("Others", (), {"num_cores": load[0]})())
    meter = busy.LoadMeter()
    now[0] = 5.0
    assert meter.look() == 1.5
    load[0] = 0.2  # of the window that begins with the next look
    now[0] = 5.1
    assert meter.look() == 1.5  # just looked
    now[0] = 6.0
    assert meter.look() == 1.5
    now[0] = 7.0
    assert meter.look() == 0.2

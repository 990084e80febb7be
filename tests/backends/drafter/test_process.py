"""A drafter in its own process drafts what its in-process twin drafts, and no fault, delay or
death of it changes a text, stops it, or leaves anything behind."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

import numpy as np
import psutil
import pytest
from fakes.decoding import FixedBudget
from fakes.draft_processes import (
    LONG_S,
    PROMPT,
    TABLE,
    Start,
    drafts_again,
    finished,
    kill,
    request,
    session_of,
    text_of,
    until,
)
from fakes.masks import Masked

from duodec.backends.drafter import supervision
from duodec.backends.drafter.channel import Channel, Frame, Kind
from duodec.backends.drafter.process import ProcessDrafter, Recipe
from duodec.core.draft import Draft
from duodec.core.drafters import Drafted, DraftModel, RowQuery
from duodec.core.rows import Row
from duodec.core.sampling.sampler import Sampler, SamplingParams, Tokens
from duodec.drafting.growth import Tree
from duodec.drafting.plans import Chain, SampledChain, Sequences
from duodec.errors import BackendUnavailable, BadOption, ModelUnreadable
from duodec.testing import InlineDrafter, TableDraftModel, TableModel

GPUS = (
    "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES",
    "GGML_VK_VISIBLE_DEVICES",
)  # fmt: skip

# --- recipes: the child imports them from this module ---


@dataclass(frozen=True)
class DiesLoading:
    def load(self) -> DraftModel:
        os._exit(3)


@dataclass(frozen=True)
class Unreadable:
    def load(self) -> DraftModel:
        raise ModelUnreadable("draft.gguf is a picture; pass a model")


@dataclass(frozen=True)
class Broken:
    def load(self) -> DraftModel:
        raise RuntimeError("no such kernel")


@dataclass(frozen=True)
class FromFile:
    path: str

    def load(self) -> DraftModel:
        if not Path(self.path).exists():
            raise ModelUnreadable(f"{self.path} is gone; pass a model")
        return TABLE.load()


@dataclass(frozen=True)
class Tells:
    """Fails with what it sees of its process, and prints."""

    def load(self) -> DraftModel:
        print("on standard output")
        print("on standard error", file=sys.stderr)
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", *GPUS)
        raise ModelUnreadable(f"{cores} {[os.environ.get(name) for name in names]}")


@dataclass
class DyingModel(DraftModel):
    """Ends its process in the middle of every so-manyth forward."""

    table: TableDraftModel
    num_left: int

    def rows(self, query: RowQuery) -> list[Row]:
        self.num_left -= 1
        if not self.num_left:
            os._exit(7)
        return self.table.rows(query)


@dataclass(frozen=True)
class Dying:
    every: int

    def load(self) -> DraftModel:
        return DyingModel(TABLE.load(), self.every)


@dataclass
class ForgetfulModel(DraftModel):
    """Drafts the number of times that it forgot a slot's text."""

    num_forgotten: Counter[int]

    def rows(self, query: RowQuery) -> list[Row]:
        row = np.zeros(TABLE.num_vocab, dtype=np.float32)
        row[self.num_forgotten[query.slot]] = 9.0
        return [row for _ in query.rows]

    def forget(self, slot: int) -> None:
        self.num_forgotten[slot] += 1


@dataclass(frozen=True)
class Forgetful:
    def load(self) -> DraftModel:
        return ForgetfulModel(Counter())


@dataclass
class FailingModel(DraftModel):
    """Raises after texts that end with token 0."""

    table: TableDraftModel

    def rows(self, query: RowQuery) -> list[Row]:
        if query.text[-1] == 0:
            raise ValueError("logits are not finite")
        return self.table.rows(query)


@dataclass(frozen=True)
class Failing:
    def load(self) -> DraftModel:
        return FailingModel(TABLE.load())


def same(a: Draft, b: Draft) -> bool:
    distributions = [
        np.array_equal(p.tokens, q.tokens) and np.array_equal(p.probs, q.probs)
        for p, q in zip(a.distributions or (), b.distributions or (), strict=True)
    ]
    return (a.tokens, a.parents, a.distributions is None) == (
        b.tokens,
        b.parents,
        b.distributions is None,
    ) and all(distributions)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE  # its reaper is not ours
    except psutil.NoSuchProcess:
        return True


def test_it_drafts_what_its_twin_drafts(start: Start, warnings: list[str]) -> None:
    drafter, twin = start(TABLE), InlineDrafter(TABLE.load())
    dice = np.random.default_rng(5)
    texts: dict[int, Tokens] = {}
    for i in range(150):
        slot = int(dice.integers(3))
        old = texts.get(slot, np.zeros(0, dtype=np.int32))
        kept = old[: dice.integers(len(old) // 2, len(old) + 1)]  # truncated, then extended
        texts[slot] = np.concatenate([kept, dice.integers(0, 32, dice.integers(1, 90))])
        plan = (Chain, Sequences, SampledChain)[i % 3](int(dice.integers(0, 9)))
        sampler = Sampler(SamplingParams(temperature=float(i % 2), seed=i, top_k=i % 5))
        asked = request(texts[slot], plan, slot, sampler)
        assert same(finished(drafter, asked).draft, finished(twin, asked).draft), asked
    assert not warnings


def test_answers_larger_than_a_socket_arrive_whole(start: Start) -> None:
    table = TableModel(num_vocab=100_000)
    drafter, twin = start(table), InlineDrafter(table.load())
    for seed in range(2):
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed))
        asked = request(PROMPT, SampledChain(3), sampler=sampler)  # 1.6 MB of distribution a token
        assert same(finished(drafter, asked).draft, finished(twin, asked).draft)


def test_half_a_frame_is_never_seen_and_nonsense_closes() -> None:
    for sent, is_nonsense in ((b"\x05", False), (b"\xff" * 40, True)):
        ours, theirs = socket.socketpair()
        channel, peer = Channel(ours), Channel(theirs)
        peer.send(Frame(Kind.NODES, 1, 2, 3, b"whole"))
        theirs.send(sent)
        assert channel.receive() == [Frame(Kind.NODES, 1, 2, 3, b"whole")]
        assert channel.is_closed is is_nonsense
        peer.close()
        assert channel.receive() == []
        assert channel.is_closed
        channel.close()


def test_slots_take_turns(start: Start) -> None:
    drafter = start(TableModel(seconds=0.02))
    drafter.submit(request(PROMPT, Chain(500), slot=1))
    drafter.submit(request(PROMPT, Chain(500), slot=2))
    until(lambda: len(drafter.poll(2).draft) >= 5)
    assert 3 <= len(drafter.poll(1).draft) <= 20
    drafter.cancel(1)
    drafter.cancel(2)


def test_a_slot_that_gets_another_owner_is_forgotten(start: Start) -> None:
    drafter = start(Forgetful())
    owners = ["", "alice", "alice", "bob", "alice"]
    told = []
    for slot in (0, 1):
        for owner in owners:
            asked = replace(request(PROMPT, Chain(1), slot), owner=owner)
            told.append(finished(drafter, asked).draft.tokens)
    assert told == [(0,), (1,), (1,), (2,), (3,)] * 2


@pytest.mark.parametrize("stop", ["supersede", "cancel"])
def test_work_stops_within_a_step(start: Start, stop: str, warnings: list[str]) -> None:
    drafter = start(TableModel(seconds=0.05))
    drafter.submit(request(PROMPT, Chain(600)))  # half a minute
    until(lambda: len(drafter.poll(0).draft) >= 2)
    assert not drafter.poll(0).is_complete
    if stop == "cancel":
        drafter.cancel(0)
        assert drafter.poll(0) == Drafted()
    before = perf_counter()
    assert len(finished(drafter, request([7, 7], Chain(1))).draft) == 1
    assert perf_counter() - before < 5
    assert not warnings


def test_a_failed_request_is_told_once_and_the_next_is_drafted(
    start: Start, warnings: list[str]
) -> None:
    drafter = start(Failing())
    for _ in range(3):
        assert finished(drafter, request([1, 0], Chain(3))).draft == Draft()
        assert len(finished(drafter, request([1, 2], Chain(3))).draft) == 3
    assert drafter.restarts == 0
    assert len(warnings) == 1
    assert "logits are not finite" in warnings[0]


@pytest.mark.slow
def test_the_error_of_loading_is_raised_where_loading_is_waited_for(
    start: Start, warnings: list[str]
) -> None:
    for recipe, error, message in (
        (Unreadable(), ModelUnreadable, r"^draft\.gguf is a picture; pass a model$"),
        (Broken(), BackendUnavailable, "RuntimeError: no such kernel"),
        (DiesLoading(), BackendUnavailable, "exit status 3"),
    ):
        with pytest.raises(error, match=message):
            start(recipe)
    assert not warnings  # it was raised
    slow = start(TABLE, wait=False)
    with pytest.raises(BackendUnavailable, match="not ready after 0 s"):
        slow.wait_ready(0)


@pytest.mark.parametrize("recipe", [DiesLoading(), Unreadable()])
def test_a_text_goes_on_without_a_drafter_that_cannot_start(
    start: Start, recipe: Recipe, warnings: list[str]
) -> None:
    expected = text_of("ar", session_of(None))
    drafter = start(recipe, wait=False)
    assert text_of("sps", session_of(drafter)) == expected
    until(lambda: drafter.is_ready or warnings)
    assert text_of("duo", session_of(drafter)) == expected
    assert 1 <= len(warnings) <= 2


def test_cores_threads_and_environment_are_set_before_it_loads(
    capfd: pytest.CaptureFixture[str],
    warnings: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in GPUS:  # as for the target, which has one
        monkeypatch.setenv(name, "0")
    cores = (max(os.sched_getaffinity(0)),) if hasattr(os, "sched_getaffinity") else None
    env = {"OMP_WAIT_POLICY": "passive", "MKL_NUM_THREADS": "2", "DUODEC_DEBUG": ""}
    told = ["1", "2", "passive", "", "-1", "", ""]  # no GPU
    expected = f"{None if cores is None else list(cores)} {told}"
    for is_debug in ("", "1"):
        with (
            ProcessDrafter(
                Tells(),
                cores=cores,
                num_threads=1,
                env={**env, "DUODEC_DEBUG": is_debug},
                on_warning=warnings.append,
            ) as drafter,
            pytest.raises(ModelUnreadable) as raised,
        ):
            drafter.wait_ready()
        assert str(raised.value) == expected
        out, err = capfd.readouterr()
        assert not out
        assert ("on standard error" in err) is bool(is_debug)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity here")
def test_cores_that_are_not_there_are_named(warnings: list[str]) -> None:
    with (
        ProcessDrafter(TABLE, cores=(1000,), on_warning=warnings.append) as drafter,
        pytest.raises(BadOption, match="cores 1000"),
    ):
        drafter.wait_ready()


def test_files_in_the_working_directory_are_no_libraries(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("random", "secrets", "struct", "numpy", "duodec"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not me')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert drafts_again(start(TABLE))


@pytest.mark.parametrize("name", ["sps", "duo", "stream"])
def test_killed_in_the_middle_of_a_draft(start: Start, name: str, warnings: list[str]) -> None:
    drafter = start(TableModel(noise=0.3, seconds=0.002))
    killed = text_of(name, session_of(drafter), lambda i: kill(drafter) if i == 4 else None)
    assert killed == text_of("ar", session_of(None))
    until(lambda: drafter.is_ready and drafter.restarts == 1)
    assert drafts_again(drafter)
    assert (drafter.restarts, len(warnings)) == (1, 1)
    assert "died (signal 9); going on without drafts until a restart works" in warnings[0]


@pytest.mark.slow
def test_a_model_that_vanishes_is_told_and_found_again(
    start: Start, tmp_path: Path, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "BACKOFF_S", 0.1)
    path = tmp_path / "draft.gguf"
    path.touch()
    drafter = start(FromFile(str(path)))
    assert drafts_again(drafter)
    path.unlink()
    kill(drafter)
    assert text_of("sps", session_of(drafter)) == text_of("ar", session_of(None))
    until(lambda: drafter.is_ready or drafter.restarts >= 3)
    assert not drafter.is_ready
    assert len(warnings) == 1  # one incident, one line
    assert "died (signal 9)" in warnings[0]
    path.touch()
    until(lambda: drafter.is_ready)
    assert drafts_again(drafter)
    assert len(warnings) == 1


@pytest.mark.parametrize("fault", ["instant", "slow", "dying", "killed"])
@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 0.9])
def test_timing_must_not_change_text(start: Start, fault: str, temperature: float) -> None:
    recipe = {"slow": TableModel(noise=0.3, seconds=0.003), "dying": Dying(25)}.get(fault, TABLE)
    expected = text_of("ar", session_of(None, temperature, 32))
    drafter = start(recipe)
    for name in ("sps", "pearl", "duo", "stream", "auto"):
        session = session_of(drafter, temperature, 32)
        if fault == "instant" and name != "auto":  # which may find that it does not pay here
            session.costs = FixedBudget(6)

        def strike(i: int, slot: int = session.slot) -> None:
            if fault == "killed" and i % 7 == 3:
                kill(drafter)
            if fault == "instant":  # however busy the machine is
                drafter.poll(slot, LONG_S, beyond=3)

        assert text_of(name, session, strike) == expected
        if fault == "instant" and name != "auto":
            assert session.num_rounds < 32, "some drafts were used"
    if fault == "dying":
        assert drafter.restarts > 0


def test_dying_in_a_chain_of_mask_tokens_changes_no_text(start: Start) -> None:
    drafter = start(Masked(TABLE, dies_at=1))
    drafter.submit(request(PROMPT, Tree(), slot=7))  # nothing else can end it

    def has_died() -> bool:
        drafter.poll(7)
        return drafter.restarts > 0

    until(has_died)
    for temperature in (0.0, 0.9):
        expected = text_of("ar", session_of(None, temperature, 32))
        for name in ("stream", "auto"):
            assert text_of(name, session_of(drafter, temperature, 32)) == expected


def test_a_send_to_a_stopped_process_never_blocks(start: Start) -> None:
    drafter, twin = start(TABLE), InlineDrafter(TABLE.load())
    text = np.random.default_rng(2).integers(0, 32, 2_000_000).astype(np.int32)
    kill(drafter, signal.SIGSTOP)
    for i in range(3):
        before = perf_counter()
        drafter.submit(request(text[i:], Chain(3)))
        drafter.poll(0)
        assert perf_counter() - before < 10.0
    kill(drafter, signal.SIGCONT)
    # what was half sent and what replaced the rest made one right text
    expected = finished(twin, request(text[2:], Chain(3))).draft
    until(lambda: drafter.poll(0, 1.0).is_complete)
    assert drafter.restarts == 0
    assert drafter.poll(0).draft == expected
    extended = request(np.append(text[2:], 1), Chain(3))
    assert finished(drafter, extended).draft == finished(twin, extended).draft


@pytest.mark.parametrize("end", ["exits", "is killed"])
def test_it_dies_with_its_parent(end: str) -> None:
    script = (
        "import os, numpy, time\n"
        "from duodec.backends.drafter.process import ProcessDrafter\n"
        "from duodec.testing import TableModel\n"
        "from duodec.core.drafters import DraftRequest\n"
        "from duodec.drafting.plans import Chain\n"
        "drafter = ProcessDrafter(TableModel(seconds=600), on_warning=print)\n"
        "drafter.wait_ready()\n"
        "drafter.submit(DraftRequest(0, numpy.ones(3, dtype=numpy.int32), Chain(3)))\n"
        "time.sleep(0.2)\n"
        "print(drafter.pid, flush=True)\n"
        + ("os._exit(0)" if end == "exits" else "time.sleep(600)")
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
    until(lambda: is_gone(pid), 5.0)


def test_it_leaves_ctrl_c_to_its_parent(start: Start, warnings: list[str]) -> None:
    drafter = start(TABLE)
    assert drafter.pid is not None
    assert os.getpgid(drafter.pid) != os.getpgid(0)
    kill(drafter, signal.SIGINT)
    assert drafts_again(drafter)
    assert (drafter.restarts, warnings) == (0, [])


def test_it_ends_with_its_drafter(warnings: list[str]) -> None:
    drafter = ProcessDrafter(TABLE, on_warning=warnings.append)
    drafter.wait_ready()
    assert drafter.is_alive
    pid = drafter.pid
    assert pid is not None
    del drafter
    gc.collect()
    until(lambda: is_gone(pid))


@pytest.mark.parametrize("state", ["loading", "idle", "busy", "stopped"])
def test_closing_is_prompt_and_final(state: str, warnings: list[str]) -> None:
    drafter = ProcessDrafter(TableModel(seconds=0.02), on_warning=warnings.append)
    pid = drafter.pid
    assert pid is not None
    if state != "loading":
        drafter.wait_ready()
    if state == "busy":
        drafter.submit(request(PROMPT, Chain(1000)))
    if state == "stopped":
        kill(drafter, signal.SIGSTOP)
    before = perf_counter()
    drafter.close()
    drafter.close()
    assert perf_counter() - before < 5
    assert is_gone(pid)
    drafter.submit(request(PROMPT, Chain(3)))
    drafter.cancel(1)
    assert drafter.poll(0, LONG_S) == Drafted()
    assert not drafter.is_alive
    assert not drafter.is_ready
    assert not warnings
    with pytest.raises(BackendUnavailable, match="closed"):
        drafter.wait_ready()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts files in /proc")
def test_restarts_leave_nothing_behind(warnings: list[str]) -> None:
    def belongings() -> tuple[int, set[int]]:
        children = {child.pid for child in psutil.Process().children()}
        return len(list(Path("/proc/self/fd").iterdir())), children

    before = belongings()
    with ProcessDrafter(TABLE, on_warning=warnings.append) as drafter:
        drafter.wait_ready()
        assert drafts_again(drafter)
        num_fds, _ = belongings()
        for _ in range(20):
            pid = drafter.pid
            kill(drafter)
            until(lambda pid=pid: drafter.is_ready and drafter.pid != pid)  # type: ignore[misc]
            assert drafts_again(drafter)
        assert drafter.restarts == 20
        assert belongings() == (num_fds, before[1] | {drafter.pid})
        assert len(warnings) == 20
    assert belongings() == before


def test_a_process_tells_what_a_step_takes_and_whether_the_root_was_known(
    start: Start,
) -> None:
    beside, plan = start(TABLE), Tree(num_leaves=2)
    beside.submit(request(PROMPT, plan))
    until(lambda: beside.poll(0, 1.0).num_steps > 4)
    fresh = beside.poll(0)
    assert fresh.root_s > 0  # nothing was known of this text
    assert fresh.step_s is not None
    assert fresh.step_s > 0
    assert fresh.num_leaves > 4
    assert fresh.busy_s >= fresh.root_s
    assert fresh.tree is not None
    beside.submit(request([*PROMPT, fresh.tree.tokens[0]], plan))
    until(lambda: beside.poll(0, 1.0).num_steps > 1)
    assert beside.poll(0).root_s == 0.0
    assert beside.poll(0).busy_s > fresh.root_s

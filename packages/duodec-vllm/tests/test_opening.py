"""From settings and vLLM's configuration to a drafter, or to one clear line and no drafter."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter, sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes.decoding import Letters
from fakes.vllm_rows import FakeEngine, FakeRow

from duodec.backends.drafter.process import ProcessDrafter
from duodec.cli.app import run
from duodec.errors import BackendUnavailable, BadOption, ContextExceeded, ModelNotFound
from duodec.machine.topology import Topology
from duodec.models import resolve
from duodec.models.vocabularies import difference
from duodec.testing import TableModel
from duodec_vllm import DuoProposer, opening, proposer
from duodec_vllm.command import command
from duodec_vllm.opening import Engine, Host, OpenDrafter, draft_cores, num_window
from duodec_vllm.proposer import counters
from duodec_vllm.settings import PREFIX, Settings
from duodec_vllm.vocabulary import DraftFacts, draft_facts

TABLE = TableModel(seed=7)
FACTS = DraftFacts((b"a",) * 32, -1, -1, frozenset(), 2048, 4096)


@pytest.fixture(autouse=True)
def _tested_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "vllm_version", lambda: opening.TESTED)
    for name in ("DRAFT", "CORES", "THREADS", "MEMORY", "TEXTS", "ON_FAULT", "CONFIG"):
        monkeypatch.delenv(f"{PREFIX}{name}", raising=False)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines of vLLM's log."""
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    caplog.set_level(logging.WARNING, "vllm.duodec")
    found: list[str] = []
    monkeypatch.setattr(proposer._log, "warning", lambda line, *args: found.append(line % args))
    return found


def config(**parallel: int) -> SimpleNamespace:
    """What a `VllmConfig` says, as far as it is asked."""
    usual = {
        "rank": 0, "world_size": 1, "local_world_size": 1, "tensor_parallel_size": 1,
        "prefill_context_parallel_size": 1, "data_parallel_rank_local": 0,
        "data_parallel_size_local": 1,
    }  # fmt: skip
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=4),
        model_config=SimpleNamespace(
            max_model_len=512, tokenizer="nowhere", get_vocab_size=lambda: 32
        ),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
        device_config=SimpleNamespace(device_type="cuda"),
        compilation_config=SimpleNamespace(cudagraph_mode=None),
        parallel_config=SimpleNamespace(**{**usual, **parallel}),
    )


def open_table(settings: Settings, engine: Engine) -> OpenDrafter:
    drafter = ProcessDrafter(TABLE, on_warning=lambda line: None)
    drafter.wait_ready()
    return OpenDrafter(drafter, engine.max_rows)


# --- the hook


def test_the_proposer_keeps_the_contract_of_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}DRAFT", "some.gguf")
    monkeypatch.setattr(proposer, "open_drafter", open_table)
    ours = DuoProposer(config())
    ours.load_model(object())

    def hook(propose: Callable[..., list[list[int]]], *arguments: Any) -> list[list[int]]:
        sleep(0.003)  # of a forward pass: the drafter is another process
        return propose(*arguments, slot_mappings=None)

    engine = FakeEngine(partial(hook, ours.propose), TABLE)
    rows: list[FakeRow] = []
    end_s = perf_counter() + 30
    while not any(accepted for row in rows for _, accepted in row.accepted):
        assert perf_counter() < end_s, "nothing was ever accepted"
        rows += [engine.add([1, 2, 3 + i], 100) for i in range(3)]
        engine.run()
    assert all(drafted <= 4 for row in rows for drafted, _ in row.accepted)
    assert ours.drafter is not None
    child = ours.drafter.drafter
    del ours, engine
    assert not child.is_alive  # it went with its owner


@pytest.mark.parametrize(("is_full", "num_whole"), [(True, 4), (False, 0)])
def test_steps_are_whole_where_vllm_has_full_graphs(is_full: bool, num_whole: int) -> None:
    found = config()
    found.compilation_config.cudagraph_mode = SimpleNamespace(has_full_cudagraphs=lambda: is_full)
    assert Engine.of(found).num_whole == num_whole
    ours = DuoProposer(found)
    assert ours.speculator is not None
    assert ours.speculator.draft_lengths.at(1).num_whole == num_whole


@pytest.mark.parametrize(("before_s", "after_s"), [(0.005, 0.0005), (0.0001, 0.0001)])
def test_the_drafters_thread_makes_way_soon(before_s: float, after_s: float) -> None:
    """A step of vLLM waits for Python's lock as long as that thread may keep it."""
    usual_s = sys.getswitchinterval()
    try:
        sys.setswitchinterval(before_s)
        ours = DuoProposer(config())
        assert ours.speculator is not None
        assert sys.getswitchinterval() == pytest.approx(after_s, abs=2e-6)
    finally:
        sys.setswitchinterval(usual_s)


def test_drafts_are_plain_lists_of_integers() -> None:
    ours = DuoProposer(config())
    texts = np.tile(np.arange(4, dtype=np.int32), (2, 8))
    lengths = np.array([30, 30])
    made = [ours.propose([[1], [1]], lengths + step - 20, texts) for step in range(6)]
    assert all(type(draft) is list for drafts in made for draft in drafts)
    assert all(type(token) is int for drafts in made for draft in drafts for token in draft)
    assert any(made[2])  # the text repeats itself


def test_only_the_worker_whose_drafts_are_taken_has_a_drafter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(f"{PREFIX}DRAFT", "some.gguf")
    opened: list[Engine] = []
    monkeypatch.setattr(proposer, "open_drafter", lambda s, e: opened.append(e) or open_table(s, e))
    sizes = {"world_size": 8, "local_world_size": 8, "tensor_parallel_size": 4}
    for rank in range(8):
        ours = DuoProposer(config(rank=rank, **sizes))
        assert (ours.speculator is not None) == (rank == 4)  # first of the last stage
        if rank != 4:
            assert ours.propose([[1]], np.array([1]), np.ones((1, 8), np.int32)) == [[]]
    assert len(opened) == 1


# --- faults


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"DRAFT": "no-such-draft"}, "no model 'no-such-draft'"),
        ({"DRAFT": "smollm2-draft", "CORES": "9999"}, "there is no core 9999"),
        ({"DRAFT": "smollm2-draft", "CORES": "0", "MEMORY": "1"}, "memory is 1 MiB"),
        ({"DRAFT": "smollm2-draft", "CORES": "x"}, "cores is 'x'"),
        ({"TEXTS": "1000"}, "texts is 1000; use 1 to 64"),
        ({"CONFIG": "/no/such/file"}, "cannot read /no/such/file"),
    ],
)
def test_a_fault_is_one_line_and_vllm_goes_on(
    fault: dict[str, str], words: str, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "recipe_for", lambda tokenizer, facts, recipe: recipe)
    for name, value in fault.items():
        monkeypatch.setenv(f"{PREFIX}{name}", value)
    ours = DuoProposer(config())
    (line,) = lines
    assert words in line
    assert "\n" not in line
    drafts = ours.propose([[1]], np.array([3]), np.ones((1, 8), np.int32))
    assert len(drafts) == 1


def test_a_fault_refuses_the_start_where_that_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{PREFIX}DRAFT", "no-such-draft")
    monkeypatch.setenv(f"{PREFIX}CORES", "0")
    monkeypatch.setenv(f"{PREFIX}ON_FAULT", "refuse")
    with pytest.raises(ModelNotFound):
        DuoProposer(config())


@pytest.mark.parametrize("found", ["0.19.3", "0.34.0", None])
def test_another_vllm_ends_the_start_whatever_a_fault_does(
    found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command written by hand would decode without drafts, and say so in one line of many."""
    monkeypatch.setattr(opening, "vllm_version", lambda: found)
    with pytest.raises(BackendUnavailable, match=found or "not installed") as caught:
        DuoProposer(config())
    assert opening.TESTED in str(caught.value)


def test_a_vllm_whose_hook_is_the_same_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "vllm_version", lambda: "0.33.0+cu130")
    assert opening.check_version() == "0.33.0+cu130"
    assert DuoProposer(config()).speculator is not None


def test_a_mistake_of_ours_ends_speculation_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, lines: list[str]
) -> None:
    ours = DuoProposer(config())
    assert ours.speculator is not None
    monkeypatch.setattr(ours.speculator, "propose", lambda rows: 1 / 0)
    for _ in range(2):
        assert ours.propose([[1]], np.array([3]), np.ones((1, 8), np.int32)) == [[]]
    assert ours.speculator is None


# --- settings


def test_settings_come_from_a_file_and_the_environment_wins(tmp_path: Path) -> None:
    file = tmp_path / "duodec.yaml"
    file.write_text("draft: small.gguf\ncores: 4-6,9\nthreads: 3\nmemory: 256\n")
    found = Settings.read({f"{PREFIX}CONFIG": str(file), f"{PREFIX}MEMORY": "512"})
    assert found == Settings(draft="small.gguf", cores=(4, 5, 6, 9), threads=3, memory=512)
    assert Settings.read(found.environment()) == found
    file.write_text("cores: [4, 5]")
    assert Settings.read({f"{PREFIX}CONFIG": str(file)}).cores == (4, 5)


@pytest.mark.parametrize(
    ("text", "words"),
    [("drft: a", "did you mean draft?"), ("- a", "holds no settings"), ("a: [", "cannot read"),
     ("threads: many", "threads is 'many'"), ("on_fault: cry", "choose from: continue, refuse")],
)  # fmt: skip
def test_a_bad_file_is_told_with_a_remedy(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "duodec.yaml"
    file.write_text(text)
    with pytest.raises(BadOption, match=words.replace("?", r"\?")):
        Settings.read({f"{PREFIX}CONFIG": str(file)})


# --- cores and memory


def test_the_drafter_gets_cores_that_vllm_leaves() -> None:
    cores = Topology.flat(tuple(range(32)))
    assert draft_cores(Settings(), Host(num_workers=4), cores) == tuple(range(24, 32))
    assert draft_cores(Settings(threads=2), Host(), cores) == (30, 31)
    assert draft_cores(Settings(cores=(0,)), Host(is_on_cpu=True), cores) == (0,)
    shares = [set(draft_cores(Settings(), Host(num_engines=3, engine=i), cores)) for i in range(3)]
    assert all(len(share) == 8 for share in shares)
    assert len(set().union(*shares)) == 24


@pytest.mark.parametrize(
    ("host", "words"),
    [(Host(num_workers=8), "need 10 cores of 8"), (Host(is_on_cpu=True), "every core")],
)
def test_too_few_cores_are_told(host: Host, words: str) -> None:
    with pytest.raises(BadOption, match=words):
        draft_cores(Settings(), host, Topology.flat(tuple(range(8))))


def test_memory_is_shared_by_texts() -> None:
    assert num_window(Settings(memory=1024), FACTS, 16, 10**6) == 2048 - 80
    assert num_window(Settings(memory=64), FACTS, 16, 10**6) == 64 * 256 // 16 - 328
    assert num_window(Settings(memory=1024), FACTS, 16, 300) == 300
    long = replace(FACTS, num_context_train=10**5)
    assert num_window(Settings(memory=4096), long, 16, 10**6) == 8192
    with pytest.raises(ContextExceeded, match="take 36; raise"):
        num_window(Settings(memory=16), FACTS, 16, 4096)


# --- the draft's vocabulary


def test_the_vocabulary_of_a_draft_is_read_by_another_process() -> None:
    facts = draft_facts(resolve("smollm2-draft").path)
    assert facts.num_vocab == 49152
    assert facts.token_text(facts.eos) == b"<|im_end|>"
    assert facts.is_end(facts.eos)
    assert difference(facts, facts) is None
    assert "32 tokens" in (difference(facts, FACTS) or "")


def test_a_file_that_is_no_model_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(Exception, match=r"a\.gguf"):
        draft_facts(tmp_path / "a.gguf")


# --- metrics and the command


def test_our_counters_are_in_the_registry_that_vllm_shows() -> None:
    from prometheus_client import REGISTRY, generate_latest

    ours = DuoProposer(config())
    before = REGISTRY.get_sample_value("duodec:steps_total") or 0.0
    for step in range(3):
        ours.propose([[1]], np.array([3 + step]), np.ones((1, 8), np.int32))
    assert ours._meters is not None
    ours._meters._next_s = 0.0
    ours._meters.read()
    assert REGISTRY.get_sample_value("duodec:steps_total") == before + 3
    text = generate_latest(REGISTRY).decode()
    assert all(f"duodec:{name}" in text for name in counters())


def test_the_command_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["vllm", "some/model", "--draft", "small.gguf", "--cores", "4-5", "--dry-run"]
    assert run([*words, "-k", "3", "--", "--port", "9000"]) == 0
    said = capsys.readouterr().err
    assert f"{PREFIX}DRAFT=small.gguf" in said
    assert f"{PREFIX}CORES=4,5" in said
    assert "vllm serve some/model --speculative-config" in said
    assert '"num_speculative_tokens": 3' in said
    assert said.rstrip().endswith("--port 9000")


def test_the_command_names_our_proposer() -> None:
    module, _, name = (
        command("m", 4, [])[4].partition('"model": "')[2].partition('"')[0].rpartition(".")
    )
    assert getattr(__import__(module, fromlist=[name]), name) is DuoProposer


def test_the_command_refuses_another_vllm(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(opening, "vllm_version", lambda: "0.1.0")
    assert run(["vllm", "some/model"]) == BackendUnavailable.exit_status
    assert "known in 0.32.0 and 0.33.0 only" in capsys.readouterr().err


def test_the_doctor_tells_what_vllm_lacks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(opening, "vllm_version", lambda: "0.1.0")
    monkeypatch.setenv(f"{PREFIX}CORES", "9999")
    status = run(["doctor", "--vllm", "-m", str(tmp_path), "--draft", "smollm2-draft"])
    said = capsys.readouterr().out
    assert status == 3
    assert said.count("fail") == 3
    assert "known in 0.32.0 and 0.33.0 only" in said
    assert "there is no core 9999" in said


def test_a_vocabulary_of_letters_is_no_match_for_the_draft() -> None:
    facts = draft_facts(resolve("smollm2-draft").path)
    assert (difference(Letters(), facts) or "").startswith("the draft has 49152 tokens, the target")


@pytest.mark.parametrize("culprit", ["_meters", "speculator"])
def test_no_mistake_of_ours_ends_vllms_engine(culprit: str) -> None:
    class Broken:
        def look(self) -> None:
            raise ZeroDivisionError

        propose = look

    class Sound:
        def look(self) -> None: ...

    proposer = DuoProposer.__new__(DuoProposer)
    proposer._meters, proposer.speculator = Sound(), Broken()  # type: ignore[assignment]
    if culprit == "_meters":
        proposer._meters = Broken()  # type: ignore[assignment]
    text = np.zeros((2, 4), dtype=np.int32)
    for _ in range(2):  # then it is left out
        assert proposer.propose([[1], [2]], np.array([2, 3]), text) == [[], []]
    assert proposer.speculator is None

"""The benchmark: fair turns, own stores, nothing lost. Models are tables; one run is real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from benchmarks.gpu.enforced import EnforcedTarget
from fakes.decoding import FakeTokenizer

from duodec.backends.curves import CostCurve
from duodec.cli.app import run
from duodec.core.draft import Draft
from duodec.core.events import Finished
from duodec.core.sampling.sampler import SamplingParams
from duodec.core.targets import Query
from duodec.errors import BadOption, ContextExceeded, ResultsUnreadable
from duodec.llm import LLM
from duodec.methods import registry
from duodec.methods.method import Method
from duodec.planning.costs import Costs
from duodec.testing import InlineDrafter, TableModel, TableTarget
from duodec_lab.bench import benchmark as benchmark_module
from duodec_lab.bench.beds import RealBed, Stage
from duodec_lab.bench.beds.latency import LatencyCurve
from duodec_lab.bench.beds.replay import ReplayTarget
from duodec_lab.bench.benchmark import benchmark
from duodec_lab.bench.journal import Journal
from duodec_lab.bench.meters import EnergyMeter, bandwidth, resident_bytes
from duodec_lab.bench.plan import BenchPlan
from duodec_lab.bench.recording import Conversation, Turn, record, shuffled, tokens_for
from duodec_lab.bench.results import JOURNAL, RESULTS, Generation, Results
from duodec_lab.bench.run import Runner
from duodec_lab.bench.tasks import Prompt

MODEL = TableModel(num_vocab=128, order=1, seed=3)
TOKENIZER = FakeTokenizer(tuple(bytes([i]) for i in range(128)), chat_template="{{ messages }}")


def prompts(task: str = "qa", num: int = 3, num_turns: int = 1) -> list[Prompt]:
    return [
        Prompt(task, str(i), tuple(f"{task} {i} {t}?" for t in range(num_turns)), None, None)
        for i in range(num)
    ]


@dataclass
class Watched:
    """A bed that notes which method ran which turn, and can fail or be interrupted."""

    inner: RealBed
    log: list[tuple[str, str]] = field(default_factory=list)
    methods: list[Method] = field(default_factory=list)
    costs: list[Costs] = field(default_factory=list)
    fail_at: int | None = None
    interrupt_at: int | None = None
    name: str = "real"
    forward_s: float = 0.5

    def answer(self, method: Method, turn: Turn, costs: Costs) -> Finished:
        question = bytes(turn.prompt_tokens).decode()
        self.log.append((method.name, question))
        self.methods.append(method)
        self.costs.append(costs)
        if len(self.log) == self.interrupt_at:
            raise KeyboardInterrupt
        if len(self.log) == self.fail_at:
            raise ContextExceeded("too long; shorten it")
        return self.inner.answer(method, turn, costs)

    def forget(self) -> None:
        self.log.append(("forget", ""))
        self.methods.append(None)  # type: ignore[arg-type]
        self.costs.append(None)  # type: ignore[arg-type]


def engine() -> LLM:
    return LLM(
        TableTarget(MODEL),
        TOKENIZER,
        num_context=2000,
        drafter=InlineDrafter(replace(MODEL, noise=0.3).load()),
    )


class TableRunner(Runner):
    """Measures on tables."""

    bed: Watched

    @contextmanager
    def _stage(self, entrants) -> Iterator[Stage]:
        yield Stage(engine(), lambda method: self.bed)


def runner(plan: BenchPlan, folder: Path, *, is_resumed: bool = False, **bed: int) -> TableRunner:
    settings = plan.settings("duodec bench", "now", [])
    journal = (Journal.resume if is_resumed else Journal)(folder, settings)
    made = TableRunner(
        plan, plan.pairs()[0], journal, lambda prompt, answer: None, lambda *words: None
    )
    made.bed = Watched(RealBed(engine(), plan.sampling, 0.5), **bed)
    return made


def plan(methods: str, **fields: object) -> BenchPlan:
    names = tuple(methods.split(","))
    return BenchPlan(methods=names, max_tokens=24, **fields)  # type: ignore[arg-type]


# --- the order of things


@pytest.mark.slow
def test_methods_take_turns_in_an_order_that_rotates(tmp_path: Path) -> None:
    made = runner(plan("ar,sps,lookup", repeats=2), tmp_path)
    made.run(prompts(num=3))
    answers = [name for name, question in made.bed.log if question.count("qa")]
    assert answers[:9] == ["ar", "sps", "lookup", "sps", "lookup", "ar", "lookup", "ar", "sps"]
    assert answers[9:] == ["sps", "lookup", "ar", "lookup", "ar", "sps", "ar", "sps", "lookup"]
    assert len(made.journal.generations) == 18
    assert len({g.key for g in made.journal.generations}) == 18


@pytest.mark.slow
def test_every_conversation_is_cold_and_its_turns_are_not(tmp_path: Path) -> None:
    made = runner(plan("ar,sps"), tmp_path)
    made.run(prompts("mt_bench", num=2, num_turns=2))
    names = [name for name, _ in made.bed.log]
    assert names == [
        "forget", "ar", "forget", "sps",  # the warm-up
        "forget", "ar", "ar", "forget", "sps", "sps", "forget", "sps", "sps", "forget", "ar", "ar",
    ]  # fmt: skip
    assert [g.turn for g in made.journal.generations] == [1, 2] * 4
    second = made.bed.log[6][1]  # the second turn holds the first, and its completion
    assert "mt_bench 0 0?" in second
    assert "mt_bench 0 1?" in second


def test_methods_warm_up_with_the_prompts_that_the_plan_names(tmp_path: Path) -> None:
    made = runner(plan("ar,suffix", warm_ups={"qa": 2}), tmp_path)
    made.run(prompts("qa", num=3))
    asked = [
        (name, question[question.index("qa") :][:4], id(method))
        for (name, question), method in zip(made.bed.log, made.bed.methods, strict=True)
        if name != "forget"
    ]
    assert [entry[:2] for entry in asked[:4]] == [
        ("ar", "qa 0"), ("ar", "qa 1"), ("suffix", "qa 0"), ("suffix", "qa 1"),
    ]  # fmt: skip
    assert len(made.journal.generations) == 6
    assert not {i for *_, i in asked[:4]} & {i for *_, i in asked[4:]}  # all is forgotten


@pytest.mark.parametrize(("short_tasks", "most"), [(("qa", "rag"), 32), ((), 40)])
def test_a_plan_says_which_tasks_are_short(
    short_tasks: tuple[str, ...], most: int, tmp_path: Path
) -> None:
    made = runner(replace(plan("ar"), max_tokens=40, short_tasks=short_tasks), tmp_path)
    made.run(prompts("qa", num=2))
    assert max(g.new_tokens or 0 for g in made.journal.generations) == most


@pytest.mark.slow
def test_a_method_owns_its_stores_and_costs_in_each_repeat(tmp_path: Path) -> None:
    made = runner(plan("suffix,suffix", repeats=2), tmp_path)
    made.run(prompts(num=3))
    assert {g.method for g in made.journal.generations} == {"suffix", "suffix#2"}
    asked = [
        (question, id(method), id(costs))
        for (_, question), method, costs in zip(
            made.bed.log, made.bed.methods, made.bed.costs, strict=True
        )
        if method is not None
    ]
    warm = {method for question, method, _ in asked if "paper clip" in question}
    own = {method for question, method, _ in asked if "qa" in question}
    assert len(own) == len(warm) == 4
    assert not own & warm  # what the warm-up taught is forgotten
    assert len({costs for *_, costs in asked}) == 4
    first, second = (
        [g.mean_accepted for g in made.journal.generations if g.repeat == repeat]
        for repeat in (0, 1)
    )
    assert sorted(first) == sorted(second)  # a repeat starts where the first one did
    same, other = (
        {g.prompt_id: g.mean_accepted for g in made.journal.generations if g.method == label}
        for label in ("suffix", "suffix#2")
    )
    assert same == other


@pytest.mark.slow
def test_a_store_knows_earlier_answers_and_never_its_own(tmp_path: Path) -> None:
    """One text asked under three names: by the second time it is known."""
    made = runner(plan("suffix"), tmp_path)
    twins = [replace(prompt, turns=("the same",)) for prompt in prompts(num=3)]
    made.run(twins)
    accepted = [g.mean_accepted for g in made.journal.generations]
    alone = runner(plan("suffix"), tmp_path / "alone")
    alone.run(twins[:1])
    assert accepted[0] == alone.journal.generations[0].mean_accepted
    assert accepted[1] > accepted[0]


# --- what is recorded


def test_a_record_holds_what_was_measured(tmp_path: Path) -> None:
    made = runner(plan("ar,sps"), tmp_path)
    made.run(prompts(num=1))
    plain, drafted = made.journal.generations
    assert (plain.method, plain.draft, plain.target) == ("ar", None, "smollm2")
    assert drafted.draft == "smollm2-draft"
    for g in (plain, drafted):
        assert g.new_tokens == 24
        assert g.rounds == len(g.trace) == sum(g.acceptance_histogram)
        assert g.identical is True
        assert sum(r.num_tokens for r in g.trace) == g.new_tokens
        assert 0 < g.trace[0].start_s < g.trace[-1].end_s <= g.ttft_s + g.decode_s
        assert g.target_busy_s == pytest.approx(sum(r.end_s - r.start_s for r in g.trace))
        assert g.ceiling_tokens_per_second == pytest.approx(g.mean_accepted / 0.5)
        assert g.memory_bytes > 1e6
        assert g.error is None
    assert plain.mean_accepted == 1
    assert drafted.accepted_tokens == drafted.new_tokens - drafted.rounds


def test_a_text_that_differs_is_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = runner(plan("ar,sps"), tmp_path)
    answer = RealBed.answer

    def other(self: RealBed, method: Method, turn: Turn, costs: Costs) -> Finished:
        finished = answer(self, method, turn, costs)
        return replace(finished, tokens=(0,)) if method.name == "sps" else finished

    monkeypatch.setattr(RealBed, "answer", other)
    made.run(prompts(num=1))
    assert [g.identical for g in made.journal.generations] == [True, False]


def test_the_published_rule_promises_no_text_above_temperature_0(tmp_path: Path) -> None:
    warm = plan("ar,sps-rejection", sampling=SamplingParams(temperature=1.0))
    made = runner(warm, tmp_path)
    made.run(prompts(num=1))
    assert [g.identical for g in made.journal.generations] == [True, None]


@pytest.mark.slow
def test_a_failed_prompt_is_a_missing_value(tmp_path: Path) -> None:
    made = runner(plan("ar,sps"), tmp_path, fail_at=6)  # two warm-ups, each with its forgetting
    made.run(prompts("mt_bench", num=2, num_turns=2))
    failed = [g for g in made.journal.generations if g.error]
    assert [(g.method, g.turn) for g in failed] == [("ar", 1), ("ar", 2)]
    assert failed[0].error == "too long; shorten it"
    assert failed[0].new_tokens is None
    assert failed[0].rate is None
    assert len(made.journal.generations) == 8


def test_a_method_of_others_that_raises_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text(
        "from duodec.methods import Method\n\n"
        "class Boom(Method):\n"
        "    name = 'boom'\n\n"
        "    def decode(self, request):\n"
        "        raise ValueError('mine')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "METHODS", dict(registry.METHODS))
    made = runner(plan("ar,broken:Boom"), tmp_path / "run")
    made.run(prompts(num=2))
    found = {(g.method, g.error) for g in made.journal.generations}
    assert found == {("ar", None), ("broken:Boom", "boom: ValueError: mine")}


def test_a_prompt_that_cannot_be_recorded_fails_for_all(tmp_path: Path) -> None:
    made = runner(plan("ar,sps"), tmp_path)
    made.run([replace(prompts(num=1)[0], turns=("x" * 3000,)), *prompts(num=1)])
    errors = [g.error for g in made.journal.generations]
    assert sum(error is not None and "context" in error for error in errors) == 2
    assert errors.count(None) == 2


# --- interruptions


@pytest.mark.slow
@pytest.mark.parametrize("methods", ["ar,sps", "suffix,recycling"])
def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path, methods: str) -> None:
    whole = runner(plan(methods), tmp_path / "whole")
    whole.run(prompts(num=4))
    broken = runner(plan(methods), tmp_path / "broken", interrupt_at=14)
    with pytest.raises(KeyboardInterrupt):
        broken.run(prompts(num=4))
    assert 0 < len(broken.journal.generations) < 8
    resumed = runner(plan(methods), tmp_path / "broken", is_resumed=True)
    kept = resumed.journal.generations.copy()
    assert [g.key for g in kept] == [g.key for g in broken.journal.generations]
    resumed.run(prompts(num=4))
    assert resumed.journal.generations[: len(kept)] == kept  # nothing is measured twice
    assert {g.key: g.mean_accepted for g in resumed.journal.generations} == {
        g.key: g.mean_accepted for g in whole.journal.generations
    }


@pytest.mark.slow
def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    made = runner(plan("ar"), tmp_path)
    made.run(prompts(num=2))
    path = tmp_path / JOURNAL
    path.write_text(path.read_text()[:-40])
    resumed = runner(plan("ar"), tmp_path, is_resumed=True)
    assert len(resumed.journal.generations) == 1
    resumed.run(prompts(num=2))
    assert len(Journal.resume(tmp_path, plan("ar").settings("", "", [])).generations) == 2


def test_a_folder_is_not_written_over_and_not_mixed(tmp_path: Path) -> None:
    runner(plan("ar"), tmp_path)
    with pytest.raises(BadOption, match="--resume"):
        runner(plan("ar"), tmp_path)
    with pytest.raises(BadOption, match=r"other settings.*methods"):
        runner(plan("ar,sps"), tmp_path, is_resumed=True)
    with pytest.raises(BadOption, match="no benchmark to continue"):
        runner(plan("ar"), tmp_path / "nowhere", is_resumed=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadOption, match="cannot be made"):
        runner(plan("ar"), tmp_path / "file" / "below")
    (tmp_path / JOURNAL).write_text('{"schema_version": 99, "settings": {}}\n')
    with pytest.raises(ResultsUnreadable, match="99"):
        runner(plan("ar"), tmp_path, is_resumed=True)
    (tmp_path / JOURNAL).write_text("no json\n")
    with pytest.raises(ResultsUnreadable, match="broken"):
        runner(plan("ar"), tmp_path, is_resumed=True)


def test_a_full_disk_is_seen_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = runner(plan("ar"), tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("usage", (), {"free": 1000})())
    with pytest.raises(OSError, match="No space left"):
        made.run(prompts(num=2))
    assert made.journal.generations == []


# --- recordings


def test_answers_to_short_tasks_are_short() -> None:
    assert tokens_for("qa", 96) == tokens_for("rag", 96) == 32
    assert tokens_for("qa", 16) == 16
    assert tokens_for("humaneval", 96) == 96


def test_a_shuffled_answer_has_the_same_tokens_in_another_order() -> None:
    (conversation,) = record(engine(), prompts("humaneval", 1), SamplingParams(), 60)
    (turn,) = conversation.turns
    end = next(token for token in range(128) if token not in turn.answer)
    ended = replace(conversation, turns=(replace(turn, answer=(*turn.answer, end)),))
    (mixed,) = shuffled(ended, lambda token: token == end).turns
    assert mixed.answer[:-1] != turn.answer
    assert sorted(mixed.answer[:-1]) == sorted(turn.answer)
    assert mixed.answer[-1] == end
    assert shuffled(ended, lambda token: token == end).turns == (mixed,)
    assert not shuffled(Conversation(prompts(num=1)[0], error="x"), bool).turns


def test_a_recording_holds_what_the_target_held_likely() -> None:
    (conversation,) = record(engine(), prompts("humaneval", 1), SamplingParams(), 30)
    (turn,) = conversation.turns
    known = turn.candidates_by_position
    length = len(turn.prompt_tokens)
    assert list(known) == list(range(length, length + len(turn.answer)))
    replayed = ReplayTarget(turn.tokens, LatencyCurve(CostCurve.flat(0.0)), known)
    for position in range(length, len(turn.tokens)):
        query = Query(0, turn.tokens[:position], num_candidates=8)
        (scores,), (real,) = replayed.score([query]), TableTarget(MODEL).score([query])
        assert known[position].tokens[0] == turn.tokens[position]  # a greedy draw
        assert scores.candidates(0) == known[position] == real.candidates(0)
    mixed = shuffled(conversation, bool).turns
    assert all(not turn.candidates for turn in mixed)  # no row had those candidates


def test_an_enforced_target_draws_the_given_text_and_thinks_its_own() -> None:
    text = np.array([5, 6, 7, 8, 9], dtype=np.int32)
    target = EnforcedTarget(TableTarget(MODEL), text)
    draft = Draft.sequences([[7, 8], [60]])
    query = Query(0, text[:2], draft, num_candidates=2)
    (scores,), (real,) = target.score([query]), TableTarget(MODEL).score([query])
    assert [scores.draw(row).token for row in range(3)] == [7, 8, 9]
    assert scores.draw(3) == real.draw(3)
    assert scores.candidates(0) == real.candidates(0)
    replayed = ReplayTarget(text, LatencyCurve(CostCurve.flat(0.0))).score([query])[0]
    assert replayed.num_rows == scores.num_rows


# --- plans


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"methods": ("arr",)}, "did you mean ar"),
        ({"methods": ()}, "no methods"),
        ({"max_tokens": 1}, "max-tokens is 1"),
        ({"repeats": 0}, "repeats is 0"),
        ({"replay_ms": -1.0}, "replay-ms is -1"),
        ({"replay_ms": float("nan")}, "replay-ms is nan"),
        ({"simulate_ms": -1.0}, "simulate-ms is -1"),
        ({"simulate_ms": float("inf")}, "simulate-ms is inf"),
        ({"simulate_ms": 1.0, "replay_ms": 1.0}, "replay-ms and simulate-ms"),
        (
            {"methods": ("ar", "recycling"), "replay_ms": 1.0},
            "a replay has no rows off the recorded text for recycling",
        ),
        ({"draft_ms": "1:2"}, "--simulate-ms"),
        ({"draft_ms": "1:2", "replay_ms": 1.0}, "--simulate-ms"),
        ({"draft_ms": "1:x", "simulate_ms": 1.0}, "'1:x'"),
        ({"draft_speed": 0.0, "simulate_ms": 1.0}, "draft-speed is 0"),
        ({"draft_speed": float("nan"), "simulate_ms": 1.0}, "draft-speed is nan"),
        ({"control": "mixed", "replay_ms": 1.0}, "shuffled"),
        ({"control": "shuffled"}, "--replay-ms"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(BadOption, match=words):
        BenchPlan(**fields)  # type: ignore[arg-type]


def test_a_method_without_a_draft_model_needs_no_draft() -> None:
    assert plan("ar,lookup", targets=("some.gguf",)).pairs()[0].draft is None
    with pytest.raises(BadOption, match="sps need a draft model"):
        plan("ar,sps", targets=("some.gguf",)).pairs()


@pytest.mark.slow
def test_every_target_meets_every_draft_and_plain_decoding_only_the_first(tmp_path: Path) -> None:
    both = plan("ar,sps", drafts=("smollm2-draft", "other.gguf"))
    first, second = both.pairs()
    assert (first.draft, second.draft) == ("smollm2-draft", "other.gguf")
    made = runner(both, tmp_path)
    made.run(prompts(num=1))
    made.config = second
    made.run(prompts(num=1))
    assert [(g.method, g.draft) for g in made.journal.generations] == [
        ("ar", None), ("sps", "smollm2-draft"), ("sps", "other.gguf"),
    ]  # fmt: skip


# --- meters


def test_energy_counters_are_read_and_run_over(tmp_path: Path) -> None:
    for name, value in (("intel-rapl:0", 9_000_000), ("intel-rapl:0:0", 5)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(str(value))
        (tmp_path / name / "max_energy_range_uj").write_text("10000000")
    meter = EnergyMeter(tmp_path)
    assert meter.absence is None
    before = meter.read()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("1000000")
    assert meter.joules_since(before) == pytest.approx(2.0)
    nothing = EnergyMeter(tmp_path / "none")
    assert nothing.read() is None
    assert nothing.joules_since(None) is None
    assert nothing.absence


def test_the_machine_has_memory_and_a_bandwidth() -> None:
    assert resident_bytes() > 10e6
    assert 1e8 < bandwidth(1) < 1e13


# --- the command


@pytest.mark.slow
def test_one_command_measures_for_real(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The default pair, A/A and a method that drafts, with report."""
    folder = tmp_path / "out"
    arguments = [
        "bench", "--methods", "ar,ar,sps,suffix", "--tasks", "qa", "--limit", "1",
        "--max-tokens", "8", "--output", str(folder),
    ]  # fmt: skip
    assert run(arguments) == 0
    results = Results.read(folder)
    assert [g.method for g in results.generations] == ["ar", "ar#2", "sps", "suffix"]
    assert all(g.identical and g.test_bed == "real" for g in results.generations)
    assert results.settings["is_complete"] is True
    assert "duodec" in (folder / "report.html").read_text()
    assert "ar#2" in capsys.readouterr().out
    assert run(arguments) == 2
    assert "--resume" in capsys.readouterr().err
    assert run([*arguments, "--resume"]) == 0
    assert len(Results.read(folder).generations) == 4


@pytest.mark.slow
def test_a_replay_takes_what_its_curve_says(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    assert (
        run([
            "bench", "--methods", "ar,duo", "--tasks", "qa", "--limit", "1", "-n", "8",
            "--replay-ms", "20", "--quiet", "--output", str(folder),
        ])
        == 0
    )  # fmt: skip
    found = {g.method: g for g in Results.read(folder).generations}
    assert found.keys() == {"ar", "duo"}
    for g in found.values():
        assert g.test_bed == "replay"
        assert g.identical is None
        assert all(r.end_s - r.start_s >= 0.0199 for r in g.trace)
        assert g.ceiling_tokens_per_second == pytest.approx(g.mean_accepted * 50)
    affinity = json.loads((folder / RESULTS).read_text())["environment"]["cores"]
    from duodec.machine.cores import available_cores

    assert len(available_cores()) == affinity  # the cores that were left to the drafter are back


def test_ctrl_c_keeps_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Interrupted(Runner):
        def run(self, prompts) -> None:
            self.journal.keep(
                Generation("qa", "1", 1, "ar", "smollm2", None, 0, "real", error="too early")
            )
            raise KeyboardInterrupt

    monkeypatch.setattr(benchmark_module, "Runner", Interrupted)
    folder = tmp_path / "out"
    assert run(["bench", "--methods", "ar", "--tasks", "qa", "-o", str(folder)]) == 130
    assert "--resume" in capsys.readouterr().err
    results = Results.read(folder)
    assert len(results.generations) == 1
    assert results.settings["is_complete"] is False


def test_a_run_that_never_began_leaves_no_folder(tmp_path: Path) -> None:
    broken = plan("ar", targets=(str(tmp_path / "missing.gguf"),))
    folder = tmp_path / "out"
    with pytest.raises(Exception, match=r"missing\.gguf"):
        benchmark(broken, folder, command="", is_resumed=False, on_progress=lambda *words: None)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tasks", "qaa"], "did you mean qa"),
        (["--methods", "ar,duoo"], "did you mean duo"),
        (["--data", "nowhere"], "nowhere"),
        (["--limit", "-1"], "limit"),
        (["--resume"], "--output"),
        (["--methods", "rest", "--datastore", "nowhere.duods"], "nowhere.duods"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["bench", "--methods", "ar", *arguments]) == 2
    error = capsys.readouterr().err
    *progress, last = error.splitlines()
    assert words in last
    assert all("loading" in line for line in progress)
    assert not list(tmp_path.iterdir())

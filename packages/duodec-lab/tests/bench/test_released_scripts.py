"""`--paper` sets what the paper's released scripts set: they are run beside it, field by field."""

from __future__ import annotations

import hashlib
import re
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.released_scripts import (
    COMPLETION,
    PREFILL_S,
    TOKEN_S,
    Evaluation,
    Release,
    blob_of,
    checkout,
    command_lines,
    keyword,
    task_of,
)

from duodec.machine.cores import available_cores
from duodec.methods.lookahead import Lookahead
from duodec.methods.lookup import PromptLookup
from duodec.methods.registry import method
from duodec.methods.rest import Rest
from duodec_lab.bench import paper
from duodec_lab.bench.paper import DRAFT, PAPERS, paper_plan
from duodec_lab.bench.plan import BenchPlan
from duodec_lab.bench.recording import tokens_for
from duodec_lab.bench.tasks import TASKS, Prompt, read_prompts

SCRIPTS = {
    "llama-2-7b": ("baseline_llama.sh", "duodec_llama.sh"),
    "vicuna-7b": ("baseline_vicuna.sh", "duodec_vicuna.sh"),
}
METHODS = {
    "large": "ar",
    "sd": "sps",
    "pld": "lookup",
    "lade": "lookahead",
    "rest": "rest",
    "duodec": "duo",
}
OURS = {"duo", "auto"}  # in addition


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory.mktemp("released"))


@pytest.fixture
def release(files: Path, monkeypatch: pytest.MonkeyPatch) -> Release:
    return Release(files, monkeypatch)


def plan_of(name: str, files: Path) -> BenchPlan:
    return paper_plan(name, BenchPlan(methods=("ar",), data=files / "data"), frozenset())


def commands(name: str, release: Release) -> Iterator[tuple[list[str], Namespace]]:
    for script in SCRIPTS[name]:
        for words in command_lines(release.folder / "cmds" / script):
            yield words, release.options(words)


def test_every_script_is_compared(files: Path) -> None:
    known = {script for scripts in SCRIPTS.values() for script in scripts}
    assert {path.name for path in (files / "cmds").iterdir()} == known
    assert SCRIPTS.keys() == PAPERS.keys()


def test_prompts_and_draft_are_the_released_files(files: Path) -> None:
    assert blob_of(f"data/{DRAFT}") == paper.DRAFT_BLOB
    for task in TASKS:
        content = (files / "data" / f"{task}.jsonl").read_bytes()
        assert hashlib.sha256(content).hexdigest() == paper.PROMPTS[task]
        assert len(read_prompts(files / "data", [task], None)) == len(content.splitlines())


@pytest.mark.parametrize("name", PAPERS)
def test_models_and_tokens_are_those_of_every_command(name: str, release: Release) -> None:
    plan = plan_of(name, release.folder)
    (target,), (draft,) = plan.targets, plan.drafts
    seen = set()
    for words, options in commands(name, release):
        task = task_of(words, options)
        seen.add((options.eval_mode, task))
        assert Path(options.target_model).name == target.rpartition("/")[2]
        assert tokens_for(task, plan.max_tokens, plan.short_tasks) == options.max_tokens, words
        assert plan.sampling.temperature == options.temp
        assert plan.repeats == options.num_samples_per_task
        if options.eval_mode == "duodec":
            assert Path(options.draft_model).name == Path(draft).name == DRAFT
    assert seen == {(mode, task) for mode in METHODS for task in TASKS}
    engine = release.folder / "src/engine.py"
    assert keyword(engine, "n_threads") == {16}
    assert plan.config.draft_threads == min(16, len(available_cores()))
    assert "torch_dtype=torch.bfloat16" in engine.read_text()
    assert plan.config.dtype == "bfloat16"


@pytest.mark.parametrize("name", PAPERS)
def test_methods_have_the_parameters_of_every_command(name: str, release: Release) -> None:
    plan = plan_of(name, release.folder)
    labels = {label.partition(":")[0]: label for label in plan.methods if label not in OURS}
    assert sorted(labels) == sorted(METHODS.values())
    assert set(plan.methods) - set(labels.values()) == OURS
    engine = release.folder / "src/engine.py"
    for _, options in commands(name, release):
        ours = method(labels[METHODS[options.eval_mode]])
        if options.eval_mode in ("sd", "duodec"):
            assert vars(ours)["num_tokens"] == options.gamma
        if isinstance(ours, PromptLookup):
            assert {ours.max_ngram} == keyword(engine, "draft_matching_window_size")
            assert {ours.num_tokens} == keyword(engine, "draft_num_candidate_tokens")
        if isinstance(ours, Lookahead):
            window = (ours.num_levels, ours.num_columns, ours.num_guesses)
            assert window == (options.level, options.window, options.guess)
        if isinstance(ours, Rest):
            assert (ours.max_span, ours.num_tokens) == (options.max_token_span, options.num_draft)
            spans = f"range({ours.min_span}, self.args.max_token_span + 1)"
            assert spans in engine.read_text()


@pytest.mark.filterwarnings("ignore:Exception ignored in")  # the scripts leave a file open
@pytest.mark.parametrize("name", PAPERS)
def test_prompts_and_warm_ups_are_those_that_the_scripts_decode(
    name: str, release: Release
) -> None:
    plan = plan_of(name, release.folder)
    for words, _ in commands(name, release):
        run = release.run(words)
        prompts = read_prompts(plan.data, [run.task], plan.limit)
        warm_ups = prompts[: plan.warm_ups[run.task]]
        expected = [text for p in (*warm_ups, *prompts) for text in texts(name, p)]
        assert run.prompts == expected, words
        assert_speed_is_over_the_whole_time(run)


def texts(name: str, prompt: Prompt) -> Iterator[str]:
    """What we decode, where every completion is the scripts'."""
    turns: list[tuple[str, str]] = []
    for question in prompt.turns:
        yield PAPERS[name].render(prompt, turns, question)
        turns.append((question, COMPLETION))


def assert_speed_is_over_the_whole_time(run: Evaluation) -> None:
    """The scripts' speed is of every token over all the time, prefill included."""
    whole = len(COMPLETION) / (PREFILL_S + TOKEN_S * len(COMPLETION))
    (printed,) = (line for line in run.printed if line.startswith(("generate sp", "Average gen")))
    assert float(re.findall(r"\d+\.\d+", printed)[0]) == pytest.approx(whole, abs=0.006)


def test_no_script_fills_a_time_to_the_first_token(files: Path) -> None:
    for path in (files / "eval").glob("*.py"):
        assert '["ttft"]' not in path.read_text(), "then compare it with ours"

"""The paper's evaluation by one command: its settings, its formats, its files."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import pytest
from fakes.tiny_models import write_dense

from duodec.cli.app import run
from duodec.errors import BadOption, ChecksumMismatch, DownloadFailed
from duodec.machine.cores import available_cores
from duodec_lab.bench import paper
from duodec_lab.bench.paper import DRAFT, PAPERS, llama, paper_plan, spec_bench, vicuna
from duodec_lab.bench.plan import BenchPlan
from duodec_lab.bench.results import Results
from duodec_lab.bench.tasks import TASKS, CodeTask, Prompt


def prompt(task: str, *turns: str) -> Prompt:
    return Prompt(task, "1", turns, None, None)


CODE = Prompt("humaneval", "1", ("Complete ...",), None, CodeTask("\ndef f():\n", "f", "..."))


def test_vicunas_conversation_has_its_separators() -> None:
    first = vicuna(prompt("mt_bench", "a", "b"), [], "a")
    assert first.startswith("A chat between a curious user and an artificial intelligence")
    assert first.endswith("questions. USER: a ASSISTANT: ")
    text = vicuna(prompt("mt_bench", "a", "b"), [("a", "one.")], "b")
    assert text == f"{first}{first}one.</s>USER: b ASSISTANT: "  # as the scripts decode it
    assert vicuna(prompt("qa", " who? "), [], " who? ").endswith(" USER: who? ASSISTANT:")
    assert vicuna(CODE, [], "Complete ...").endswith(" USER: def f(): ASSISTANT:")


def test_llamas_formats_are_those_of_the_scripts() -> None:
    for task, turns in (("mt_bench", [("a", "one.")]), ("qa", [])):
        asked = prompt(task, " who?")
        assert llama(asked, turns, " who?") == vicuna(asked, turns, " who?")
    assert llama(prompt("summarization", "x"), [], " x ") == "x TL;DR: "
    german = "Translate German to English: Ja."
    expected = "Translate German to English. German: Ja. English: "
    assert llama(prompt("translation", german), [], german) == expected
    assert llama(prompt("math_reasoning", "1+1?"), [], "1+1?").endswith(
        "1+1? Let's think step by step.\nStep 1:"
    )
    assert llama(prompt("rag", "raw"), [], "raw") == "raw"
    assert llama(CODE, [], "Complete ...") == "def f():"


def test_a_plan_has_the_papers_settings_but_for_what_was_chosen(tmp_path: Path) -> None:
    (tmp_path / DRAFT).write_bytes(b"GGUF")
    given = BenchPlan(methods=("ar",), data=tmp_path)
    plan = paper_plan("vicuna-7b", given, frozenset())
    assert plan.methods[-3:] == ("duo:16", "duo", "auto")
    assert (plan.short_tasks, plan.warm_ups["mt_bench"], plan.warm_ups["qa"]) == ((), 9, 10)
    assert plan.targets == ("hf:lmsys/vicuna-7b-v1.5",)
    assert plan.drafts == (str(tmp_path / DRAFT),)
    assert (plan.limit, plan.max_tokens, plan.sampling.temperature) == (None, 128, 0.0)
    config = plan.config
    assert (config.target_backend, config.dtype, config.device) == ("torch", "bfloat16", "cuda")
    assert config.draft_threads == min(16, len(available_cores()))
    own = BenchPlan(methods=("ar", "duo"), targets=("smollm2",), drafts=("none",), limit=1)
    chosen = frozenset({"methods", "targets", "drafts", "limit"})
    plan = paper_plan("llama-2-7b", own, chosen)
    assert (plan.methods, plan.targets, plan.drafts) == (own.methods, own.targets, own.drafts)
    assert (plan.limit, plan.max_tokens, plan.config.target_backend) == (1, 128, "auto")
    assert plan.short_tasks == ("qa", "rag")
    assert plan.config.draft_device == "cpu"
    assert "every draft model computes on the CPU" in plan.notes()[0]
    with pytest.raises(BadOption, match="choose from: llama-2-7b, vicuna-7b"):
        paper_plan("gpt-2", given, frozenset())


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """What the released repository answers, by file; the pins are those of these files."""
    files: dict[str, Any] = {f"{task}.jsonl": task.encode() for task in TASKS}
    files[DRAFT] = b"GGUF and more"
    asked: list[str] = []

    def urlopen(request: Any, timeout: float) -> Any:
        name = request.full_url.rpartition("/")[2]
        asked.append(name)
        assert "154f0a1f66d28775b90ab7bc0bb8e597118b014c/data/" in request.full_url
        if isinstance(files[name], Exception):
            raise files[name]
        return io.BytesIO(files[name])

    monkeypatch.setenv("DUODEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(paper, "urlopen", urlopen)
    pins = {task: hashlib.sha256(task.encode()).hexdigest() for task in TASKS}
    monkeypatch.setattr(paper, "PROMPTS", pins)
    blob = hashlib.sha1(b"blob 13\0GGUF and more", usedforsecurity=False).hexdigest()
    monkeypatch.setattr(paper, "DRAFT_BLOB", blob)
    return {"files": files, "asked": asked}


def test_prompts_are_fetched_once_checked_and_kept(web: dict[str, Any]) -> None:
    folder = spec_bench(offline=False)
    assert {path.name for path in folder.iterdir()} == {f"{task}.jsonl" for task in TASKS}
    assert len(web["asked"]) == len(TASKS)
    assert spec_bench(offline=True) == folder
    assert spec_bench(offline=False) == folder
    assert len(web["asked"]) == len(TASKS)


def test_the_draft_is_fetched_unless_it_lies_with_the_prompts(
    web: dict[str, Any], tmp_path: Path
) -> None:
    found = paper.draft_file(None, offline=False)
    assert found.read_bytes() == b"GGUF and more"
    (tmp_path / DRAFT).write_bytes(b"own")
    assert paper.draft_file(tmp_path, offline=True) == tmp_path / DRAFT
    assert web["asked"] == [DRAFT]


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (HTTPError("", 404, "gone", {}, io.BytesIO()), DownloadFailed, "HTTP status 404"),  # type: ignore[arg-type]
        (URLError("no route"), DownloadFailed, "no route"),
        (TimeoutError(), DownloadFailed, "TimeoutError"),
        (b"something else", ChecksumMismatch, "not the released file"),
    ],
    ids=["missing", "no network", "slow", "changed"],
)
def test_what_cannot_be_fetched_says_what_to_put_where(
    web: dict[str, Any], fault: Any, kind: type[Exception], words: str
) -> None:
    web["files"]["qa.jsonl"] = fault
    with pytest.raises(kind) as error:
        spec_bench(offline=False)
    assert words in str(error.value)
    assert "--data DuoDecoding/data" in str(error.value)
    assert "\n" not in str(error.value)
    web["files"][DRAFT] = fault
    with pytest.raises(kind, match=f"put {DRAFT} of .* into the folder of --data"):
        paper.draft_file(None, offline=False)
    assert not list(paper.cache_folder().rglob("*.part"))


@pytest.mark.parametrize("name", PAPERS)
def test_offline_one_line_says_what_is_missing(
    name: str, web: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert run(["bench", "--paper", name, "--data", "spec-bench"]) != 0
    error = capsys.readouterr().err
    assert "mt_bench.jsonl is not on this machine" in error or "humaneval.jsonl is not" in error
    assert error.count("\n") == 1
    assert run(["bench", "--paper", name]) != 0
    error = capsys.readouterr().err
    assert f"{DRAFT} is not on this machine" in error
    assert error.count("\n") == 1
    assert run(["bench", "--paper", name, "--draft", "smollm2-draft", "--methods", "ar"]) != 0
    error = capsys.readouterr().err
    assert PAPERS[name].target.removeprefix("hf:") in error or "torch" in error
    assert error.count("\n") == 1


def write_prompts(data: Path) -> None:
    """One prompt a task."""
    data.mkdir()
    for task in TASKS[:-1]:
        line = {"question_id": 1, "category": task, "turns": ["Why is the sky blue?"]}
        if task == "mt_bench":
            line = {"question_id": 1, "category": "writing", "turns": ["Why?", "And then?"]}
        (data / f"{task}.jsonl").write_text(json.dumps(line))
    code = {"task_id": "1", "prompt": "def f():\n", "entry_point": "f", "test": "def check(f): ..."}
    (data / "humaneval.jsonl").write_text(json.dumps(code))


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPERS)
def test_the_scripts_settings_on_tiny_models_fill_the_report(name: str, tmp_path: Path) -> None:
    """The target as a GGUF file, and the same weights in fewer bits as the draft."""
    data, text, store, out = [tmp_path / n for n in ("data", "text", "store", "out")]
    write_prompts(data)
    text.write_text("Why is the sky blue? And then? " * 40)
    target = write_dense(tmp_path / "target.gguf", kind="Q8_0", scale=3.0)
    draft = write_dense(data / DRAFT, kind="Q4_0", scale=3.0)
    assert run(["datastore", "build", "-m", str(target), "-o", str(store), str(text)]) == 0
    arguments = ["bench", "--paper", name, "-m", str(target), "--datastore", str(store), "-q"]
    arguments += ["--data", str(data), "--tasks", "mt_bench,qa", "-n", "40", "-o", str(out)]
    assert run(arguments) == 0

    results = Results.read(out)
    assert tuple(results.methods) == PAPERS[name].methods
    assert results.settings["warm_ups"] == {**dict.fromkeys(TASKS, 10), "mt_bench": 9}
    assert len(results.generations) == 3 * len(results.methods)  # mt_bench has two turns
    assert all(g.identical for g in results.generations)
    assert {g.draft for g in results.generations} == {None, str(draft)}
    num_tokens = {g.task: g.new_tokens for g in results.generations}
    assert num_tokens == {"mt_bench": 40, "qa": 32 if name == "llama-2-7b" else 40}
    duo = f"duo:{PAPERS[name].budget}"
    counted = [sum(g.sequence_histogram) for g in results.generations if g.method == duo]
    assert all(counted)
    report, page = (out / "report.md").read_text(), (out / "report.html").read_text()
    for shown in (report, page.replace("&#39;", "'")):
        assert "Speed-up over ar, every token over the whole time" in shown
        assert "Time to the first token, share of sps:5's (medians)" in shown
        assert "Here sps:5 drafts on the CPU; the paper's, sd, drafts on the GPU" in shown
        assert f"{duo}: first token at " in shown
        assert "The paper's DuoDecoding: 2.61 at most, whole time" in shown
        assert "sequences drafted in a round" in shown

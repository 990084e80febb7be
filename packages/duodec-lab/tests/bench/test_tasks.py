"""Prompts: our own are sound, both public layouts are read, and what is broken is named."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import duodec_lab.bench.tasks
from duodec.errors import BadOption
from duodec_lab.bench.scoring import score_code
from duodec_lab.bench.tasks import (
    SHORT_TASKS,
    TASKS,
    CodeTask,
    Prompt,
    final_number,
    read_prompts,
    tasks_named,
)

CODE = {
    "task_id": "HumanEval/0",
    "prompt": 'def double(n):\n    """Twice n."""\n',
    "entry_point": "double",
    "canonical_solution": "    return 2 * n\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}


def question(number: int, category: str = "qa", **fields: Any) -> dict[str, Any]:
    return {"question_id": number, "category": category, "turns": [f"Question {number}?"], **fields}


def write(path: Path, *items: dict[str, Any]) -> Path:
    """Return the folder of the new file."""
    path.parent.mkdir(exist_ok=True)
    lines = [json.dumps(item, ensure_ascii=False) for item in items]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path.parent


def refusal(folder: Path | None, *tasks: str, limit: int | None = None) -> str:
    """The one line that refuses to read them."""
    with pytest.raises(BadOption) as caught:
        read_prompts(folder, tasks, limit)
    message = str(caught.value)
    assert "\n" not in message
    assert ";" in message, "the remedy is missing"
    return message


# --- our own prompts


@pytest.fixture(scope="module")
def own() -> list[Prompt]:
    return read_prompts(None, TASKS, None)


def test_our_own_set_has_ten_prompts_a_task_at_least(own: list[Prompt]) -> None:
    for task in TASKS:
        assert sum(prompt.task == task for prompt in own) >= 10, task


def test_our_own_ids_and_texts_are_unique(own: list[Prompt]) -> None:
    assert len({prompt.prompt_id for prompt in own}) == len(own)
    assert len({prompt.turns for prompt in own}) == len(own)


def test_only_mt_bench_has_a_second_turn(own: list[Prompt]) -> None:
    assert all(len(p.turns) == (2 if p.task == "mt_bench" else 1) for p in own)


def test_our_own_code_tasks_ask_for_the_function_in_a_block(own: list[Prompt]) -> None:
    for prompt in own:
        assert (prompt.code is not None) == (prompt.task == "humaneval")
        if prompt.code is not None:
            assert f"```python\n{prompt.code.prompt.strip()}\n```" in prompt.turns[0]


def test_our_own_mathematical_references_are_right(own: list[Prompt]) -> None:
    computed = [
        (12 * 8 - 70) / 2,
        375 / (5 * 15 + 2 * 25),
        100 - (2 * 18 + 3 * 18 / 2),
        240 / (15 - 3),
        35 * 8 * 3 / 4 - 90,
        2 * (420 + 420 - 60),
        80 * 0.75 - 12,
        90 + 90 * 1.2 + 90 * 1.2 / 2,
        5 * 24 - 28 * 4,
        2 * 18 + 1.5 * 16,
        6 * 120 * 2.5 / 10 / 15,
        next(3 * s for s in range(1, 99) if 3 * s + 6 == 2 * (s + 6)),
    ]
    references = [p.reference for p in own if p.task == "math_reasoning"]
    assert [float(reference or "nan") for reference in references] == computed


def test_our_own_summaries_are_of_whole_paragraphs(own: list[Prompt]) -> None:
    for prompt in own:
        if prompt.task == "summarization":
            assert 120 <= len(prompt.turns[0].split()) <= 250


def own_code() -> list[dict[str, str]]:
    path = Path(duodec_lab.bench.tasks.__file__).parent / "prompts" / "humaneval.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("item", own_code(), ids=lambda item: item["entry_point"])
def test_our_own_solution_passes_its_test_and_none_fails(item: dict[str, str]) -> None:
    task = CodeTask(item["prompt"], item["entry_point"], item["test"])
    assert score_code(item["canonical_solution"], task)
    assert score_code(f"Here:\n```python\n{item['prompt']}{item['canonical_solution']}```", task)
    assert not score_code("    raise NotImplementedError\n", task)
    assert not score_code("    return None\n", task)


# --- names


def test_no_name_and_all_are_all_tasks_in_the_papers_order() -> None:
    assert tasks_named(None) == tasks_named("all") == tasks_named("qa, all") == list(TASKS)
    assert set(SHORT_TASKS) < set(TASKS)


def test_names_are_put_in_order_once_each() -> None:
    assert tasks_named("rag, qa,rag,") == ["qa", "rag"]


@pytest.mark.parametrize(
    ("names", "hint"),
    [("qa,humanevl", "humaneval"), ("MT-Bench", "mt_bench"), ("summarisation", "summarization")],
)
def test_an_unknown_task_is_answered_with_the_nearest_and_the_list(names: str, hint: str) -> None:
    with pytest.raises(BadOption, match=rf"\(did you mean {hint}\?\)") as caught:
        tasks_named(names)
    assert ", ".join(TASKS) in str(caught.value)


def test_far_from_every_name_nothing_is_guessed() -> None:
    with pytest.raises(BadOption, match="unknown task 'xyz'; choose from: mt_bench"):
        tasks_named("xyz")


@pytest.mark.parametrize("names", ["", " , "])
def test_a_list_without_names_is_refused(names: str) -> None:
    with pytest.raises(BadOption, match="contains no task"):
        tasks_named(names)


# --- layouts


def test_one_file_a_task_is_read(tmp_path: Path) -> None:
    write(tmp_path / "qa.jsonl", question(7, reference=["Answer"]), question(8))
    write(tmp_path / "mt_bench.jsonl", question(1, "writing", turns=["First.", "Second."]))
    write(tmp_path / "HumanEval.jsonl", CODE)
    prompts = read_prompts(tmp_path, ["mt_bench", "qa", "humaneval"], None)
    assert [p.task for p in prompts] == ["mt_bench", "qa", "qa", "humaneval"]
    assert prompts[0] == Prompt("mt_bench", "1", ("First.", "Second."), None, None)
    assert prompts[1] == Prompt("qa", "7", ("Question 7?",), "Answer", None)
    assert prompts[3].prompt_id == "HumanEval/0"
    assert prompts[3].code == CodeTask(CODE["prompt"], "double", CODE["test"])


def test_spec_benchs_own_file_is_told_apart_by_category(tmp_path: Path) -> None:
    styles = ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem"]
    categories = [*styles, "humanities", *TASKS[1:-1]]
    items = [question(number, category) for number, category in enumerate(categories)]
    write(tmp_path / "question.jsonl", *items)
    write(tmp_path / "humaneval.jsonl", CODE)
    prompts = read_prompts(tmp_path, TASKS, None)
    assert [p.task for p in prompts] == ["mt_bench"] * 8 + list(TASKS[1:])


def test_a_tasks_own_file_goes_before_the_common_one(tmp_path: Path) -> None:
    write(tmp_path / "question.jsonl", question(1), question(2, "rag"))
    write(tmp_path / "qa.jsonl", question(3))
    assert [p.prompt_id for p in read_prompts(tmp_path, ["qa", "rag"], None)] == ["3", "2"]


def test_blank_lines_and_a_byte_order_mark_are_skipped(tmp_path: Path) -> None:
    text = f"\ufeff{json.dumps(question(1))}\r\n\r\n  \n{json.dumps(question(2))}"
    (tmp_path / "qa.jsonl").write_bytes(text.encode())
    assert len(read_prompts(tmp_path, ["qa"], None)) == 2


def test_a_text_that_comes_again_is_taken_once(tmp_path: Path) -> None:
    again = question(3, turns=question(1)["turns"])
    write(tmp_path / "qa.jsonl", question(1), question(2), again, question(2))
    assert [p.prompt_id for p in read_prompts(tmp_path, ["qa"], None)] == ["1", "2"]


def test_a_limit_spreads_over_the_file(tmp_path: Path) -> None:
    write(tmp_path / "qa.jsonl", *map(question, range(12)))
    for limit, ids in ((1, "0"), (3, "0 4 8"), (5, "0 2 4 6 8"), (12, None), (99, None)):
        found = " ".join(p.prompt_id for p in read_prompts(tmp_path, ["qa"], limit))
        assert found == (ids or " ".join(map(str, range(12))))


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (None, None),
        ("plain", "plain"),
        ([], None),
        (["one", "two"], "one"),
        ([["1985", "in 1985"]], "1985"),
    ],
)
def test_of_several_references_the_first_is_taken(
    tmp_path: Path, reference: object, expected: str | None
) -> None:
    write(tmp_path / "rag.jsonl", question(1, reference=reference))
    assert read_prompts(tmp_path, ["rag"], None)[0].reference == expected


def test_a_mathematical_reference_is_its_final_number(tmp_path: Path) -> None:
    steps = "She had 3*4=<<3*4=12>>12 and got 1,188 more.\n#### 1,200"
    write(tmp_path / "math_reasoning.jsonl", question(1, reference=[steps]), question(2))
    found = read_prompts(tmp_path, ["math_reasoning"], None)
    assert [p.reference for p in found] == ["1200", None]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It is 42.", "42"),
        ("first 3, then $1,234.50 in all", "1234.50"),
        ("-7", "-7"),
        ("minus is \N{MINUS SIGN}7", "-7"),
        ("a debt of -$7", "-7"),
        ("a debt of $-7", "-7"),
        ("10-3", "3"),
        ("an 18-year-old", "18"),
        ("x=-3", "-3"),
        ("half is .5", ".5"),
        ("12%", "12"),
        ("1, 2, 3", "3"),
        ("#### 42", "42"),
        ("#### 42\nThat took 3 steps.", "42"),
        ("#### **$1,000**", "1000"),
        ("#### 12 hours, or half of 1 day", "12"),
        ("#### Step 2\nSo there are 7.", "7"),
        ("#### 2. Add up\nSo there are 7.", "7"),
        ("no number", None),
        ("", None),
    ],
)
def test_the_final_number_of_a_text(text: str, number: str | None) -> None:
    assert final_number(text) == number


# --- what is broken


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    assert str(tmp_path / "absent") in refusal(tmp_path / "absent", "qa")
    write(tmp_path / "qa.jsonl", question(1))
    assert str(tmp_path / "qa.jsonl") in refusal(tmp_path / "qa.jsonl", "qa")


@pytest.mark.parametrize("task", TASKS)
def test_a_missing_file_is_named(tmp_path: Path, task: str) -> None:
    message = refusal(tmp_path, task)
    assert f"{task}.jsonl" in message
    assert str(tmp_path) in message


def test_humaneval_is_not_looked_for_in_spec_benchs_file(tmp_path: Path) -> None:
    write(tmp_path / "question.jsonl", question(1))
    assert "no humaneval.jsonl" in refusal(tmp_path, "humaneval")


def test_a_file_without_prompts_is_named(tmp_path: Path) -> None:
    (tmp_path / "qa.jsonl").write_text("\n")
    assert f"{tmp_path / 'qa.jsonl'} has no prompt of qa" in refusal(tmp_path, "qa")
    write(tmp_path / "question.jsonl", question(1))
    assert "question.jsonl has no prompt of rag" in refusal(tmp_path, "rag")


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "qa.jsonl").mkdir()
    assert f"{tmp_path / 'qa.jsonl'} cannot be read" in refusal(tmp_path, "qa")


def _without(item: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key != name}


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (b'{"question_id": 1, "turns": ["Why', "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b'{"question_id": ' + b"9" * 5000 + b"}", "is not valid JSON"),
        (b'["Why?"]', "is not a JSON object"),
        (b'{"question_id": 1, "turns": ["\xff\xfe"]}', "is not valid UTF-8"),
        (rb'{"question_id": 1, "turns": ["\ud83d"]}', "is not valid UTF-8"),
        (_without(question(1), "question_id"), "needs 'question_id'"),
        (question(1, question_id=True), "needs 'question_id'"),
        (question(1, question_id=""), "needs 'question_id'"),
        (_without(question(1), "turns"), "needs 'turns'"),
        (question(1, turns="Why?"), "needs 'turns'"),
        (question(1, turns=[]), "needs 'turns'"),
        (question(1, turns=["Why?", 5]), "needs 'turns'"),
        (question(1, turns=["Why?", " "]), "needs 'turns'"),
        (question(1, reference=5), "'reference'"),
        (question(1, reference=[{}]), "'reference'"),
        (question(0), "has the id '0' of an earlier line"),
    ],
)
def test_a_broken_line_is_named_with_its_number(
    tmp_path: Path, line: bytes | dict[str, Any], cause: str
) -> None:
    text = line if isinstance(line, bytes) else json.dumps(line).encode()
    first = json.dumps(question(0, turns=["Zero?"])).encode()
    (tmp_path / "qa.jsonl").write_bytes(first + b"\n\n" + text + b"\n")
    message = refusal(tmp_path, "qa", limit=1)
    assert message.startswith(f"{tmp_path / 'qa.jsonl'}, line 3 ")
    assert cause in message


@pytest.mark.parametrize("reference", ["none", ["about a dozen"]])
def test_a_mathematical_reference_without_a_number_is_refused(
    tmp_path: Path, reference: object
) -> None:
    write(tmp_path / "math_reasoning.jsonl", question(1, reference=reference))
    assert "line 1 has a 'reference' without a number" in refusal(tmp_path, "math_reasoning")


@pytest.mark.parametrize("name", ["task_id", "prompt", "entry_point", "test"])
@pytest.mark.parametrize("value", [None, 5, ""])
def test_a_code_task_needs_its_fields(tmp_path: Path, name: str, value: object) -> None:
    write(tmp_path / "humaneval.jsonl", {**CODE, name: value})
    assert f"line 1 needs '{name}'" in refusal(tmp_path, "humaneval")
    write(tmp_path / "humaneval.jsonl", _without(CODE, name))
    assert f"line 1 needs '{name}'" in refusal(tmp_path, "humaneval")


def test_a_code_task_defines_its_entry_point(tmp_path: Path) -> None:
    write(tmp_path / "humaneval.jsonl", CODE, {**CODE, "entry_point": "treble"})
    assert "line 2 has a 'prompt' that does not define 'treble'" in refusal(tmp_path, "humaneval")


@pytest.mark.parametrize(
    ("item", "cause"),
    [
        (question(2, "poetry"), "has the unknown category 'poetry'"),
        (_without(question(2), "category"), "needs 'category'"),
    ],
)
def test_in_spec_benchs_file_every_line_has_a_category(
    tmp_path: Path, item: dict[str, Any], cause: str
) -> None:
    write(tmp_path / "question.jsonl", question(1), item)
    assert f"{tmp_path / 'question.jsonl'}, line 2 {cause}" in refusal(tmp_path, "qa")


@pytest.mark.parametrize("limit", [0, -3])
def test_a_limit_leaves_one_prompt_at_least(limit: int) -> None:
    assert str(limit) in refusal(None, "qa", limit=limit)


# --- the public files, if present


@pytest.fixture(scope="module")
def public_folder() -> Path:
    folder = os.environ.get("DUODEC_SPEC_BENCH")
    if not folder:
        pytest.skip("DUODEC_SPEC_BENCH does not name a folder with the public prompts")
    return Path(folder)


def test_the_public_prompts_are_read(public_folder: Path) -> None:
    prompts = read_prompts(public_folder, TASKS, None)
    for task in TASKS:
        of_task = [prompt for prompt in prompts if prompt.task == task]
        assert len(of_task) >= 40, task
        assert len(read_prompts(public_folder, [task], 10)) == 10
        assert all((p.code is not None) == (task == "humaneval") for p in of_task)
        assert all(len(p.turns) == (2 if task == "mt_bench" else 1) for p in of_task)
        if task == "math_reasoning":
            assert all(p.reference for p in of_task)


def test_every_public_solution_passes_its_test(public_folder: Path) -> None:
    path = next(p for p in public_folder.iterdir() if p.name.lower() == "humaneval.jsonl")
    solutions = {
        item["task_id"]: item["canonical_solution"]
        for item in map(json.loads, path.read_text("utf-8").splitlines())
    }
    for prompt in read_prompts(public_folder, ["humaneval"], None):
        assert prompt.code is not None
        assert score_code(solutions[prompt.prompt_id], prompt.code), prompt.prompt_id

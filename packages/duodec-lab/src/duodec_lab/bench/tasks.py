"""Read prompts of the seven tasks of the DuoDecoding paper (arXiv 2503.00784).

A folder of prompts is in Spec-Bench's public format: one JSON object a line, with
``question_id``, ``turns`` and sometimes ``reference``, in one ``<task>.jsonl`` a task or in
Spec-Bench's own ``question.jsonl``, where ``category`` names the task. HumanEval is another file in
the folder, in OpenAI's format. Our own prompts, in ``prompts`` beside this file, are such a
folder, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from duodec.errors import BadOption

TASKS = (
    "mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag", "humaneval",
)  # fmt: skip
SHORT_TASKS = ("qa", "rag")
SHORT_TOKENS = 32  # the paper's longest completion of these tasks

_OWN = Path(__file__).parent / "prompts"
_TOGETHER = "question.jsonl"  # Spec-Bench's six tasks in one file
_MT_BENCH = (
    "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities",
)  # fmt: skip
_TASK_OF = {**dict.fromkeys(_MT_BENCH, "mt_bench"), **{task: task for task in TASKS[:-1]}}

_COMPLETE = (
    "Complete this Python function. Answer with the whole function, with the imports that it "
    "needs, in one code block.\n\n```python\n{}\n```"
)
_DIGITS = r"(?:(?<![\w)])-)?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
_NUMBER = re.compile(_DIGITS)
_MARKED = re.compile(rf"####[ \t*]*({_DIGITS})(?!\d|[.):]+[ \t]*\w)")  # no heading "#### 1. Add"


@dataclass(frozen=True)
class CodeTask:
    """A function to complete, and the definition of ``check(candidate)``, which judges it."""

    prompt: str  # ends with the signature and docstring of `entry_point`
    entry_point: str
    test: str


@dataclass(frozen=True)
class Prompt:
    """A conversation's user turns; each follows the completion of the one before."""

    task: str
    prompt_id: str  # unique in the task
    turns: tuple[str, ...]
    reference: str | None  # the first of several; in math_reasoning a number
    code: CodeTask | None  # of humaneval


Parse = Callable[[str, dict[str, Any]], Prompt | None]  # None: a prompt of another task


def tasks_named(names: str | None) -> list[str]:
    """The tasks of a list such as ``qa,rag``, in the order of TASKS; all for None and ``all``.
    Raises BadOption, which lists them."""
    wanted = {name.strip() for name in ("all" if names is None else names).split(",")} - {""}
    for name in sorted(wanted - {*TASKS, "all"}):
        near = get_close_matches(name.lower(), TASKS, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise BadOption(f"unknown task '{name}'{hint}; choose from: {', '.join(TASKS)}")
    if not wanted:
        raise BadOption(f"'{names}' contains no task; choose from: {', '.join(TASKS)}")
    return [task for task in TASKS if task in wanted or "all" in wanted]


def read_prompts(folder: Path | None, tasks: Sequence[str], limit: int | None) -> list[Prompt]:
    """The prompts of ``tasks``, each text once; with a limit, at most that many a task, spread over
    its file. Our own prompts if ``folder`` is None. Raises BadOption, which names file and line."""
    if limit is not None and limit < 1:
        raise BadOption(f"a limit of {limit} leaves no prompt; give 1 or more prompts a task")
    folder = _OWN if folder is None else folder
    try:
        files = {path.name.lower(): path for path in sorted(folder.iterdir())}
    except OSError as error:
        raise BadOption(
            f"{folder} cannot be read ({error.strerror}); name a folder with one JSONL file a task"
        ) from error
    prompts: list[Prompt] = []
    for task in tasks:
        found = _read_task(task, files, folder)
        step = max(1, len(found) // limit) if limit else 1
        prompts += found[::step][:limit]
    return prompts


def final_number(text: str) -> str | None:
    """The last number of a text; one that follows ``####``, GSM8K's marker, takes precedence.
    Commas and currency signs are left out. None if there is no number."""
    text = text.replace("\N{MINUS SIGN}", "-").replace("$", "")
    numbers: list[str] = _MARKED.findall(text) or _NUMBER.findall(text)
    return numbers[-1].replace(",", "") if numbers else None


def _read_task(task: str, files: Mapping[str, Path], folder: Path) -> list[Prompt]:
    """One task's prompts, each text once."""
    if path := files.get(f"{task}.jsonl"):
        found = _read_lines(path, task, _code_prompt if task == "humaneval" else _chat_prompt)
    elif task != "humaneval" and (path := files.get(_TOGETHER)):
        found = _read_lines(path, task, _prompt_of_category)
    else:
        raise BadOption(f"{folder} has no {task}.jsonl; add the file, or leave out the task")
    if not found:
        raise BadOption(f"{path} has no prompt of {task}; add one, or leave out the task")
    return found


def _read_lines(path: Path, task: str, parse: Parse) -> list[Prompt]:
    prompts: dict[tuple[str, ...], Prompt] = {}
    ids: set[str] = set()
    for number, line in enumerate(_lines(path), 1):
        try:
            prompt = parse(task, _json_object(line)) if line.strip() else None
            if prompt is None or prompt.turns in prompts:
                continue
            if prompt.prompt_id in ids:
                raise ValueError(f"has the id {prompt.prompt_id!r} of an earlier line")
        except ValueError as error:
            raise BadOption(f"{path}, line {number} {error}; fix the line or remove it") from error
        ids.add(prompt.prompt_id)
        prompts[prompt.turns] = prompt
    return list(prompts.values())


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            yield from file
    except OSError as error:
        raise BadOption(
            f"{path} cannot be read ({error.strerror}); make it a readable file"
        ) from error


def _json_object(line: bytes) -> dict[str, Any]:
    try:
        item = json.loads(line.decode("utf-8-sig"))
        json.dumps(item, ensure_ascii=False).encode()  # an escape may be half a character
    except UnicodeError as error:
        raise ValueError("is not valid UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not valid JSON ({getattr(error, 'msg', error)})") from error
    if not isinstance(item, dict):
        raise ValueError("is not a JSON object")
    return item


def _prompt_of_category(task: str, item: dict[str, Any]) -> Prompt | None:
    category = _text(item, "category")
    if category not in _TASK_OF:
        raise ValueError(f"has the unknown category {category!r}")
    return _chat_prompt(task, item) if _TASK_OF[category] == task else None


def _chat_prompt(task: str, item: dict[str, Any]) -> Prompt:
    number = item.get("question_id")
    prompt_id = str(number) if type(number) is int else _text(item, "question_id")
    turns = item.get("turns")
    if not (isinstance(turns, list) and turns and all(map(_is_text, turns))):
        raise ValueError("needs 'turns', a list of texts")
    reference = _reference(item.get("reference"))
    if task == "math_reasoning" and reference is not None:
        reference = final_number(reference)
        if reference is None:
            raise ValueError("has a 'reference' without a number")
    return Prompt(task, prompt_id, tuple(turns), reference, None)


def _code_prompt(task: str, item: dict[str, Any]) -> Prompt:
    """A function to complete, as a prompt for a chat model."""
    prompt_id = _text(item, "task_id")
    code = CodeTask(*(_text(item, name) for name in ("prompt", "entry_point", "test")))
    if f"def {code.entry_point}(" not in code.prompt:
        raise ValueError(f"has a 'prompt' that does not define {code.entry_point!r}")
    return Prompt(task, prompt_id, (_COMPLETE.format(code.prompt.strip("\n")),), None, code)


def _reference(value: object) -> str | None:
    """The first text of a reference. Spec-Bench's are lists, in rag of lists of wordings."""
    while isinstance(value, list):
        value = value[0] if value else None
    if value is None or isinstance(value, str):
        return value
    raise ValueError("has a 'reference' that is neither text nor a list of texts")


def _text(item: dict[str, Any], name: str) -> str:
    value = item.get(name)
    if not _is_text(value):
        raise ValueError(f"needs '{name}', a text")
    return str(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())

"""Prompts of the seven tasks: a folder in Spec-Bench's format, or a few of our own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from duodec.errors import BadOption

TASKS = (
    "mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag", "humaneval",
)  # fmt: skip


@dataclass(frozen=True)
class TaskPrompt:
    """One prompt; of several turns, the first."""

    task: str
    prompt_id: str
    text: str


def read_prompts(folder: Path | None, limit: int) -> list[TaskPrompt]:
    """Up to ``limit`` prompts a task, evenly spread over the task's file; without a folder,
    our own. Raises BadOption, which names the file and the line."""
    prompts: list[TaskPrompt] = []
    for task in TASKS:
        if folder is None:
            texts = [(str(i), text) for i, text in enumerate(_OWN[task])]
        else:
            texts = _read_task(folder / f"{task}.jsonl")
        step = max(1, len(texts) // limit)
        prompts += [TaskPrompt(task, name, text) for name, text in texts[::step][:limit]]
    return prompts


def _read_task(path: Path) -> list[tuple[str, str]]:
    if not path.is_file():
        raise BadOption(f"{path} is missing; name a folder with one JSONL file a task by --data")
    texts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            item = json.loads(line)
            name = str(item.get("question_id", item.get("task_id")))
            texts.append((name, item["turns"][0] if "turns" in item else item["prompt"]))
        except (ValueError, KeyError, IndexError) as error:
            raise BadOption(
                f"{path}, line {number} is broken ({error}); mend or remove it"
            ) from error
    return texts


_OWN: dict[str, tuple[str, ...]] = {
    "mt_bench": (
        "Write a short, friendly invitation to a neighbourhood street party in July.",
        "Give me three arguments for and three against working from home.",
    ),
    "translation": (
        "Translate German to English: Der Zug nach Hamburg hat heute zwanzig Minuten Verspätung.",
        "Translate German to English: Nach dem Regen roch der ganze Garten nach Erde und Minze.",
    ),
    "summarization": (
        "Summarize: The town council met on Tuesday to discuss the old bridge. Engineers had found "
        "cracks in two of its pillars. After three hours of debate the members agreed to close it "
        "to lorries at once, to repair the pillars in spring, and to ask the region for half of "
        "the money. Cyclists and walkers may still cross.",
        "Summarize: A team of biologists followed forty tagged swifts for two years. The birds "
        "stayed in the air for up to ten months without landing, sleeping and eating in flight. "
        "Young birds flew even longer than adults before they first touched the ground to nest.",
    ),
    "qa": (
        "What is the capital of Australia?",
        "Who wrote the novel Frankenstein?",
    ),
    "math_reasoning": (
        "A baker makes 12 trays of 8 rolls. She sells 70 rolls. How many are left?",
        "Tom reads 15 pages a day. His book has 240 pages. How many days does he need?",
    ),
    "rag": (
        "Context: The lighthouse of Skerry was lit in 1847 and burned rapeseed oil until 1903, "
        "when it was changed to paraffin. It has been automatic since 1988. Question: What did "
        "the lighthouse burn first? Answer from the context.",
        "Context: The library opens at nine on weekdays and at ten on Saturdays. It is closed on "
        "Sundays and on public holidays. Question: When does it open on a Saturday? Answer from "
        "the context.",
    ),
    "humaneval": (
        'def running_maximum(numbers: list[int]) -> list[int]:\n    """The largest number so far, '
        'at each place.\n    >>> running_maximum([1, 3, 2])\n    [1, 3, 3]\n    """\n',
        'def count_vowels(text: str) -> int:\n    """How many vowels a text has.\n'
        '    >>> count_vowels("banana")\n    3\n    """\n',
    ),
}

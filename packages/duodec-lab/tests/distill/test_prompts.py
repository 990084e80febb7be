"""Prompts: ours, those in users' files, and what is no prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from duodec.errors import BadOption
from duodec_lab.bench.tasks import TASKS, read_prompts
from duodec_lab.distill.prompts.builtin import conversations
from duodec_lab.distill.prompts.collect import collect


def test_our_prompts_are_many_and_none_is_the_benchmarks() -> None:
    ours = [turn for turns in conversations() for turn in turns]
    assert len(set(ours)) > 300
    theirs = [turn for prompt in read_prompts(None, TASKS, None) for turn in prompt.turns]
    assert theirs
    for turn in set(ours):
        assert not any(turn in other or other in turn for other in theirs), turn


def test_the_order_is_the_seeds_and_some_are_held_out() -> None:
    one, same, other = (collect((), 50, seed) for seed in (1, 1, 2))
    assert one == same
    assert one.digest == same.digest != other.digest
    assert len(one.conversations) == 50
    assert one.num_held_out == 3


def test_files_hold_chats_or_a_prompt_a_paragraph(tmp_path: Path) -> None:
    chats = tmp_path / "chats.jsonl"
    asked = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is tea?"},
        {"role": "assistant", "content": "Leaves in water."},
        {"role": "user", "content": "And coffee?"},
        {"role": "assistant", "content": "Beans in water."},
    ]
    lines = [{"messages": asked}, {"turns": ["One?", "Two?"]}, {"text": "Three?\n\nFour?"}]
    chats.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "more.txt").write_text("Five\nin two lines?\n\n\nSix?\n")
    found = collect([chats, tmp_path / "more.txt"], None, 0)
    turns = {conversation.turns for conversation in found.conversations}
    assert turns == {("What is tea?", "And coffee?"), ("One?", "Two?"), ("Three?",), ("Four?",),
                     ("Five\nin two lines?",), ("Six?",)}  # fmt: skip
    chat = next(c for c in found.conversations if c.turns[0] == "What is tea?")
    assert chat.messages == tuple(asked[:4]), "what comes after the last question teaches nothing"


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("empty.txt", b" \n\n", "holds no prompt"),
        ("picture.png", b"\x89PNG\0\0", "is not UTF-8 text"),
        ("latin.txt", b"Gr\xfc\xdfe aus K\xf6ln", "is not UTF-8 text"),
        ("broken.jsonl", b'{"messages": [', "line 1: broken JSON"),
        ("few.txt", b"One?\n\nTwo?", "holds 2 prompts, and 4 are the least"),
    ],
)
def test_what_holds_no_prompts_is_one_line(
    tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadOption, match=words) as error:
        collect([tmp_path / name], None, 0)
    assert name in str(error.value)
    with pytest.raises(BadOption, match=r"cannot read .*missing"):
        collect([tmp_path / "missing"], None, 0)

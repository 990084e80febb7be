"""Prompts that a target writes itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from duodec import LLM, SamplingParams
from duodec.errors import BadOption
from duodec_lab.distill.files import Folder
from duodec_lab.distill.prompts.magpie import Written, around_a_message, write_prompts


@dataclass
class Writer:
    """A target whose messages are numbers; every third one has no end."""

    loaded: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(num_slots=2))
    prompts: list[list[int]] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)

    def tokens_of(self, messages: Sequence[dict[str, str]]) -> list[int]:
        return [1, 2, *map(ord, messages[0]["content"]), 3, 4]

    def generate(
        self, prompts: list[list[int]], params: list[SamplingParams], *, method: str
    ) -> Iterator[Any]:
        assert method == "ar"
        self.prompts += prompts
        self.params += params
        for one in params:
            assert one.seed is not None
            reason = "length" if one.seed % 3 == 0 else "stop"
            text = "short" if one.seed % 7 == 0 else f" message {one.seed // 2} \n"
            yield SimpleNamespace(text=text, finish_reason=reason)


def written(writer: object, folder: Path, number: int, **options: Any) -> Written:
    given = {"most_s": math.inf, "on_progress": lambda *_: None} | options
    return write_prompts(cast("LLM", writer), number, 1, Folder(folder), **given)


def test_whole_messages_are_kept_once(tmp_path: Path) -> None:
    writer = Writer()
    found = written(writer, tmp_path, 12)
    expected = [n // 2 for n in range(1, 1 + found.num_sampled) if n % 3 and n % 7]
    assert found.messages == [f"message {n}" for n in dict.fromkeys(expected)][:12]
    assert all(prompt == [1, 2] for prompt in writer.prompts)
    assert all(list(params.stop_token_ids) == [3] for params in writer.params)
    assert len({params.seed for params in writer.params}) == found.num_sampled


def test_fewer_come_where_a_target_repeats_itself_or_time_is_short(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    same = Writer()
    same.generate = lambda prompts, *_, **__: iter(  # type: ignore[method-assign]
        [SimpleNamespace(text="the same message", finish_reason="stop") for _ in prompts]
    )
    found = written(same, tmp_path / "a", 10)
    assert (found.messages, found.num_sampled) == (["the same message"], 40)
    seconds = iter(range(100))
    found = written(Writer(), tmp_path, 1000, most_s=3.0, clock=lambda: float(next(seconds)))
    assert (found.num_sampled, found.seconds) == (3 * 8, 3.0)


def test_an_interrupted_run_goes_on_to_the_same_messages(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    whole = written(Writer(), tmp_path / "whole", 30)

    def stop(words: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            written(Writer(), tmp_path, 30, on_progress=stop)
    again = Writer()
    assert written(again, tmp_path, 30).messages == whole.messages
    assert again.params[0].seed == 1 + 2 * 8, "no batch is sampled twice"


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "prompts.json").write_text('{"messages": [], "other": 1}')
    with pytest.raises(BadOption, match=r"prompts\.json is damaged; delete it"):
        written(Writer(), tmp_path, 4)


def test_a_template_that_begins_with_the_message_is_refused(tmp_path: Path) -> None:
    writer = Writer()
    writer.tokens_of = lambda messages: [*map(ord, messages[0]["content"]), 3]  # type: ignore[method-assign]
    with pytest.raises(BadOption, match="puts nothing before a user's message"):
        written(writer, tmp_path, 4)


@pytest.mark.slow
def test_a_chat_model_writes_what_users_say(tmp_path: Path) -> None:
    with LLM.load(draft=None, num_slots=2, context=512) as llm:
        before, after = around_a_message(llm)
        whole = llm.tokens_of([{"role": "user", "content": "Why is the sky blue?"}])
        assert whole[: len(before)] == before
        assert whole[-len(after) :] == after
        assert llm.decode(whole[len(before) : -len(after)]) == "Why is the sky blue?"
        found = written(llm, tmp_path, 4)
    assert len(found.messages) == 4
    assert all(len(message.split()) > 1 for message in found.messages)
    assert not any("<|" in message for message in found.messages)

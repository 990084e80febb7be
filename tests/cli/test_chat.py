"""`duodec chat`: messages, slash commands, interruption and the terminal, on table models."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import termios
from collections.abc import Sequence
from pathlib import Path

import pytest
from fakes.command_line import Cli
from fakes.decoding import Letters

from duodec.cli import app
from duodec.cli.commands import chat


def talk(cli: Cli, *lines: str, arguments: Sequence[str] = ()) -> tuple[str, str]:
    status, out, err = cli(
        "chat", "-n", "12", "--seed", "1", *arguments, stdin="\n".join(lines) + "\n"
    )
    assert status == 0
    assert "Traceback" not in err
    return out, err


def test_every_answer_sees_what_was_said_before(cli: Cli, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    talk(cli, "hello", "", "again", f"/save {saved}", "/bye", "never said")
    messages = json.loads(saved.read_text())["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user", "assistant"]
    assert [m["content"] for m in messages[::2]] == ["hello", "again"]
    one, _ = talk(cli, f"/load {saved}", "more")
    two, _ = talk(cli, "hello", "again", "more")
    assert two.endswith(one)


def test_a_message_of_several_lines(cli: Cli, tmp_path: Path) -> None:
    saved, other = tmp_path / "talk.json", tmp_path / "text.txt"
    other.write_text("from a file")
    talk(cli, '"""one', "two", 'three"""', '"""four"""', f"/read {other}", "five", f"/save {saved}")
    said = [m["content"] for m in json.loads(saved.read_text())["messages"][::2]]
    assert said == ["one\ntwo\nthree", "four", "from a file\n\nfive"]


def test_settings(cli: Cli) -> None:
    _, err = talk(
        cli, "/set parameter temp 0.5", "/set seed 9", "/set method sps", "/set top_k 5",
        '/set system "be brief"', "/set max_tokens 3", "/show", "/set temperature -1",
        "/set temprature 1", "/set grammar x", "/set method dou", "/set top_k x", "/draft off",
        "/show",
    )  # fmt: skip
    assert "temperature 0.5, top_k 5" in err
    assert "seed 9" in err
    assert "system be brief" in err
    assert "method sps" in err
    assert "method ar" in err
    assert "temperature is -1.0; use 0 (greedy) or more" in err
    assert "did you mean temperature?" in err
    assert "did you mean duo?" in err
    assert "unknown setting grammar" in err
    assert "top_k is 'x'; write a number" in err


def test_regeneration_takes_another_choice(cli: Cli) -> None:
    out, err = talk(cli, "hello", "/regen", "/stats", arguments=["--temperature", "2"])
    assert "tokens a forward pass" in err
    alone, _ = talk(cli, "hello", arguments=["--temperature", "2"])
    assert out.startswith(alone)
    assert out != alone + alone


def test_the_same_choice_again_is_announced(cli: Cli) -> None:
    _, err = talk(cli, "hello", "/regen")
    assert "temperature is 0" in err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/hlep", "did you mean /help?"),
        ("/xyzzy", "/? lists the commands"),
        ("/regen", "send a message first"),
        ("/stats", "there is no response yet"),
        ("/draft maybe", "use /draft on or /draft off"),
        ("/load /nowhere", "cannot read /nowhere"),
        ("/load", "which file?"),
        ("/save /nowhere/x", "cannot write /nowhere/x"),
        ("/help", "/regen"),
        ("/clear", "cleared"),
    ],
)
def test_a_slash_command_answers_on_stderr(cli: Cli, line: str, words: str) -> None:
    out, err = talk(cli, line)
    assert words in err
    assert out == ""


def test_the_last_message_is_taken_back(cli: Cli, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    _, err = talk(cli, "hello", "again", "/undo", f"/save {saved}", "/undo", "/undo")
    assert [m["content"] for m in json.loads(saved.read_text())["messages"][::2]] == ["hello"]
    assert "taken back: again" in err
    assert "there is no message to take back" in err


def test_the_model_is_exchanged_and_the_conversation_goes_on(cli: Cli, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    _, err = talk(
        cli, "hello", "/model", "/model smolm2", "again", "/model smollm2-draft", "more", "/show",
        f"/save {saved}",
    )  # fmt: skip
    assert [config.target for config in cli.configs] == ["smollm2", "smollm2-draft"]
    assert "did you mean smollm2" in err
    assert "smollm2 stays" in err
    assert "target smollm2-draft" in err
    assert len(json.loads(saved.read_text())["messages"]) == 6


def test_a_base_model_is_refused_at_the_start_and_goes_on_raw(cli: Cli) -> None:
    cli.tokenizer = Letters(chat_template=None)
    status, out, err = cli("chat", stdin="hello\n")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "smollm2 has no chat template" in err
    assert "--raw" in err
    out, _ = talk(cli, "hello", arguments=["--raw"])
    plain = ("generate", "hello", "--raw", "-n", "12", "--seed", "1", "-q")
    assert out == cli(*plain)[1]


def test_drafting_that_is_switched_on_again_is_the_default(cli: Cli) -> None:
    _, err = talk(cli, "/show", "/draft off", "/show", "/draft on", "/show")
    assert re.findall(r"method (\w+)", err) == ["auto", "ar", "auto"]


def test_without_a_draft_none_can_be_switched_on(cli: Cli) -> None:
    _, err = talk(cli, "/draft on", "/set method sps", arguments=["--draft", "none"])
    assert err.count("start the chat with --draft") == 2


def test_a_full_context_offers_to_clear(cli: Cli) -> None:
    out, err = talk(cli, "hello", "a" * 60, "/clear", "hello", arguments=["-c", "40", "-n", "400"])
    assert err.count("/clear forgets the conversation") == 3
    first, second = out[: len(out) // 2], out[len(out) // 2 :]
    assert first == second


def test_an_answer_that_was_cut_off_says_so(cli: Cli) -> None:
    _, err = talk(cli, "hello")
    assert "cut off at max_tokens 12; /set max_tokens none lifts the limit" in err


def test_interruption_stops_the_answer_and_not_the_chat(cli: Cli, tmp_path: Path) -> None:
    saved = tmp_path / "talk.json"
    cli.on_forward = lambda number: os.kill(os.getpid(), signal.SIGINT) if number == 5 else None
    _, err = talk(cli, "hello", "again", f"/save {saved}", arguments=["-n", "40"])
    assert "interrupted" in err
    answers = [m["content"] for m in json.loads(saved.read_text())["messages"][1::2]]
    assert 0 < len(answers[0]) < 40
    assert len(answers[1]) == 40


def test_an_open_message_ends_with_the_input(cli: Cli) -> None:
    lines = iter(['"""one', "two"])

    def read(prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    assert chat._message(read) == "one\ntwo"


def test_keys_typed_while_an_answer_streams_stay_out_of_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not echoed, and are there for the next message."""
    ours, terminal = os.openpty()
    before = termios.tcgetattr(terminal)
    lines = ["hello"]
    with os.fdopen(terminal) as stdin, os.fdopen(ours, "r+b", buffering=0) as keyboard:

        def read(prompt: str) -> str:
            assert termios.tcgetattr(stdin) == before, "the next message is typed as ever"
            return lines.pop() if lines else stdin.readline()

        def type_something(number: int) -> None:
            if number == 3:
                keyboard.write(b"/bye\n")
                assert select.select([stdin], [], [], 60)[0], "the terminal has no line"

        monkeypatch.setattr(chat, "terminal_reader", lambda: read)
        monkeypatch.setattr(sys, "stdin", stdin)
        cli.on_forward = type_something
        assert app.run(["chat", "-n", "12", "--method", "ar"]) == 0
        assert not select.select([keyboard], [], [], 0)[0], "something was echoed"

"""`duodec generate`: text, record, prompts, seeds, drafts and interruption, on table models."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from fakes.command_line import ANSI, Cli, duodec

from duodec.methods.registry import METHODS


def test_text_goes_to_stdout_and_everything_else_to_stderr(cli: Cli) -> None:
    text = str(cli.answer("--seed", "1")["text"])
    status, out, err = cli("generate", "hello", "--seed", "1")
    assert (status, out) == (0, text + "\n")
    assert "256 tokens at" in err
    assert "auto with smollm2-draft" in err
    assert "plain decoding" in err
    assert not ANSI.search(out + err)


def test_the_record_has_exactly_the_fields_of_the_contract(cli: Cli) -> None:
    record = cli.answer("--seed", "7", "-n", "20")
    assert list(record) == [
        "text", "tokens", "method", "target", "draft", "seed", "finish_reason", "stats",
    ]  # fmt: skip
    assert list(record["stats"]) == [  # type: ignore[call-overload]
        "prompt_tokens", "new_tokens", "ttft_s", "decode_s", "tokens_per_second", "rounds",
        "mean_accepted", "acceptance_histogram", "draft_tokens", "accepted_tokens", "overlap",
        "near_ties", "drafter_restarts",
    ]  # fmt: skip
    assert (record["target"], record["draft"], record["method"]) == (
        "smollm2", "smollm2-draft", "auto",
    )  # fmt: skip
    assert (record["seed"], record["finish_reason"]) == (7, "length")


def test_what_is_no_number_is_null(cli: Cli) -> None:
    stats = cli.answer("-n", "1")["stats"]
    assert stats["tokens_per_second"] is None  # type: ignore[index]


@pytest.mark.parametrize(
    "method",
    [n for n, kind in METHODS.items() if n != "sps-rejection" and not kind.needs_heads],
)
def test_one_seed_gives_one_text(cli: Cli, method: str) -> None:
    arguments = ("--seed", "3", "--temperature", "0.8", "--top-p", "0.9", "-n", "60")
    record = cli.answer(*arguments, "--method", method)
    assert record["tokens"] == cli.answer(*arguments, "--method", "ar")["tokens"]
    assert record["method"] == method


def test_a_random_seed_is_taken_and_reported(cli: Cli) -> None:
    first, second = cli.answer("-n", "2"), cli.answer("-n", "2")
    assert first["seed"] != second["seed"]
    _, _, err = cli("generate", "hello", "-n", "5")
    assert re.search(r"seed \d+", err)


@pytest.mark.parametrize("method", ["ar", "lookup"])
def test_a_method_without_a_draft_model_loads_none(cli: Cli, method: str) -> None:
    assert cli.answer("--method", method)["draft"] is None
    assert cli.configs[-1].draft is None
    _, _, err = cli("generate", "hello", "--method", method, "--draft", "smollm2-draft", "-q")
    assert err.count("\n") == 1
    assert "is not loaded" in err


def test_without_a_draft_the_default_drafts_from_earlier_text_only(cli: Cli) -> None:
    record = cli.answer("--draft", "none", "--seed", "1")
    assert (record["method"], record["draft"]) == ("auto", None)
    assert record["text"] == cli.answer("--method", "ar", "--seed", "1")["text"]


def test_a_draft_that_is_named_is_used_where_it_pays(cli: Cli) -> None:
    """Like any other: nothing is slower for it than plain decoding."""
    record = cli.answer("--draft", "smollm2-draft", "--seed", "1")
    assert (record["method"], record["draft"]) == ("auto", "smollm2-draft")


@pytest.mark.slow
def test_a_draft_with_one_unequal_token_drafts(bad_files: Path) -> None:
    arguments = ("generate", "--raw", "A b c d", "--max-tokens", "12", "--threads", "1", "--json")
    texts = {
        json.loads(duodec(*arguments, *draft).stdout.splitlines()[-1])["text"]
        for draft in (("--method", "ar"), ("--draft", str(bad_files / "renamed.gguf")))
    }
    assert len(texts) == 1


def test_the_prompt_comes_from_standard_input(cli: Cli) -> None:
    record = cli.answer("--seed", "1")
    status, out, _ = cli("generate", "--seed", "1", stdin="hello\n")
    assert (status, out) == (0, f"{record['text']}\n")


def test_raw_text_is_continued_without_the_template(cli: Cli) -> None:
    assert cli.answer("--raw")["stats"]["prompt_tokens"] == len("hello")  # type: ignore[index]
    assert cli.answer()["stats"]["prompt_tokens"] == len("uhelloa")  # type: ignore[index]
    with_system = cli.answer("--system", "be")
    assert with_system["stats"]["prompt_tokens"] == len("sbeuhelloa")  # type: ignore[index]


def test_a_file_and_an_option_are_prompts_too(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "question.txt"
    file.write_text("hello\n")
    _, plain, _ = cli("generate", "hello", "--seed", "1")
    for arguments in (["-p", "hello"], ["-f", str(file)], ["--prompt", "hello"]):
        assert cli("generate", *arguments, "--seed", "1")[1] == plain
    _, both, _ = cli("generate", "-f", str(file), "-p", "again", "--seed", "1")
    assert both == cli("generate", "hello\n\nagain", "--seed", "1")[1] != plain
    for arguments, words in (
        (["hello", "-p", "again"], "leave one out"),
        (["-f", "/nowhere"], "cannot read /nowhere (No such file or directory)"),
    ):
        status, out, err = cli("generate", *arguments)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert words in err


def test_a_stop_text_ends_the_answer(cli: Cli) -> None:
    whole = str(cli.answer()["text"])
    cut = cli.answer("--stop", whole[10:13])
    assert cut["text"] == whole[: whole.find(whole[10:13])]
    assert cut["finish_reason"] == "stop"


def test_other_programs_spellings_are_understood(cli: Cli) -> None:
    cli.answer("--model", "smollm2", "--ctx-size", "300", "-ngl", "0", "-td", "1",
               "--max-new-tokens", "3")  # fmt: skip
    config = cli.configs[-1]
    assert (config.context, config.gpu_layers, config.draft_threads) == (300, 0, 1)


def test_the_drafts_window_is_bounded_below(cli: Cli) -> None:
    cli.answer("--draft-window", "512")
    assert cli.configs[-1].draft_window == 512
    for command in (["generate", "hello"], ["chat"], ["serve"], ["bench"]):
        code, _, err = cli(*command, "--draft-window", "64")
        assert code == 2
        assert err.splitlines()[-1] == "duodec: --draft-window is 64; use 128 or more"


def test_a_full_context_says_how_to_enlarge_it(cli: Cli) -> None:
    _, _, err = cli("generate", "hello", "-c", "40")
    assert "the context of 40 tokens is full: --context enlarges it" in err
    assert cli.answer("-c", "40")["finish_reason"] == "context"


def test_quiet_says_nothing(cli: Cli) -> None:
    assert cli("generate", "hello", "--quiet")[2] == ""


def test_interruption_keeps_what_was_got(cli: Cli) -> None:
    whole = str(cli.answer("--seed", "1")["text"])
    cli.on_forward = lambda number: os.kill(os.getpid(), signal.SIGINT) if number == 9 else None
    status, out, err = cli("generate", "hello", "--seed", "1")
    assert status == 130
    assert 0 < len(out) - 1 < len(whole)
    assert whole.startswith(out[:-1])
    assert "interrupted" in err
    assert "Traceback" not in err


def test_interruption_while_the_prompt_is_read(cli: Cli) -> None:
    def read_chunks(number: int) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert cli.engine is not None
        cli.engine.loaded.target.on_chunk()

    cli.on_forward = read_chunks
    status, out, err = cli("generate", "hello")
    assert (status, out, err) == (130, "", "interrupted\n")

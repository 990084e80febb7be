"""Bad input is one line and status 2, and nothing on standard output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.command_line import Cli, Terminal, duodec, one_line

from duodec.cli import app
from duodec.methods.registry import METHODS


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--target", "/nowhere/model.gguf"], "/nowhere/model.gguf"),
        (["--target", "{tmp}"], "is a folder"),
        (["--target", "{tmp}/text.gguf"], "is not a GGUF file"),
        (["--target", "{tmp}/truncated.gguf"], "truncated"),
        (["--target", "{tmp}/bert.gguf"], "is no language model (bert)"),
        (["--draft", "/nowhere/draft.gguf"], "/nowhere/draft.gguf"),
        (["--draft", "{tmp}/truncated.gguf"], "truncated"),
        (["--context", "30"], "the context holds 30"),
        (["--context", "999999"], "trained for 8192"),
        (["--context", "0"], "context is 0"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--top-p", "1.5"], "--top-p is 1.5"),
        (["--max-tokens", "0"], "max-tokens is 0"),
        (["--pace", "-3"], "pace is -3.0"),
        (["--stop", ""], "--stop text is empty"),
        (["--method", "dou"], "did you mean duo?); choose from: " + ", ".join(METHODS)),
        (["--method", "sps", "--draft", "none"], "needs a draft model"),
        (["--method", "duo", "--target", "{tmp}/bert.gguf"], "no draft is known for"),
        (["--target-backend", "torch", "-ngl", "3"], "gpu-layers is 3"),
        (["--target-backend", "jax"], "unknown target backend 'jax'; choose from: auto, llama.cpp"),
        (["--dtype", "int3"], "unknown dtype 'int3'; choose from: auto, bfloat16"),
        (["--dtype", "bf16"], "dtype is bf16, and llama.cpp computes a GGUF file as it is"),
        (["--device", "tpu"], "unknown device 'tpu'; use auto, cpu, cuda"),
        (["--device", "cuda:7"], "no device cuda:7: this llama.cpp was built without a GPU"),
        (["--raw", "--system", "be"], "--raw"),
        (["--regex", "(a"], "the regular expression cannot be used: unclosed group"),
        (["--json-schema", '{"type": "poem"}'], "Invalid type: poem"),
        (["--json-schema", "/nowhere/schema.json"], "/nowhere/schema.json cannot be read"),
        (["--json-schema", "{}", "--regex", "a"], "exclude each other"),
        (["--max-tokens", "many"], "--max-tokens"),
        (["--no-such-option"], "No such option"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_line_and_status_2(
    bad_files: Path,
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """In this process: a new one for each takes half a second of imports."""
    filled = [argument.replace("{tmp}", str(bad_files)) for argument in arguments]
    command = ["generate", "Why is the sky blue?", *filled]
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        status = app.run(command)
    told = capfd.readouterr()
    assert words in one_line(subprocess.CompletedProcess(command, status, told.out, told.err))


def test_a_forecast_tells_first_what_is_wrong_with_the_target(bad_files: Path, cli: Cli) -> None:
    target = str(bad_files / "truncated.gguf")
    status, out, err = cli("plan", "--target-ms", "20", "-m", target)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "truncated, damaged" in err


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("text.gguf", "is not a GGUF file"),
        ("truncated.gguf", "truncated, damaged"),
        ("bert.gguf", "is no language model (bert)"),
    ],
)
def test_a_benchmark_tells_first_what_is_wrong_with_the_target(
    bad_files: Path, cli: Cli, tmp_path: Path, file: str, words: str
) -> None:
    """Not that no draft is known for it, which `sps` needs."""
    target, folder = str(bad_files / file), str(tmp_path / "bench")
    command = ("bench", "--target", target, "--methods", "ar,sps", "--limit", "1", "-o", folder)
    status, out, err = cli(*command)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert words in err
    assert "none is known" not in err


def test_an_unwritable_cache_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line = one_line(duodec("generate", "hi", DUODEC_CACHE=str(tmp_path / "file" / "cache")))
    assert "cannot write the cache folder" in line
    assert "DUODEC_CACHE" in line


def test_a_prompt_is_asked_for(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    status, out, err = cli("generate", stdin=" \n")
    assert (status, out) == (2, "")
    assert err == "duodec: the prompt is empty; write something to complete\n"
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert app.run(["generate"]) == 2
    out, err = cli.capture.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "pipe it in" in err


def test_an_unknown_command_and_a_typo_are_one_line(cli: Cli) -> None:
    for arguments, words in ((["generat"], "generate"), (["generate", "--targt", "x"], "--target")):
        status, out, err = cli(*arguments)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert words in err

"""An option that is wrong is named as it was typed."""

from __future__ import annotations

import ast
import re
from typing import Any

import pytest
import typer
from fakes import ROOT

from duodec.cli import app, spelling
from duodec.core.sampling.parameters import fields_of
from duodec.loading.config import EngineConfig


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--temp -1", "--temp is -1.0; use 0 (greedy) or more"),
        ("--temperature=-1", "--temperature is -1.0; use 0 (greedy) or more"),
        ("--top_p 3", "--top_p is 3.0; use a value above 0 and up to 1 (off)"),
        ("-n 0", "-n is 0; use 1 or more"),
        ("--max-new-tokens 0", "--max-new-tokens is 0; use 1 or more"),
        ("-c 0", "-c is 0; use 1 or more"),
        ("--temp hot", "--temp is 'hot'; write a number"),
        ("-n x", "-n is 'x'; write a whole number"),
        ("--max_tokns 3", "No such option: --max_tokns"),
        ("-md", "Option '-md' requires an argument; see duodec generate --help"),
        ("--log-level loud", "--log-level is 'loud'; choose from: debug, info, warning, error"),
    ],
)
def test_the_line_names_what_was_typed(
    capsys: pytest.CaptureFixture[str], arguments: str, line: str
) -> None:
    assert app.run(["generate", "hi", *arguments.split()]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"duodec: {line}"), err
    assert err.count("\n") == 1


# of llama.cpp's, vLLM's and hands' own; each was read as a row of one-letter options, or as help
FOREIGN = (
    ("generate hi -hf", "Option '-hf' requires an argument"),
    ("serve -hfd", "Option '-hfd' requires an argument"),
    ("run smollm2 hi -fa on", "-fa: attention is chosen here, for it must be exact at every width"),
    ("generate hi -b 512", "-b: batches are as large as"),
    ("generate hi -ub 512", "-ub: batches are as large as"),
    ("generate hi -ngld 99", "-ngld: a draft computes on the CPU"),
    ("generate hi --draft-max 8", "--draft-max: how much is drafted follows from what pays"),
    ("generate hi --draft_min=1", "--draft_min: how much is drafted follows from what pays"),
    ("serve --spec-draft-n-max 4", "--spec-draft-n-max: how much is drafted follows"),
    ("run -hf o/r hi", "-hf: the model comes first, without an option: duodec run MODEL"),
    ("run -m smollm2 hi", "-m: the model comes first, without an option: duodec run MODEL"),
    ("run --model=smollm2 hi", "--model: the model comes first"),
    (f"verify smollm2 --output {__file__}", f"--output {__file__} is a file; name a folder"),
    ("verify smollm2 --prompts 0", "--prompts is '0'; use 1 or more"),
    ("bench --limit -1", "limit is -1; use 1 or more"),
    ("generate hi --metrics", "No such option: --metrics"),
    ("serve --seed 7", "--seed: each request names its own; without one, it is random"),
    ("serve --temp -1", "--temp is -1.0; use 0 (greedy) or more"),
    ("generate hi -tb 2", "-tb: --threads is for prompts, too"),
    ("generate hi -tp 2", "-tp: the GPUs are named by --device"),
    ("generate -hello", "No such option: -hello"),
    ("generate hi -ngl99", "No such option: -ngl99"),
    ("list -hf", "No such option: -hf"),
    ("list -hx", "No such option: -hx"),
    ("-hf owner/repo", "No such option: -hf"),
)


@pytest.mark.parametrize(("line", "words"), FOREIGN)
def test_no_foreign_option_is_misread(
    capsys: pytest.CaptureFixture[str], line: str, words: str
) -> None:
    assert app.run(line.split()) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"duodec: {words}"), err
    assert (out, err.count("\n")) == ("", 1)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("-hf o/r:Q8_0", "--target hf:o/r:Q8_0"),
        ("--hf-repo=hf:o/r hi", "--target hf:o/r hi"),
        ("-hfd o/d -m T.gguf", "--draft hf:o/d -m T.gguf"),
        ("--spec-draft-hf o/d", "--draft hf:o/d"),
        ("-sys Short. -cd 512", "--system Short. --draft-window 512"),
        ("--jinja hi -p -hf", "hi -p -hf"),  # an option's value, whatever it looks like
        ("-n5 -c 64 --temp 0 -- -hf", "-n5 -c 64 --temp 0 -- -hf"),
    ],
)
def test_llama_cpps_options_are_read_as_ours(given: str, read: str) -> None:
    command: Any = typer.main.get_command(app.app)
    generate = command.commands["generate"]
    context = typer.Context(generate)
    assert spelling.read(given.split(), generate, context) == read.split()


def test_a_server_shows_metrics_without_being_asked() -> None:
    command: Any = typer.main.get_command(app.app)
    serve = command.commands["serve"]
    assert spelling.read(["--metrics", "-cb"], serve, typer.Context(serve)) == []


@pytest.mark.parametrize(
    ("library", "shown"),
    [
        ("use `context=8` or less, or `fast=True`", "use --context 8 or less, or --fast"),
        ("ask for a larger `context`", "ask for a larger --context"),
        ("use `draft=none`, fewer `num_slots`", "use --draft none, fewer --parallel"),
        ("cache_type_v is q8_0; use `target_backend=torch`",
         "cache-type-v is q8_0; use --target-backend torch"),
        ("the text as it is in place of `messages`", "the text as it is with --raw"),
        ("run `duodec setup` and `rest`", "run `duodec setup` and `rest`"),
        ("token 8 is outside", "token 8 is outside"),
        ("n_cpu_moe keeps experts", "n-cpu-moe keeps experts"),
        ("num_slots is 900", "parallel is 900"),
    ],
)  # fmt: skip
def test_the_librarys_parameters_are_options_in_messages(library: str, shown: str) -> None:
    assert spelling.as_options(library) == shown


def test_no_message_of_the_library_names_an_option() -> None:
    """Whose users have parameters: options are the command line's, and the server's operators'."""
    source = ROOT / "src" / "duodec"
    torch = ROOT / "packages" / "duodec-torch" / "src"
    flags = {flag for field in fields_of(EngineConfig).values() for flag in field.flags}
    any_flag = "|".join(flag for flag in flags if flag.startswith("--"))
    declarations = ("config.py", "options.py")
    apart = [source / room for room in ("cli", "server", "datastores")]
    found = [
        f"{file.relative_to(ROOT)}: {node.value!r}"
        for file in [*source.rglob("*.py"), *torch.rglob("*.py")]
        if file.name not in declarations and not any(map(file.is_relative_to, apart))
        for raised in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(raised, ast.Call)
        for node in ast.walk(raised)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.search(rf"(?<![\w`-])({any_flag})(?![\w-])", node.value)
    ]
    assert found == []

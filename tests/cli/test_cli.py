"""The command line, mostly on table models; bad input and interruption in real processes."""

from __future__ import annotations

import io
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from fakes.decoding import LETTERS, Letters, noisy_text
from fakes.inline_drafter import InlineDrafter

from duodec import llm
from duodec.backends.table import TableModel, TableTarget
from duodec.cli import app, output
from duodec.cli.chat import slash
from duodec.cli.checks import Check
from duodec.cli.commands import chat, doctor
from duodec.cli.summary import comparison, draft_line, end_line, speed_line
from duodec.core.protocols import Query, Scores, Target
from duodec.core.round import Round, Stats
from duodec.core.traits import TargetTraits
from duodec.llm import LLM
from duodec.loading.config import EngineConfig
from duodec.loading.resolve import ResolvedPair
from duodec.methods.registry import METHODS
from duodec.models import resolve

ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Watched(Target):
    """A target that calls `on_forward` with the number of each forward pass."""

    traits = TargetTraits(reads_in_chunks=True)
    target: TableTarget
    on_forward: Callable[[int], None] = lambda number: None
    num_forwards: int = 0

    def score(self, queries: Sequence[Query]) -> list[Scores]:
        self.num_forwards += 1
        self.on_forward(self.num_forwards)
        return self.target.score(queries)


@dataclass
class Cli:
    """Runs commands in this process, on table models."""

    capture: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    num_context: int = 400
    on_forward: Callable[[int], None] = lambda number: None
    configs: list[EngineConfig] = field(default_factory=list)
    engine: LLM | None = None
    tokenizer: Letters = field(default_factory=Letters)

    def load(self, pair: ResolvedPair, *, on_warning: Callable[[str], None]) -> LLM:
        config = pair.config
        self.configs.append(config)
        model = TableModel(num_vocab=len(LETTERS) + 1)
        target = Watched(TableTarget(model), self.on_forward)
        draft = TableModel(num_vocab=model.num_vocab, noise=0.2).load()
        drafter = InlineDrafter(draft) if pair.draft else None
        store = noisy_text(len(LETTERS)) if config.datastore else None
        self.engine = LLM(
            target, self.tokenizer, config.context or self.num_context, drafter, store
        )
        return self.engine

    def __call__(self, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        stream = io.TextIOWrapper(io.BytesIO(stdin.encode()))
        self.monkeypatch.setattr(sys, "stdin", stream)
        status = app.run(arguments)
        out, err = self.capture.readouterr()
        return status, out, err

    def answer(self, *arguments: str) -> dict[str, object]:
        status, out, _ = self("generate", "hello", "--json", *arguments)
        assert status == 0
        text, line, rest = out.rsplit("\n", 2)
        record: dict[str, object] = json.loads(line)
        assert (record["text"], rest) == (text, "")
        return record


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    cli = Cli(capsys, monkeypatch)
    monkeypatch.setattr(llm, "load", cli.load)
    before = signal.getsignal(signal.SIGINT)
    yield cli
    assert signal.getsignal(signal.SIGINT) is before, "the handler of Ctrl-C was left behind"


MAIN = "from duodec.cli.app import main; main()"
IDLE = "from duodec.machine import busy; busy.NOTABLE = float('inf')"  # however busy others are


def duodec(*arguments: str, code: str = MAIN, **env: str) -> subprocess.CompletedProcess[str]:
    """The real program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=280,  # the first run may have to fetch the default target
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        check=False,
    )


# generate


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


def test_run_completes_a_prompt_or_chats(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    _, plain, _ = cli("generate", "hello", "--seed", "1", "-n", "20")
    arguments = ("--seed", "1", "-n", "20")
    assert cli("run", "smollm2", "hello", *arguments)[1] == plain
    assert cli("run", "smollm2", "-p", "hello", *arguments)[1] == plain
    assert cli("run", "smollm2", *arguments, stdin="hello\n")[1] == plain
    assert {config.target for config in cli.configs} == {"smollm2"}
    lines = iter(["hello", "/undo", "/bye"])
    monkeypatch.setattr(chat, "_terminal_reader", lambda: lambda prompt: next(lines))
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert app.run(["run", "smollm2-draft", *arguments]) == 0
    out, err = cli.capture.readouterr()
    assert out == plain, "the tables are the same"
    assert "taken back: hello" in err
    assert cli.configs[-1].target == "smollm2-draft"


def test_run_has_the_options_of_generate(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = str(cli.answer("-n", "20", "--seed", "1")["text"])
    arguments = ("run", "smollm2", "hello", "-n", "20", "--seed", "1", "--json", "--stop", whole[9])
    status, out, _ = cli(*arguments)
    assert status == 0
    assert json.loads(out.splitlines()[-1])["text"] == whole[: whole.find(whole[9])]
    for refused, words in (
        (("--regex", "(a", "--json-schema", "{}"), "--json-schema and --regex exclude each other"),
        (("--json-schema", "/nowhere/schema.json"), "/nowhere/schema.json cannot be read"),
    ):
        status, _, err = cli("run", "smollm2", "hello", *refused)
        assert (status, words in err) == (2, True)
    monkeypatch.setattr(chat, "_terminal_reader", lambda: lambda prompt: "/bye")
    monkeypatch.setattr(sys, "stdin", Terminal())
    assert app.run(["run", "smollm2", "--json", "--stop", "x"]) == 0
    err = cli.capture.readouterr().err
    assert "--json has no effect in a chat" in err
    assert "--stop has no effect in a chat" in err
    assert "--regex" not in err


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


@pytest.mark.parametrize(("no_colour", "code"), [("", "4;32"), ("1", "4")])
def test_accepted_drafts_are_tinted_on_a_terminal_only(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, no_colour: str, code: str
) -> None:
    # of its own accord `auto` may find that nothing pays where a forward pass takes no time
    arguments = ("generate", "hello", "--seed", "1", "--show-draft", "-q", "--method", "lookup")
    _, plain, err = cli(*arguments)
    assert "not a terminal" in err
    assert not ANSI.search(plain)
    monkeypatch.setattr(output, "is_terminal", lambda stream: stream is sys.stdout)
    monkeypatch.setenv("NO_COLOR", no_colour)
    _, tinted, _ = cli(*arguments)
    assert f"\x1b[{code}m" in tinted
    assert ANSI.sub("", tinted) == plain


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
        cli.engine.target.on_chunk()

    cli.on_forward = read_chunks
    status, out, err = cli("generate", "hello")
    assert (status, out, err) == (130, "", "interrupted\n")


# closing lines


def stats_of(*rounds: Round) -> Stats:
    first = Round((0,), 0, 0, 0, 1.0, 0.0, 1.0)
    return Stats(10, (first, *rounds), 0.0, 1.0, rounds[-1].end_s if rounds else 1.0)


def rounds_of(
    count: int,
    *,
    accepted: int = 0,
    drafted: int = 4,
    forward_s: float = 0.1,
    wait_s: float = 0.0,
    gap_s: float = 0.0,
    overlap_s: float = 0.0,
) -> Stats:
    period = forward_s + wait_s + gap_s
    return stats_of(
        *(
            Round(
                (1,) * (accepted + 1), accepted, drafted, drafted, 1.0,
                1.0 + i * period + wait_s + gap_s, 1.0 + (i + 1) * period, wait_s, overlap_s,
            )
            for i in range(count)
        )
    )  # fmt: skip


def few_scored() -> Stats:
    """A draft token is scored in every third pass only, as with PEARL."""
    rounds = rounds_of(9, drafted=1, forward_s=0.25).rounds[1:]
    return stats_of(*(replace(r, num_scored=int(i % 3 == 0)) for i, r in enumerate(rounds)))


@pytest.mark.parametrize(
    ("stats", "words"),
    [
        (
            rounds_of(9, accepted=1, forward_s=0.11),
            ("1.82x plain decoding (10.0 tok/s): 2.0 tokens a forward pass at 1.1 times its cost"),
        ),
        (
            rounds_of(9, forward_s=0.31),
            (
                "0.32x plain decoding (10.0 tok/s): scoring 4.0 draft tokens"
                " costs 3.1 plain passes, and 0% of the drafts were accepted"
            ),
        ),
        (
            rounds_of(9, forward_s=0.2, overlap_s=0.2),
            (
                "0.50x plain decoding (10.0 tok/s): scoring 4.0 draft tokens while the drafter "
                "works on the same cores costs 2.0 plain passes, and 0% of the drafts were "
                "accepted"
            ),
        ),
        (
            rounds_of(9, accepted=1, wait_s=0.3),
            (
                "0.50x plain decoding (10.0 tok/s): waiting for "
                "drafts costs 3.0 plain passes a round, and 25% of the drafts were accepted"
            ),
        ),
        (
            rounds_of(9, gap_s=0.1),
            (
                "0.50x plain decoding (10.0 tok/s): the time between passes "
                "costs 1.0 plain passes a round, and 0% of the drafts were accepted"
            ),
        ),
        (rounds_of(9, drafted=0), "1.00x plain decoding (10.0 tok/s): nothing was drafted"),
        (
            rounds_of(9),
            (
                "1.00x plain decoding (10.0 tok/s): 0% of the drafts were accepted, 1.0 "
                "tokens a forward pass"
            ),
        ),
        (
            rounds_of(9, forward_s=0.08),
            "no faster than plain decoding (10.0 tok/s): nothing was accepted",
        ),
        (
            rounds_of(9, forward_s=0.09, drafted=0),
            "no faster than plain decoding (10.0 tok/s): nothing was drafted",
        ),
        (
            few_scored(),
            (
                "0.40x plain decoding (10.0 tok/s): a forward pass costs 2.5 plain passes, and 0% "
                "of the drafts were accepted"
            ),
        ),
        (rounds_of(2), "too short to compare with plain decoding"),
        (stats_of(), "too short to compare with plain decoding"),
    ],
)
def test_the_comparison_names_what_decided_it(stats: Stats, words: str) -> None:
    assert comparison(stats, 0.1, shares_cores=True) == words


def test_timings_that_contradict_each_other_are_not_compared() -> None:
    """A round cannot cost a tenth of a plain forward pass: the machine's speed changed."""
    words = comparison(rounds_of(9), 1.0)
    assert words.startswith("not compared with plain decoding")
    assert "10.0 times as slow" in words
    assert "x plain decoding" not in words


def test_without_a_probe_nothing_is_compared() -> None:
    assert comparison(rounds_of(9), None) == "too short to compare with plain decoding"


def test_lines_of_an_answer() -> None:
    stats = rounds_of(9, accepted=1)
    assert speed_line(stats) == "19 tokens at 20.0 tok/s, the first after 1.0 s"
    assert draft_line(stats, "sps", "small") == (
        "sps with small: 1.90 tokens a forward pass, 36 drafted, 9 accepted (25%)"
    )
    assert draft_line(stats_of(), "ar", None) == "ar: 1.00 tokens a forward pass"
    assert end_line("stop", is_interrupted=False, num_context=8) is None
    assert end_line("length", is_interrupted=True, num_context=8) == "interrupted"


# errors and usage


def one_line(run: subprocess.CompletedProcess[str]) -> str:
    assert run.stdout == ""
    assert run.returncode == 2, run.stderr
    assert run.stderr.startswith("duodec: ")
    assert run.stderr.count("\n") == 1, run.stderr
    return run.stderr


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


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    draft = resolve("smollm2-draft").path.read_bytes()
    (folder / "text.gguf").write_text("no model")
    (folder / "truncated.gguf").write_bytes(draft[: len(draft) // 2])
    architecture = text_entry("general.architecture", "bert")
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    (folder / "bert.gguf").write_bytes(head + architecture + bytes(64))
    (folder / "renamed.gguf").write_bytes(renamed(draft, 4096))
    return folder


def text_entry(key: str, value: str) -> bytes:
    sized = [struct.pack("<Q", len(text)) + text.encode() for text in (key, value)]
    return sized[0] + struct.pack("<I", 8) + sized[1]


def renamed(model: bytes, token: int) -> bytes:
    """The same model, one token of its vocabulary written otherwise."""
    key = b"tokenizer.ggml.tokens"
    at = model.index(key) + len(key) + 4 + 4 + 8  # array, of texts, how many
    for _ in range(token):
        at += 8 + int.from_bytes(model[at : at + 8], "little")
    length = int.from_bytes(model[at : at + 8], "little")
    return model[: at + 8] + b"X" * length + model[at + 8 + length :]


def test_an_unwritable_cache_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line = one_line(duodec("generate", "hi", DUODEC_CACHE=str(tmp_path / "file" / "cache")))
    assert "cannot write the cache folder" in line
    assert "DUODEC_CACHE" in line


class Terminal(io.StringIO):
    """Standard input with a person before it."""

    def isatty(self) -> bool:
        return True


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


def test_help_teaches_without_loading_what_generates() -> None:
    unused = ("llama_cpp", "prompt_toolkit", "huggingface_hub", "scipy", "jinja2", "duodec.llm",
              "duodec.scheduler.scheduler", "duodec.loading.load")  # fmt: skip
    script = (
        "import sys; from duodec.cli.app import run; run(['generate', '--help-all']);"
        f"assert not [n for n in sys.modules if n.startswith({unused!r})]"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    for words in ("Examples", "default: 256", "--show-draft", *METHODS):
        assert words in run.stdout


def test_version_and_bare_call(cli: Cli) -> None:
    assert cli("--version")[1].startswith("duodec 1.")
    status, out, _ = cli()
    assert status == 0
    assert "Usage" in out


def test_a_closed_pipe_ends_quietly() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "from duodec.cli.app import main; main()",
         "generate", "Count.", "--method", "ar", "-t", "1", "-n", "40"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        assert run.stderr is not None
        run.stdout.read(1)
        run.stdout.close()
        assert run.stderr.read() == ""
        assert run.wait(60) == 141


# chat


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


# doctor and models


@pytest.mark.slow
def test_doctor_finds_the_default_pair_usable() -> None:
    run = duodec("doctor", "--json", "-t", "1")
    assert run.returncode == 0, run.stderr
    record = json.loads(run.stdout)
    assert record["is_usable"]
    names = {check["name"] for check in record["checks"]}
    assert names >= {"target", "draft", "vocabularies", "chat template", "context", "cores",
                     "memory", "llama.cpp", "idle"}  # fmt: skip
    assert (record["speed"] is None) == ("drafts" not in names), "a busy machine is not judged"
    if record["speed"]:
        assert record["speed"]["verify_s"] > record["speed"]["draft_s"] > 0


@pytest.mark.slow
def test_doctor_tries_the_drafts_that_it_finds() -> None:
    run = duodec("doctor", "--threads", "1", code=f"{IDLE}; {MAIN}")
    assert run.returncode == 0, run.stderr
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("ok    best draft")]
    assert "smollm2-draft" in line
    assert re.search(r"same vocabulary\): \d+% of first guesses right", line)
    assert "duodec chat --target smollm2 --draft" in line


@pytest.mark.slow
def test_drafts_of_a_target_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "draft-x.gguf"
    path.write_bytes(b"GGUF")
    target = tmp_path / "target.gguf"
    target.symlink_to(resolve("smollm2", offline=True).path)
    run = duodec("models", "drafts", str(target))
    assert run.returncode == 0, run.stderr
    assert re.search(r"smollm2-135m-draft-q4_0.gguf +50 M .* same vocabulary", run.stdout)
    assert "draft-x.gguf is truncated or damaged" in run.stdout
    assert "published for SmolLM2: smollm2-draft" in run.stderr
    record = json.loads(duodec("models", "drafts", str(target), "--json").stdout)
    assert record["family"]["draft"] == "smollm2-draft"
    assert record["candidates"][0]["is_same"]


@pytest.mark.slow
def test_doctor_tells_of_another_vocabulary(bad_files: Path) -> None:
    run = duodec("doctor", "--draft", str(bad_files / "renamed.gguf"))
    assert run.returncode == 0, run.stdout
    assert re.search(r"^ok +vocabularies +token 4096 is 'XXXX", run.stdout, re.MULTILINE)
    assert "the draft's text is tokenised anew" in run.stdout


@pytest.mark.slow
def test_a_draft_with_one_unequal_token_drafts(bad_files: Path) -> None:
    arguments = ("generate", "--raw", "A b c d", "--max-tokens", "12", "--threads", "1", "--json")
    texts = {
        json.loads(duodec(*arguments, *draft).stdout.splitlines()[-1])["text"]
        for draft in (("--method", "ar"), ("--draft", str(bad_files / "renamed.gguf")))
    }
    assert len(texts) == 1


def test_show_tells_what_a_model_is(cli: Cli) -> None:
    _, out, _ = cli("show", "smollm2-draft")
    assert re.search(r"^quantisation +Q4_0$", out, re.MULTILINE)
    record = json.loads(cli("show", "smollm2-draft", "--json")[1])
    assert (record["num_vocab"], record["num_context"]) == (49152, 8192)
    status, out, err = cli("show", "hf:o/not-here")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert cli("rm", "smollm2-draft")[0] == 2


@pytest.mark.parametrize("columns", [80, 100])
def test_no_table_is_wider_than_a_terminal_but_for_its_names(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda stream: stream is sys.stdout)
    monkeypatch.setenv("COLUMNS", str(columns))
    output.put_table(("NAME", "SIZE", "HERE"), [("x" * 60, "1 MB", "no: fetch it")])
    output.put_beside("ok    target  ", 14, "llama, " * 40)
    _, out, _ = cli("list")
    assert all(len(line) <= columns or " " not in line for line in out.splitlines())


@pytest.mark.parametrize("columns", [40, 80])
def test_long_lines_are_wrapped_at_words_on_a_terminal(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """All but those that are copied; off a terminal a line is a line."""
    words = (
        "  statistics of some thing or other " + "word " * 20 + "https://example.org/" + "x" * 60
    )
    command = "duodec generate " + "-m model " * 20
    monkeypatch.setenv("COLUMNS", str(columns))

    def said() -> str:
        output.say(words)
        output.say_dim(command, is_copied=True)
        slash.run("/?", cast(Any, None))
        return cli.capture.readouterr().err

    whole = said().splitlines()
    assert whole[:2] == [words, command]
    monkeypatch.setattr(output, "is_terminal", lambda stream: stream is sys.stderr)
    monkeypatch.setenv("NO_COLOR", "1")
    lines = said().splitlines()
    assert command in lines
    rest = [line for line in lines if line != command]
    assert all(len(line) <= columns or " " not in line.strip() for line in rest)
    assert " ".join(" ".join(rest).split()) == " ".join(
        " ".join(line for line in whole if line != command).split()
    )
    at = next(i for i, line in enumerate(lines) if line.startswith("  /set"))
    assert lines[at + 1].startswith(" " * 11), "it hangs right of the names"


def test_a_remedy_is_wrapped_and_a_command_in_it_is_not(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda stream: stream is sys.stdout)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    command = "run: pip install " + "something " * 8 + "else"
    doctor._show(
        [Check("memory", "warn", "short", "close " * 20), Check("torch", "warn", "no", command)]
    )
    lines = cli.capture.readouterr().out.splitlines()
    assert f"{'':14}remedy: {command}" in lines
    assert all(len(line) <= 60 for line in lines if command not in line)
    assert sum(line.startswith(" " * 14 + "close") for line in lines) >= 1


def test_help_names_what_datastore_does(cli: Cli) -> None:
    _, out, _ = cli("--help")
    assert "Build datastores of text" in out
    assert "list datastores" not in out


@pytest.mark.slow
def test_doctor_names_a_model_of_another_kind(bad_files: Path) -> None:
    run = duodec("doctor", "--target", str(bad_files / "bert.gguf"))
    assert run.returncode == 3
    assert "is no language model (bert)" in run.stdout
    assert "None" in one_line(duodec("doctor", "--target", "/nowhere/None"))


def test_models_are_listed_and_fetched(cli: Cli) -> None:
    status, out, _ = cli("models", "--json")
    assert status == 0
    listed = {model["name"]: model for model in json.loads(out)["models"]}
    assert listed["smollm2-draft"]["is_present"]
    _, table, _ = cli("models")
    assert "smollm2-draft" in table
    _, path, err = cli("models", "pull", "smollm2-draft")
    assert path.strip() == listed["smollm2-draft"]["path"]
    assert "Apache-2.0" in err
    status, out, err = cli("models", "pull", "smolm2")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "did you mean smollm2" in err


def test_an_answer_that_was_cut_off_says_so(cli: Cli) -> None:
    _, err = talk(cli, "hello")
    assert "cut off at max_tokens 12; /set max_tokens none lifts the limit" in err


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

        monkeypatch.setattr(chat, "_terminal_reader", lambda: read)
        monkeypatch.setattr(sys, "stdin", stdin)
        cli.on_forward = type_something
        assert app.run(["chat", "-n", "12", "--method", "ar"]) == 0
        assert not select.select([keyboard], [], [], 0)[0], "something was echoed"

"""The head-to-head on CPUs: turns, reasons, figures and tables. Programs are made up."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from benchmarks.cpu import cpu, figure, obtain, page, prepare
from benchmarks.cpu.decoders import Completion, peak_bytes, server, worker
from benchmarks.cpu.obtain import Unavailable
from benchmarks.cpu.rivals import RIVALS, Found, Rival, Rows, Setup, Way
from benchmarks.serving import servers

from duodec_lab.bench.tasks import TASKS

FACTS = prepare.Facts("/models/a.gguf", "/models/b.gguf", [1, 2, 3], "/lib", "AVX2", False, {})
MISTRALRS = """\
import time
from types import SimpleNamespace as Namespace

class Which:
    GGUF = Namespace

class ChatCompletionRequest(Namespace):
    pass

class Runner:
    def __init__(self, which):
        print("this must not reach the answers")
        if which.quantized_filename == "unreadable.gguf":
            raise RuntimeError("no such architecture")

    def send_chat_completion_request(self, request):
        for text in request.messages[0]["content"].split():
            time.sleep(0.01)
            yield Namespace(choices=[Namespace(delta=Namespace(content=text))])
"""


@dataclass
class Scripted:
    """A decoder that says the same texts; its pieces come at a fixed pace."""

    texts: Sequence[str]
    pace_s: float
    peak_bytes: int = 1_000_000

    def complete(self, prompt: str, max_tokens: int) -> Completion:
        pieces = [((i + 1) * self.pace_s, text) for i, text in enumerate(self.texts)]
        return Completion(len(pieces), pieces)


class Timed(Rows):
    """Forward passes of a library that is not there."""

    def measure(self, setup: Setup, repeats: int, start: int, *, compares: bool) -> dict[str, Any]:
        if self.words:
            raise Unavailable("it died")
        times = {"1": 10.0, "8": 20.0}
        return {
            "load_s": 1.0, "prefill_ms": 2.0, "forward_ms": times, "system": "",
            "deviation": 0.0 if compares else None,
        }  # fmt: skip


def way(name: str, texts: str, pace_s: float, log: list[str], reason: str = "") -> Way:
    @contextmanager
    def opened() -> Iterator[Scripted]:
        log.append(name)
        if reason:
            raise Unavailable(reason)
        yield Scripted(texts, pace_s)

    return Way(name, opened)


def absent(setup: Setup) -> Found:
    raise Unavailable("no wheel for this system")


def rivals(log: list[str]) -> tuple[Rival, ...]:
    def ours(setup: Setup) -> Found:
        ways = [way("plain", "abcd", 0.1, log), way("draft", "abcd", 0.05, log)]
        return Found("1.0", setup.model.name, ways, [Timed("plain", Path("rows"))])

    def theirs(setup: Setup) -> Found:
        ways = [
            way("plain", "abcd", 0.2, log),
            way("n-grams", "abxd", 0.1, log),
            way("draft", "", 0.1, log, "cannot read the draft"),
        ]
        rows = [Timed("plain", Path("rows")), Timed("repacked", Path("rows"), ("repack",))]
        return Found("2.0", setup.model.name, ways, rows)

    return (
        Rival("duodec", "here", ours),
        Rival("other", "there", theirs),
        Rival("third", "elsewhere", absent),
    )


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ways that were opened, by programs that are made up."""
    log: list[str] = []
    monkeypatch.setattr(cpu, "RIVALS", rivals(log))
    monkeypatch.setattr(prepare, "facts", lambda *_: FACTS)
    return log


def measured(**settings: Any) -> dict[str, Any]:
    given = {
        "models": ["a"], "rivals": "duodec,other,third", "ask": "passes,decoding", "turns": 2,
        "prompts": 3, "max_tokens": 4, "threads": 2, "draft": "auto", "repeats": 1,
        "start": 100, "ik_llama": None,
    }  # fmt: skip
    return dict(cpu.main(**{**given, **settings}))


def test_programs_take_turns_and_each_is_compared_with_its_own_plain_text(
    opened: list[str],
) -> None:
    (model,) = measured()["models"]
    first, second = opened[: len(opened) - 4], opened[-4:]
    assert first == ["plain", "draft", "plain", "n-grams", "draft"]
    assert second == ["n-grams", "plain", "draft", "plain"]  # what failed is not tried again
    ours, other, third = model["programs"]
    assert [one["way"] for one in ours["ways"]] == ["plain", "draft"]
    assert ours["ways"][0]["rate"] == pytest.approx(10)
    assert ours["ways"][1]["rate"] == pytest.approx(20)
    assert ours["ways"][0]["first_s"] == pytest.approx(0.1)
    assert ours["ways"][0]["peak_mb"] == 1
    assert (ours["ways"][1]["num_other_texts"], ours["ways"][1]["num_texts"]) == (0, 6)
    assert (other["ways"][1]["num_other_texts"], other["ways"][1]["num_texts"]) == (6, 6)
    assert other["ways"][2] == {"way": "draft", "reason": "cannot read the draft"}
    assert ours["passes"][0]["forward_ms"] == {"1": 10, "8": 20}
    assert other["passes"][1] == {"way": "repacked", "reason": "it died"}
    assert third == {
        "program": "third", "source": "elsewhere", "reason": "no wheel for this system",
    }  # fmt: skip
    assert len(model["texts"]) == 2 * 3 * 4


def test_what_is_measured_is_kept_at_an_interrupt(
    opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = cpu.Comparison.decode

    def interrupted(self: cpu.Comparison, turn: int, *others: Any) -> None:
        if turn:
            raise KeyboardInterrupt
        decode(self, turn, *others)

    monkeypatch.setattr(cpu.Comparison, "decode", interrupted)
    (model,) = measured(turns=3)["models"]
    assert {one["turn"] for one in model["texts"]} == {0}
    assert model["programs"][0]["ways"][0]["rate"] == pytest.approx(10)


def test_what_is_not_asked_is_not_measured(opened: list[str]) -> None:
    (model,) = measured(ask="passes")["models"]
    assert not opened
    assert model["programs"][0]["passes"][0]["forward_ms"]
    assert "tokens/s" not in page.compared({"models": [model]})
    (model,) = measured(ask="none")["models"]
    assert model["programs"][0]["passes"] == [{"way": "plain", "reason": None}]
    with pytest.raises(typer.BadParameter, match="unknown 'speed'"):
        measured(ask="speed")


def test_an_interrupt_before_any_figure_ends_it(
    opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> prepare.Facts:
        raise KeyboardInterrupt

    monkeypatch.setattr(prepare, "facts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        measured()


def test_tables_have_all_that_was_found_and_why_the_rest_is_not_there(opened: list[str]) -> None:
    text = page.compared(measured())
    assert "| **duodec** | 10.0 | 20.0 | 2.00 | 0 |" in text
    assert "| **duodec** | no drafts | 10.0 | 1.00 | 0.10 | 1 |  |" in text
    assert "| **duodec** | a draft model | 20.0 | 2.00 | 0.05 | 1 | 0 of 6 |" in text
    assert "| other | n-grams | 10.0 | 1.00 | 0.10 | 1 | 6 of 6 |" in text
    assert "| other | a draft model | cannot read the draft |" in text
    assert "| third | elsewhere | not there | no wheel for this system |" in text


def test_the_figure_has_the_programs_that_decode(opened: list[str], tmp_path: Path) -> None:
    drawing = figure.drawing(measured())
    assert drawing.description == "a: duodec 10 and 20, other 5 and 10"
    drawing.write(tmp_path / "cpu.svg")
    assert "third" not in (tmp_path / "cpu.svg").read_text()


def test_a_rate_counts_what_comes_after_the_first_piece() -> None:
    one = Completion(8, [(0.5, ""), (1.0, "ab"), (2.0, "cd"), (3.0, "efgh"), (3.5, "")])
    assert one.first_s == 1.0
    assert one.rate == pytest.approx(6 / 2)
    assert one.text == "abcdefgh"


@pytest.mark.parametrize("pieces", [[], [(1.0, "")], [(1.0, "all")]])
def test_a_text_without_a_pace_is_no_figure(pieces: list[tuple[float, str]]) -> None:
    with pytest.raises(Unavailable):
        _ = (Completion(1, pieces).first_s, Completion(1, pieces).rate)


def test_memory_is_that_of_a_process_that_runs() -> None:
    assert peak_bytes(os.getpid()) > 1 << 20
    assert peak_bytes(2**22 + 1) == 0


def test_a_package_of_another_python_answers(tmp_path: Path) -> None:
    (tmp_path / "mistralrs.py").write_text(MISTRALRS)
    given = {"model": "/models/a.gguf"}
    with worker(Path(sys.executable), "mistralrs", given, PYTHONPATH=str(tmp_path)) as found:
        one = found.complete("a bc d", 8)
        assert (one.text, one.num_tokens) == ("abcd", 3)
        assert 0 < one.first_s < one.pieces[-1][0]
        assert found.peak_bytes > 1 << 20


def test_a_package_that_cannot_read_a_file_says_why(tmp_path: Path) -> None:
    (tmp_path / "mistralrs.py").write_text(MISTRALRS)
    given = {"model": "/models/unreadable.gguf"}
    with (
        pytest.raises(Unavailable, match="ended with 1: RuntimeError: no such architecture"),
        worker(Path(sys.executable), "mistralrs", given, PYTHONPATH=str(tmp_path)),
    ):
        pass


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho loading\necho error: unknown argument: $3\nexit 1\n")
    program.chmod(0o755)
    with (
        pytest.raises(Unavailable, match="error: unknown argument: -rtr"),
        server(servers.native(program, "-rtr")),
    ):
        pass


def test_prompts_are_spread_over_tasks() -> None:
    found = cpu.chosen_prompts(9)
    assert [prompt.task for prompt in found] == [*TASKS, *TASKS[:2]]
    assert len({(prompt.task, prompt.prompt_id) for prompt in found}) == 9
    assert cpu.chosen_prompts(2) == found[:2]


def test_programs_are_chosen_by_name_in_the_order_of_the_table() -> None:
    found = cpu.chosen_rivals("ik_llama.cpp,duodec")
    assert [rival.name for rival in found] == ["duodec", "ik_llama.cpp"]
    with pytest.raises(typer.BadParameter, match="unknown program 'llamafile'"):
        cpu.chosen_rivals("duodec,llamafile")
    assert len({rival.name for rival in RIVALS}) == len(RIVALS)


def test_a_reason_is_the_line_that_tells_of_an_error() -> None:
    assert obtain.last_line("loading\nerror: no file\nusage: x\n") == "error: no file"
    assert obtain.last_line("one\ntwo\n\n") == "two"
    assert obtain.last_line("") == "no reason given"


def test_a_tree_without_a_header_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"include/llama\.h"):
        obtain.ik_llama_source(tmp_path)

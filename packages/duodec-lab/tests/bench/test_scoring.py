"""Which answers are correct, and what code in an answer cannot do to us."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from time import perf_counter

import psutil
import pytest

from duodec.errors import BackendUnavailable
from duodec_lab.bench.scoring import Scorer, score_code, score_math, score_text, score_text_and_code
from duodec_lab.bench.tasks import CodeTask, Prompt

DOUBLE = CodeTask(
    'def double(n):\n    """Twice n."""\n',
    "double",
    "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-1) == -2\n",
)
RIGHT = "def double(n):\n    return 2 * n\n"


def after(*lines: str) -> str:
    """The right function, which first does something else."""
    return "\n    ".join(["def double(n):", *lines, "return 2 * n"]) + "\n"


def passes(answer: str, limit_s: float = 10.0) -> bool:
    return score_code(answer, DOUBLE, limit_s=limit_s)


# --- numbers


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("She has 3 + 4 = 7 apples.", "7"),
        ("The price is $1,200.00.", "1200"),
        ("1200", "1,200"),
        ("That is 12.50 dollars", "12.5"),
        ("#### 42\n(found in 3 steps)", "42"),
        ("It fell to -3 degrees.", "-3"),
        ("It fell to \N{MINUS SIGN}3 degrees.", "-3"),
        ("He has 20% left", "20"),
        ("**18**", "So 6*3=<<6*3=18>>18\n#### 18"),
        ("0" * 5000 + "7", "7"),
    ],
)
def test_the_same_number_is_a_right_answer(answer: str, reference: str) -> None:
    assert score_math(answer, reference)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ("7 apples of 12", "7"),
        ("3", "-3"),
        ("-3", "3"),
        ("70", "7"),
        ("7.5", "7"),
        ("#### 41\nor 42", "42"),
        ("I cannot tell.", "7"),
        ("", "7"),
        ("no number", "none either"),
    ],
)
def test_another_number_or_none_is_a_wrong_answer(answer: str, reference: str) -> None:
    assert not score_math(answer, reference)


# --- where a function is found in an answer


@pytest.mark.parametrize(
    "answer",
    [
        RIGHT,
        f"Sure!\n```python\n{RIGHT}```\nIt doubles.",
        f"~~~py\n{RIGHT}~~~",
        f"```\n{RIGHT}",  # cut off before the fence
        f"1. The function:\n   ```python\n   {RIGHT.replace(chr(10), chr(10) + '   ')}\n   ```",
        f"Run:\n```\n$ python\n```\nThen:\n```python\n{RIGHT}```",
        f"```python\n{RIGHT}```\nUse:\n```python\nassert double(1) == 3\n```",
        "    return 2 * n\n",
        "```python\n    return 2 * n\n```",
        "```python\nm = n\nreturn n + m\n```",
        f"```python\nfrom __future__ import annotations\n{RIGHT}```",
        f"```python\n{RIGHT}if __name__ == '__main__':\n    raise SystemExit\n```",
    ],
)
def test_a_function_is_found_in_prose_blocks_or_as_its_body(answer: str) -> None:
    assert passes(answer)


def test_a_dataclass_with_annotations_as_text_can_be_defined() -> None:
    lines = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    assert passes(f"{lines}@dataclass\nclass Pair:\n    n: int\n\n{RIGHT}")


def test_imports_and_helpers_of_the_prompt_may_be_missing_in_the_answer() -> None:
    task = CodeTask(
        "from typing import List\n\n\ndef one() -> int:\n    return 1\n\n\n"
        'def ones(n: int) -> List[int]:\n    """n ones."""\n',
        "ones",
        "def check(candidate):\n    assert candidate(2) == [1, one()]\n",
    )
    assert score_code(
        "```python\ndef ones(n: int) -> List[int]:\n    return [one()] * n\n```", task
    )


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "Multiply it by two.",
        "def double(n):\n    return n ** 2\n",
        "def double(n):\n    return 2 * n +\n",
        "def triple(n):\n    return 3 * n\n",
        f"class Solution:\n    {RIGHT.replace(chr(10), chr(10) + '    ')}",
        "def double(n):\n    return double(n)\n",
        "def double(n):\n    return 2 * n\n\x00",
        "def double(n):\n    return '\ud83d'\n",
    ],
)
def test_a_wrong_answer_fails(answer: str) -> None:
    assert not passes(answer)


# --- what an answer cannot do


@pytest.mark.parametrize(
    "answer",
    [
        f"import sys\nsys.exit(0)\n{RIGHT}",
        f"import os\nos._exit(0)\n{RIGHT}",
        after("raise SystemExit(0)"),
        after("import os", "os._exit(0)"),
        f"def check(candidate):\n    pass\nraise SystemExit\n{RIGHT}",
        "def check(candidate):\n    pass\n\ndef double(n):\n    pass\n",
    ],
)
def test_an_answer_that_ends_the_process_does_not_pass(answer: str) -> None:
    assert not passes(answer)


@pytest.mark.parametrize(
    "answer",
    [
        after("while True: pass"),
        after("import time", "time.sleep(60)"),
        after("import signal, time", "signal.signal(signal.SIGTERM, signal.SIG_IGN)", "while 1: 0"),
        "while True:\n    try:\n        raise ValueError\n    except BaseException:\n        pass\n"
        + RIGHT,
    ],
)
def test_an_answer_that_never_ends_is_killed_at_the_limit(answer: str) -> None:
    begin_s = perf_counter()
    assert not passes(answer, limit_s=0.5)
    assert perf_counter() - begin_s < 5


def test_an_answer_that_ends_within_the_limit_may_take_its_time() -> None:
    assert passes(after("import time", "time.sleep(0.1)"))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit addresses")
def test_an_answer_has_the_memory_of_the_limit_and_no_more() -> None:
    hog = after("held = [bytearray(1 << 24) for _ in range(8)]")
    assert score_code(hog, DOUBLE, limit_bytes=1 << 28)
    assert not score_code(hog, DOUBLE, limit_bytes=1 << 27)
    endless = f"held = []\nwhile True:\n    held.append(bytearray(1 << 22))\n{RIGHT}"
    assert not score_code(endless, DOUBLE, limit_bytes=1 << 28)


@pytest.mark.parametrize(
    "lines",
    [
        ("import os", "for _ in range(8): os.fork()"),
        ("import os", "os.system('true')"),
        ("import subprocess", "subprocess.run(['true'])"),
        ("import os", "os.kill(os.getppid(), 0)"),
        ("import socket", "socket.create_connection(('127.0.0.1', 9))"),
        ("input()",),
        ("import numpy",),
    ],
)
def test_an_answer_has_no_processes_network_input_or_packages(lines: tuple[str, ...]) -> None:
    assert not passes(after(*lines))
    excused = ["try:", *(f"    {line}" for line in lines), "except Exception: pass"]
    assert passes(after(*excused))


def test_what_an_answer_started_ends_with_it() -> None:
    nap = "61.0625"
    start = f"spawnv_passfds(b'/bin/sleep', [b'sleep', b'{nap}'], [])"
    lines = ("from multiprocessing.util import spawnv_passfds", "try:")
    assert passes(after(*lines, f"    for _ in range(4): {start}", "except OSError: pass"))
    assert not passes(after(*lines, f"    {start}", "finally: 1 / 0"))
    naps = [p for p in psutil.process_iter() if nap in _command(p)]
    _, alive = psutil.wait_procs(naps, timeout=5)
    assert not alive


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline() if process.status() != psutil.STATUS_ZOMBIE else []
    except psutil.Error:
        return []


def test_an_answer_sees_nothing_of_ours_and_writes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_SECRET", "42")
    monkeypatch.chdir(tmp_path)
    assert passes(
        after("import os", "assert 'OUR_SECRET' not in os.environ", "assert not os.listdir()")
    )
    kept = tmp_path / "kept"
    kept.write_text("as it was")
    for line in (f"open({str(kept)!r}, 'w')", f"os.remove({str(kept)!r})", "open('new', 'w')"):
        assert not passes(after("import os", line))
    assert passes(after(f"assert open({str(kept)!r}).read() == 'as it was'"))
    assert list(tmp_path.iterdir()) == [kept]


def test_what_an_answer_prints_goes_nowhere(capfd: pytest.CaptureFixture[str]) -> None:
    assert passes(
        after("for _ in range(1000): print('x' * 10_000)", "import sys", "sys.stderr.write('y')")
    )
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("program", ["absent", "/bin/false"])
def test_where_nothing_can_be_run_no_answer_is_called_wrong(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(BackendUnavailable, match="score text"):
        passes(RIGHT)


def test_an_interruption_kills_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen):
        def wait(self, timeout: float | None = None) -> int:
            if timeout is not None:
                started.append(self)
                raise KeyboardInterrupt
            return super().wait()

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        passes(after("while True: pass"))
    assert started[0].returncode == -9


# --- scorers


def prompt(task: str, reference: str | None = None, code: CodeTask | None = None) -> Prompt:
    return Prompt(task, "1", ("Question?",), reference, code)


@pytest.mark.parametrize("scorer", [score_text, score_text_and_code])
def test_scorers_know_mathematical_answers_and_nothing_of_prose(scorer: Scorer) -> None:
    assert scorer(prompt("math_reasoning", "7"), "So it is 7.") is True
    assert scorer(prompt("math_reasoning", "7"), "So it is") is False
    assert scorer(prompt("math_reasoning"), "7") is None
    for task in ("mt_bench", "translation", "summarization", "qa", "rag"):
        assert scorer(prompt(task, "7"), "7") is None


def test_only_the_scorer_of_code_runs_it() -> None:
    code = prompt("humaneval", code=DOUBLE)
    assert score_text(code, RIGHT) is None
    assert score_text_and_code(code, RIGHT) is True
    assert score_text_and_code(code, "    return n\n") is False
